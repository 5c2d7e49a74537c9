package main

import (
	"io"
	"testing"
)

func TestKubeAPIServerReachesEtcdThroughTheProxy(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		options options
		want    string
	}{
		"without one it reaches etcd itself":    {options{}, "http://127.0.0.1:20001"},
		"a proxy":                               {options{etcdProxy: "127.0.0.1:4711"}, "http://127.0.0.1:4711"},
		"a flag of kube-apiserver has priority": {options{etcdProxy: "127.0.0.1:4711", apiserverFlags: []string{"--etcd-servers=x"}}, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := &runDir{path: t.TempDir(), ports: ports{etcd: 20001, etcdPeer: 20002}}
			p, err := newPlane(dir, binaries{}, tc.options, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			etcd, apiserver := p.components[0].flags, p.components[1].flags
			if !hasFlag(apiserver, "etcd-servers", tc.want) {
				t.Errorf("kube-apiserver has %q", apiserver)
			}
			// Where etcd listens does not depend on it.
			if !hasFlag(etcd, "listen-client-urls", "http://127.0.0.1:20001") || p.etcd != "127.0.0.1:20001" {
				t.Errorf("etcd has %q; it is said to be at %q", etcd, p.etcd)
			}
		})
	}
}
