package facts

import (
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

// Excluded reports whether belay never looks at a namespace, whatever its labels: its own, and
// those of the system.
func Excluded(namespace, own string) bool {
	return namespace == own || strings.HasPrefix(namespace, "kube-")
}

// Modes tells the mode of a namespace from its label.
type Modes struct {
	cached, live client.Reader
}

// NewModes makes Modes over a cache of namespaces' metadata.
func NewModes(cached, live client.Reader) *Modes { return &Modes{cached: cached, live: live} }

// Mode is the value of the namespace's label, or empty where it has none. An
// error means that it could not be found out.
//
// The API server has matched the label before it called, from its own cache. A
// cached namespace without the label is therefore looked at again, live.
func (m *Modes) Mode(ctx context.Context, namespace string) (string, error) {
	var ns metav1.PartialObjectMetadata
	ns.SetGroupVersionKind(NamespaceKind)
	key := client.ObjectKey{Name: namespace}
	if err := m.cached.Get(ctx, key, &ns); err == nil {
		if mode := ns.Labels[v1alpha1.ModeLabel]; mode == v1alpha1.ModeEnforce || mode == v1alpha1.ModeWarn {
			return mode, nil
		}
	}
	if err := m.live.Get(ctx, key, &ns); err != nil {
		return "", err
	}
	return ns.Labels[v1alpha1.ModeLabel], nil
}
