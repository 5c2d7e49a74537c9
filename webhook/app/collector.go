package app

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/belay-dev/belay/webhook/internal/facts"
	"github.com/belay-dev/belay/webhook/internal/inject"
)

// sidecarOptions are the flags of sidecars and of their collector.
type sidecarOptions struct {
	listen    string
	address   string
	image     string
	cpu       string
	memory    string
	ephemeral string
	ca        string
}

// Values of --sidecar-ca, beside those of inject.CASource.
const caAuto = "auto"

func (o *sidecarOptions) add(fs *pflag.FlagSet) {
	fs.StringVar(&o.listen, "collector-listen", ":9444", "address of the collector, which sidecars report to")
	fs.StringVar(&o.address, "collector-address", "", "HOST:PORT by which sidecars reach the collector; empty: the Service belay-webhook in --namespace, port 9444")
	fs.StringVar(&o.image, "sidecar-image", "ghcr.io/belay-dev/belay-sidecar:"+imageTag(), "image of the sidecar")
	fs.StringVar(&o.cpu, "sidecar-cpu", "20m", "CPU that a sidecar requests, and its limit, in pods whose containers all have one")
	fs.StringVar(&o.memory, "sidecar-memory", "32Mi", "memory that a sidecar requests, and its limit, in pods whose containers all have one")
	fs.StringVar(&o.ephemeral, "sidecar-ephemeral-storage", "16Mi", "ephemeral storage that a sidecar requests, and its limit, in pods whose containers all have one")
	fs.StringVar(&o.ca, "sidecar-ca", caAuto, "where sidecars have the collector's CA from: ConfigMap, ClusterTrustBundle, or auto, which is the latter where the API server serves it and every kubelet is v1.37 or newer")
}

// imageTag is the tag of the images that belong to this version.
func imageTag() string {
	if version == "devel" {
		return "latest"
	}
	return version
}

func (o *sidecarOptions) complete(namespace string) error {
	if _, _, err := splitAddress("collector-listen", o.listen); err != nil {
		return err
	}
	if o.address == "" {
		o.address = fmt.Sprintf("belay-webhook.%s.svc:9444", namespace)
	}
	if host, _, err := splitAddress("collector-address", o.address); err != nil {
		return err
	} else if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() || ip == nil && len(validation.IsDNS1123Subdomain(host)) > 0 {
		return usagef("--collector-address %q: sidecars need the name or the address of a host", o.address)
	}
	if o.image == "" || strings.ContainsAny(o.image, " \t\n") {
		return usagef("--sidecar-image %q: must be the name of an image", o.image)
	}
	for flag, q := range map[string]*string{"sidecar-cpu": &o.cpu, "sidecar-memory": &o.memory, "sidecar-ephemeral-storage": &o.ephemeral} {
		v, err := resource.ParseQuantity(*q)
		if err != nil || v.Sign() <= 0 {
			return usagef("--%s %q: must be a quantity above 0, such as 20m or 32Mi", flag, *q)
		}
		if v.RoundUp(resource.Milli); flag != "sidecar-cpu" && v.MilliValue()%1000 != 0 {
			return usagef("--%s %q: must be whole bytes, such as 32Mi", flag, *q)
		}
		*q = v.String() // as the API server will write it
	}
	switch o.ca {
	case caAuto, string(inject.CAConfigMap), string(inject.CAClusterTrustBundle):
		return nil
	}
	return usagef("--sidecar-ca %q: must be auto, %s or %s", o.ca, inject.CAConfigMap, inject.CAClusterTrustBundle)
}

// config is what sidecars are told. The name in the certificate is the Service's, by whichever
// address it is reached.
func (o *sidecarOptions) config(dnsNames []string) inject.Config {
	return inject.Config{
		Image: o.image, Collector: o.address, ServerName: dnsNames[0],
		CPU: o.cpu, Memory: o.memory, EphemeralStorage: o.ephemeral,
	}
}

// source is where sidecars have the CA from.
func (o *sidecarOptions) source(b *facts.Bundles) func() inject.CASource {
	return func() inject.CASource {
		if o.ca == string(inject.CAClusterTrustBundle) || o.ca == caAuto && b.Usable() {
			return inject.CAClusterTrustBundle
		}
		return inject.CAConfigMap
	}
}

// certificates gives the serving certificate.
type certificates func(*tls.ClientHelloInfo) (*tls.Certificate, error)

const (
	// maxConnections is how many connections there are at a time, of some 25 KiB each. 10,000
	// sidecars that report once a minute have 167 handshakes a second, each over in
	// milliseconds.
	maxConnections = 1000
	// collectorIdle is longer than sidecars wait between two reports while they keep their
	// connection.
	collectorIdle = 15 * time.Second
	// drainTimeout bounds the end of reports that are under way: none takes longer.
	drainTimeout = 10 * time.Second
)

// listenCollector makes the HTTPS server of reports. Every Pod of the cluster may reach it, and it
// is part of the process that answers admission: it speaks HTTP/1.1, whose connections cost a
// third of HTTP/2's and have no pings, settings and resets to flood it with. A sidecar never
// has two calls under way, and mostly closes its connection after one.
func listenCollector(address string, certs certificates, handler http.Handler, log logr.Logger) (*server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for reports: %w", err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &server{name: "collector", listener: newCrowd(l, maxConnections), finish: drainTimeout, http: &http.Server{
		Handler: handler, ErrorLog: quiet(log, "collector's server"), Protocols: protocols, ConnState: states, ConnContext: trusting,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certs, NextProtos: []string{"http/1.1"}},
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: collectorIdle, MaxHeaderBytes: 16 << 10,
	}}, nil
}

// splitAddress reads HOST:PORT of a flag.
func splitAddress(flag, addr string) (string, int, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, usagef("--%s %q: %w", flag, addr, err)
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 65535 {
		return "", 0, usagef("--%s %q: the port must be from 1 to 65535", flag, addr)
	}
	return host, n, nil
}
