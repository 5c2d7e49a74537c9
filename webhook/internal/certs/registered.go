package certs

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/entries"
)

// Entry is how the API server is to call belay.
type Entry struct {
	// Kind is that of the configuration which has the entry: both may have one of its name.
	Kind   string
	Name   string
	Client admissionregistrationv1.WebhookClientConfig
}

// Registered reads belay's entries of both webhook configurations. Entries that others have
// added stay where they are: belay-controller does not change them, so nothing may wait until
// they trust belay's certificate.
func Registered(ctx context.Context, live client.Reader) ([]Entry, error) {
	const mutating, validating = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
	var out []Entry
	add := func(kind, name string, c admissionregistrationv1.WebhookClientConfig) {
		if entries.Ours(name) {
			out = append(out, Entry{kind, name, c})
		}
	}
	key := client.ObjectKey{Name: v1alpha1.ConfigurationName}
	var m admissionregistrationv1.MutatingWebhookConfiguration
	if err := live.Get(ctx, key, &m); err == nil {
		for i := range m.Webhooks {
			add(mutating, m.Webhooks[i].Name, m.Webhooks[i].ClientConfig)
		}
	} else if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading the %s: %w", mutating, err)
	}
	var v admissionregistrationv1.ValidatingWebhookConfiguration
	if err := live.Get(ctx, key, &v); err == nil {
		for i := range v.Webhooks {
			add(validating, v.Webhooks[i].Name, v.Webhooks[i].ClientConfig)
		}
	} else if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading the %s: %w", validating, err)
	}
	return out, nil
}

// Lacks says who does not trust a CA, or does not serve a certificate of it; nil when all do.
type Lacks func(ctx context.Context, ca *x509.Certificate) ([]string, error)

// Registrations are the entries that do not trust a CA.
func Registrations(live client.Reader) Lacks {
	return func(ctx context.Context, ca *x509.Certificate) ([]string, error) {
		all, err := Registered(ctx, live)
		if err != nil {
			return nil, err
		}
		var out []string
		for _, e := range all {
			if !slices.ContainsFunc(Bundle(e.Client.CABundle), ca.Equal) {
				out = append(out, e.Name)
			}
		}
		return out, nil
	}
}

// few are the first names of a list, for a message.
func few(all []string) string {
	const most = 3
	if len(all) <= most {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
}
