package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	discoveryv1client "k8s.io/client-go/kubernetes/typed/discovery/v1"
)

// Ports of the replicas that serve the certificate, by the names that the Service has for them.
var tlsPorts = []string{"https", "reports"}

const (
	// handshakeTimeout bounds the connection to one replica.
	handshakeTimeout = 5 * time.Second
	// handshakes are how many there are at a time.
	handshakes = 8
)

// errNoSlices is that there is nothing that says which replicas there are.
var errNoSlices = errors.New("the Service of the replicas has no EndpointSlices; without it nobody knows which replicas there are")

// errNoAddresses is that nobody was asked, which proves nothing.
var errNoAddresses = fmt.Errorf("the EndpointSlices of the replicas name no address with a port named %s", strings.Join(tlsPorts, " or "))

// Replicas are the addresses of a Service that do not serve a certificate of a CA. Its
// EndpointSlices name all of them, ready or not.
func Replicas(slicesOf discoveryv1client.EndpointSliceInterface, service string) Lacks {
	return func(ctx context.Context, ca *x509.Certificate) ([]string, error) {
		list, err := slicesOf.List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
		if err != nil {
			return nil, fmt.Errorf("listing the replicas of Service %q: %w", service, err)
		}
		if len(list.Items) == 0 {
			return nil, errNoSlices
		}
		addresses := addressesOf(list.Items)
		if len(addresses) == 0 {
			return nil, errNoAddresses
		}
		return lackingLeaf(ctx, addresses, ca), nil
	}
}

// addressesOf are where replicas serve.
func addressesOf(items []discoveryv1.EndpointSlice) []string {
	var out []string
	for i := range items {
		if items[i].AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for _, p := range items[i].Ports {
			if p.Port == nil || p.Name == nil || !slices.Contains(tlsPorts, *p.Name) {
				continue
			}
			for _, e := range items[i].Endpoints {
				for _, a := range e.Addresses {
					out = append(out, net.JoinHostPort(a, strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func lackingLeaf(ctx context.Context, addresses []string, ca *x509.Certificate) []string {
	found := make([]string, len(addresses))
	places := make(chan struct{}, handshakes)
	var all sync.WaitGroup
	for i, a := range addresses {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			leaf, err := Served(ctx, a)
			switch {
			case err != nil:
				found[i] = fmt.Sprintf("%s does not answer (%v)", a, err)
			case leaf.CheckSignatureFrom(ca) != nil:
				found[i] = a + " serves a certificate of another CA"
			}
		})
	}
	all.Wait()
	return slices.DeleteFunc(found, func(s string) bool { return s == "" })
}

// Served is the certificate that a server shows. It need not be one that is trusted, and the
// server may want one of the client's, which there is none: it has shown its own by then.
func Served(ctx context.Context, address string) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	var leaf *x509.Certificate
	d := tls.Dialer{Config: &tls.Config{
		MinVersion: tls.VersionTLS12,
		//nolint:gosec // it is looked at, and nothing is sent
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			leaf = s.PeerCertificates[0]
			return nil
		},
	}}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err == nil {
		_ = conn.Close()
	}
	if leaf == nil {
		return nil, err
	}
	return leaf, nil
}
