package facts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/owner"
)

const (
	// attempts is how often one look-up is tried within its deadline.
	attempts = 3
	// pause lies between two tries: an etcd leader election takes about a second,
	// a dropped connection no time at all.
	pause = 50 * time.Millisecond
	// minAttempt is the shortest time worth a try: a GET takes single milliseconds.
	minAttempt = 20 * time.Millisecond
	// maxCandidates bounds a look-up by labels. Two are enough to refuse to guess;
	// more are read since some may be terminating.
	maxCandidates = 20
	// forget is how long a kind that is not served, or that belay may not read, is
	// remembered, so that objects which name it cost no call each.
	forget = 30 * time.Second
	// maxRemembered bounds that memory: anybody can name any kind.
	maxRemembered = 1024
)

// Reader looks live objects up, metadata only, in protobuf where the server has it.
type Reader struct {
	client metadata.Interface
	mapper meta.RESTMapper

	mu         sync.Mutex
	unserved   map[schema.GroupVersionKind]time.Time
	unreadable map[schema.GroupVersionResource]time.Time
}

// NewReader makes a Reader. The mapper's own calls are not bound by a context:
// give it a client with a time-out.
func NewReader(client metadata.Interface, mapper meta.RESTMapper) *Reader {
	return &Reader{
		client: client, mapper: mapper,
		unserved:   map[schema.GroupVersionKind]time.Time{},
		unreadable: map[schema.GroupVersionResource]time.Time{},
	}
}

// Query asks for one object by name, or for those that carry labels.
type Query struct {
	Resource v1alpha1.ResolvedResource
	// Namespace is ignored where the resource is cluster-scoped.
	Namespace string
	Name      string
	Labels    map[string]string
}

// Find looks an object up, live: an owner's UID out of a cache may be stale, and a
// stale UID is data loss. Transient errors are tried again until the context ends.
func (r *Reader) Find(ctx context.Context, q Query) owner.Fact {
	var f owner.Fact
	cause := tryHard(ctx, func(ctx context.Context) (err error) {
		f, err = r.ask(ctx, q)
		return err
	})
	if cause != fact.CauseNotAsked {
		return owner.Fact{Cause: cause}
	}
	return f
}

// ask asks once.
func (r *Reader) ask(ctx context.Context, q Query) (owner.Fact, error) {
	client := metadata.ResourceInterface(r.client.Resource(ResourceOf(q.Resource)))
	if q.Resource.Namespaced {
		client = r.client.Resource(ResourceOf(q.Resource)).Namespace(q.Namespace)
	}
	if q.Name != "" {
		m, err := client.Get(ctx, q.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && !IsNoResource(err) {
			return owner.Fact{State: fact.Absent}, nil
		}
		if err != nil {
			return owner.Fact{}, err
		}
		if m.UID == "" {
			// Some aggregated APIs serve objects that were never stored. They cannot own
			// anything: the API server refuses a reference without a UID.
			return owner.Fact{Cause: fact.CauseServer}, nil
		}
		return owner.Fact{State: fact.Known, Objects: []owner.Object{objectOf(q.Resource, m)}}, nil
	}
	list, err := client.List(ctx, metav1.ListOptions{LabelSelector: labels.SelectorFromSet(q.Labels).String(), Limit: maxCandidates})
	if err != nil {
		return owner.Fact{}, err
	}
	f := owner.Fact{State: fact.Known, Truncated: list.Continue != ""}
	for i := range list.Items {
		f.Objects = append(f.Objects, objectOf(q.Resource, &list.Items[i]))
	}
	if len(f.Objects) == 0 && !f.Truncated {
		f.State = fact.Absent
	}
	return f, nil
}

// Attempt gives one try three fifths of the time that is left, so that a call that
// hangs leaves time for another one.
func Attempt(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	share := time.Until(deadline) * 3 / 5
	if !ok || share < minAttempt {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, share)
}

// objectOf takes the coordinates from the path that was read, which are the
// object's own, and the UID from what came back.
func objectOf(r v1alpha1.ResolvedResource, m *metav1.PartialObjectMetadata) owner.Object {
	return owner.Object{
		APIVersion: ResourceOf(r).GroupVersion().String(), Kind: r.Kind, Name: m.Name, UID: m.UID,
		Terminating: m.DeletionTimestamp != nil,
	}
}

// ResourceOf is a resolved resource as clients name it.
func ResourceOf(r v1alpha1.ResolvedResource) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Resource}
}

// Locate asks the API server itself, past every cache, where it serves a kind, in
// whatever version. It returns ErrNoKind only on the server's own word that there is
// none: a group that does not exist, or one whose versions all answered and do not
// list the kind. A group that is away for a moment, such as that of an aggregated
// API server, is another error: nothing may be deleted for that.
func (r *Reader) Locate(ctx context.Context, disc rest.Interface, group, kind string) (v1alpha1.ResolvedResource, error) {
	versions := []string{"v1"}
	prefix := "/api/"
	if group != "" {
		prefix = "/apis/" + group + "/"
		var g metav1.APIGroup
		err := getJSON(ctx, disc, "/apis/"+group, &g)
		if apierrors.IsNotFound(err) {
			return v1alpha1.ResolvedResource{}, ErrNoKind
		}
		if err != nil {
			return v1alpha1.ResolvedResource{}, fmt.Errorf("asking for group %s: %w", group, err)
		}
		versions = nil
		for _, v := range g.Versions {
			versions = append(versions, v.Version)
		}
	}
	for _, v := range versions {
		var list metav1.APIResourceList
		if err := getJSON(ctx, disc, prefix+v, &list); err != nil {
			return v1alpha1.ResolvedResource{}, fmt.Errorf("asking for %s%s: %w", prefix, v, err)
		}
		for _, res := range list.APIResources {
			if strings.EqualFold(res.Kind, kind) && !strings.Contains(res.Name, "/") {
				return v1alpha1.ResolvedResource{Group: group, Version: v, Kind: res.Kind, Resource: res.Name, Namespaced: res.Namespaced}, nil
			}
		}
	}
	return v1alpha1.ResolvedResource{}, ErrNoKind
}

func getJSON(ctx context.Context, c rest.Interface, path string, into any) error {
	raw, err := c.Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// ErrNoKind says that the API server serves no such kind.
var ErrNoKind = errors.New("no such kind")

// Resolve finds the resource of a kind. It returns ErrNoKind where the API server
// serves none, and any other error where that could not be found out.
func (r *Reader) Resolve(apiVersion, kind string) (v1alpha1.ResolvedResource, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return v1alpha1.ResolvedResource{}, ErrNoKind
	}
	if recall(r, r.unserved, gv.WithKind(kind)) {
		return v1alpha1.ResolvedResource{}, ErrNoKind
	}
	return r.resolve(gv, kind)
}

// Fresh resolves kinds without the memory of those that were not served a moment ago: for
// whoever is told when a kind comes, and asks seldom.
type Fresh struct{ *Reader }

// Resolve is Reader's, past that memory.
func (f Fresh) Resolve(apiVersion, kind string) (v1alpha1.ResolvedResource, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return v1alpha1.ResolvedResource{}, ErrNoKind
	}
	return f.resolve(gv, kind)
}

func (r *Reader) resolve(gv schema.GroupVersion, kind string) (v1alpha1.ResolvedResource, error) {
	gvk := gv.WithKind(kind)
	m, err := r.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) {
		remember(r, r.unserved, gvk)
		return v1alpha1.ResolvedResource{}, ErrNoKind
	}
	if err != nil {
		return v1alpha1.ResolvedResource{}, err
	}
	// The mapper knows kinds in lower case, too; what is written into references is
	// the kind as it is served.
	if served, err := r.mapper.KindFor(m.Resource); err == nil && strings.EqualFold(served.Kind, kind) {
		kind = served.Kind
	}
	return v1alpha1.ResolvedResource{
		Group: gv.Group, Version: gv.Version, Kind: kind,
		Resource: m.Resource.Resource, Namespaced: m.Scope.Name() == meta.RESTScopeNameNamespace,
	}, nil
}

// Within gives up on a call that takes no context when the context ends. The call
// itself goes on in the background until its own time-out, which it must have.
func Within[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var zero T
		return zero, ctx.Err()
	}
}

// maxLinted bounds the look-ups for the client's own references in one request.
const maxLinted = 8

// References looks up the owners that a client's references name. Only the first
// few are looked at, and only kinds that belay may read: for others nothing is
// claimed.
func (r *Reader) References(ctx context.Context, namespace string, refs []metav1.OwnerReference) []owner.ReferenceFact {
	var out []owner.ReferenceFact
	for i, ref := range refs {
		if i == maxLinted || ctx.Err() != nil {
			break
		}
		res, err := Within(ctx, func() (v1alpha1.ResolvedResource, error) { return r.Resolve(ref.APIVersion, ref.Kind) })
		if errors.Is(err, ErrNoKind) {
			out = append(out, owner.ReferenceFact{Index: i, Fact: owner.Fact{Cause: fact.CauseNoKind}})
			continue
		}
		if err != nil || recall(r, r.unreadable, ResourceOf(res)) {
			continue
		}
		f := owner.ReferenceFact{Index: i, Scope: ScopeOf(res)}
		if res.Namespaced && namespace == "" {
			f.Fact.State = fact.Absent // nothing to look up: it can never be an owner
			out = append(out, f)
			continue
		}
		f.Fact = r.Find(ctx, Query{Resource: res, Namespace: namespace, Name: ref.Name})
		if f.Fact.Cause == fact.CauseForbidden {
			remember(r, r.unreadable, ResourceOf(res))
		}
		out = append(out, f)
	}
	return out
}

// ScopeOf tells where a resource's objects live.
func ScopeOf(r v1alpha1.ResolvedResource) owner.Scope {
	if r.Namespaced {
		return owner.ScopeNamespaced
	}
	return owner.ScopeCluster
}

// CauseOf sorts an error of the API server into the closed list of causes.
func CauseOf(err error) fact.Cause {
	var netErr net.Error
	switch {
	case err == nil:
		return fact.CauseNotAsked
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return fact.CauseServer // a 403, but not for want of a right
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return fact.CauseForbidden
	case IsNoResource(err), meta.IsNoMatchError(err), errors.Is(err, ErrNoKind):
		return fact.CauseNoKind
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err), errors.As(err, &netErr) && netErr.Timeout():
		return fact.CauseTimeout
	default:
		return fact.CauseServer
	}
}

// IsNoResource tells the 404 of a path that is not served from the 404 of an
// object that does not exist: only the latter has the object's name in its
// details. Taking one for the other would make an owner Absent that may well exist.
func IsNoResource(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		return false
	}
	d := status.Status().Details
	if d == nil || d.Name == "" {
		return true
	}
	for _, c := range d.Causes {
		if c.Type == metav1.CauseTypeUnexpectedServerResponse {
			return true
		}
	}
	return false
}

// Pause waits for a moment before another try, and reports whether the context
// still runs.
func Pause(ctx context.Context) bool {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func recall[K comparable](r *Reader, m map[K]time.Time, k K) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := m[k]
	return ok && time.Since(at) < forget
}

func remember[K comparable](r *Reader, m map[K]time.Time, k K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(m) >= maxRemembered {
		clear(m)
	}
	m[k] = time.Now()
}
