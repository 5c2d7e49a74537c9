package facts

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
)

// bundleSince is the first kubelet that mounts a ClusterTrustBundle without being told to. On
// an older one a Pod that asks for one never starts.
var bundleSince = version.MustParseGeneric("1.37.0")

const (
	// bundlesEvery is how often it is looked whether ClusterTrustBundles can be mounted, and
	// bundlesRetry how soon again after trouble.
	bundlesEvery = 10 * time.Minute
	bundlesRetry = 10 * time.Second
	// nodePage is how many nodes are read at once; each has some 10 KiB.
	nodePage = 50
)

// Bundles says whether Pods can mount ClusterTrustBundles: the API server serves them, and
// every kubelet knows them. Until that is known they can not.
type Bundles struct {
	Kube   kubernetes.Interface
	Mapper meta.RESTMapper

	usable atomic.Bool
}

// Usable reports whether Pods can mount them.
func (b *Bundles) Usable() bool { return b.usable.Load() }

// Start looks now and then, until the context ends.
func (b *Bundles) Start(ctx context.Context) error {
	for {
		wait := bundlesEvery
		usable, err := b.look(ctx)
		if err != nil {
			wait = bundlesRetry
			logr.FromContextOrDiscard(ctx).V(1).Info("not known whether pods can mount ClusterTrustBundles", "error", err.Error())
		} else {
			b.usable.Store(usable)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (b *Bundles) look(ctx context.Context) (bool, error) {
	kind := certificatesv1.SchemeGroupVersion.WithKind("ClusterTrustBundle")
	if _, err := b.Mapper.RESTMapping(kind.GroupKind(), kind.Version); meta.IsNoMatchError(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	some := false // where there is no node yet, the first may be of any version
	for o := (metav1.ListOptions{Limit: nodePage}); ; {
		nodes, err := b.Kube.CoreV1().Nodes().List(ctx, o)
		if err != nil {
			return false, err
		}
		for i := range nodes.Items {
			v, err := version.ParseGeneric(nodes.Items[i].Status.NodeInfo.KubeletVersion)
			if err != nil || v.LessThan(bundleSince) {
				return false, nil // also a node that has not said yet
			}
		}
		some = some || len(nodes.Items) > 0
		if o.Continue = nodes.Continue; o.Continue == "" {
			return some, nil
		}
	}
}
