package main

import (
	"io"
	"os"
	"strings"
	"testing"
)

func TestKubeAPIServerReachesEtcdThroughTheProxy(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		options options
		want    []string // of each server
	}{
		"without one it reaches etcd itself":    {options{}, []string{"http://127.0.0.1:20001"}},
		"a proxy":                               {options{etcdProxies: []string{"127.0.0.1:4711"}}, []string{"http://127.0.0.1:4711"}},
		"a flag of kube-apiserver has priority": {options{etcdProxies: []string{"127.0.0.1:4711"}, apiserverFlags: []string{"--etcd-servers=x"}}, []string{"x"}},
		"one proxy of several servers":          {options{etcdProxies: []string{"127.0.0.1:4711"}}, []string{"http://127.0.0.1:4711", "http://127.0.0.1:4711"}},
		"a proxy each":                          {options{etcdProxies: []string{"127.0.0.1:4711", "127.0.0.1:4712"}}, []string{"http://127.0.0.1:4711", "http://127.0.0.1:4712", "http://127.0.0.1:4712"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := &runDir{path: t.TempDir(), ports: newPorts([]int{20001, 20002, 20003, 20004, 20005, 20006, 20007}, len(tc.want))}
			p, err := newPlane(dir, binaries{}, tc.options, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			etcd := p.components[0].flags
			for i, want := range tc.want {
				if apiserver := p.components[1+i].flags; !hasFlag(apiserver, "etcd-servers", want) {
					t.Errorf("kube-apiserver %d has %q", i+1, apiserver)
				}
			}
			// Where etcd listens does not depend on it.
			if !hasFlag(etcd, "listen-client-urls", "http://127.0.0.1:20001") || p.etcd != "127.0.0.1:20001" {
				t.Errorf("etcd has %q; it is said to be at %q", etcd, p.etcd)
			}
		})
	}
}

func TestSeveralServersShareNothingButEtcd(t *testing.T) {
	t.Parallel()
	numbers := []int{20001, 20002, 20003, 20004, 20005, 20006, 20007}
	for _, n := range []int{1, 2, 3} {
		if got, want := len(numbers[:countPorts(n)]), map[int]int{1: 4, 2: 6, 3: 7}[n]; got != want {
			t.Errorf("%d servers take %d ports, want %d", n, got, want)
		}
		dir := &runDir{path: t.TempDir(), ports: newPorts(numbers[:countPorts(n)], n)}
		p, err := newPlane(dir, binaries{}, options{audit: true}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{p.server: 0}
		if n == 1 {
			seen = map[string]int{} // there is no front
		}
		for i, s := range p.servers {
			for _, own := range []string{s.Name, s.Server, s.Kubeconfig, s.AuditLog} {
				if other, taken := seen[own]; taken {
					t.Errorf("of %d servers, %d and %d have %q", n, other, i+1, own)
				}
				seen[own] = i + 1
			}
			config, err := os.ReadFile(s.Kubeconfig)
			if err != nil || !strings.Contains(string(config), "server: "+s.Server+"\n") {
				t.Errorf("the kubeconfig of %s is %q, %v", s.Name, config, err)
			}
			if c, err := p.component(s.Name); err != nil || !hasFlag(c.flags, "audit-log-path", s.AuditLog) || "https://127.0.0.1:"+flagValue(c.flags, "secure-port") != s.Server {
				t.Errorf("component %s is %v, %v", s.Name, c, err)
			}
		}
		manager, err := os.ReadFile(dir.file("kube-controller-manager.kubeconfig"))
		if err != nil || !strings.Contains(string(manager), "server: "+p.servers[0].Server+"\n") {
			t.Errorf("the controller manager of %d servers has %q, %v", n, manager, err)
		}
	}
}

func flagValue(flags []string, name string) string {
	for _, f := range flags {
		if value, ok := strings.CutPrefix(f, "--"+name+"="); ok {
			return value
		}
	}
	return ""
}
