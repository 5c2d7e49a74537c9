package facts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/fact"
	"github.com/belay-dev/belay/webhook/internal/naming"
)

// Objects reads what a create under a taken name is answered from. All of it is live:
// a cached object that is gone, or finished since, would give a wrong answer.
type Objects struct {
	dynamic  dynamic.Interface
	metadata metadata.Interface
	reviews  client.Writer
	rights   *utilcache.LRUExpireCache
}

// NewObjects makes Objects. reviews creates SubjectAccessReviews.
func NewObjects(d dynamic.Interface, m metadata.Interface, reviews client.Writer) *Objects {
	return &Objects{dynamic: d, metadata: m, reviews: reviews, rights: utilcache.NewLRUExpireCache(maxRights)}
}

// Existing reads an object. It is nil where there is none, with a cause where that
// could not be found out. Transient errors are tried again until the context ends.
func (o *Objects) Existing(ctx context.Context, res v1alpha1.ResolvedResource, namespace, name string) (*unstructured.Unstructured, fact.State, fact.Cause) {
	var found *unstructured.Unstructured
	cause := tryHard(ctx, func(ctx context.Context) (err error) {
		var c dynamic.ResourceInterface = o.dynamic.Resource(ResourceOf(res))
		if res.Namespaced {
			c = o.dynamic.Resource(ResourceOf(res)).Namespace(namespace)
		}
		found, err = c.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && !IsNoResource(err) {
			found, err = nil, nil
		}
		return err
	})
	switch {
	case cause != fact.CauseNotAsked:
		return nil, fact.Unknown, cause
	case found == nil:
		return nil, fact.Absent, ""
	default:
		return found, fact.Known, ""
	}
}

// tryHard tries a call again while the trouble may pass and there is time.
func tryHard(ctx context.Context, call func(context.Context) error) fact.Cause {
	var err error
	for try := range attempts {
		if err = once(ctx, try < attempts-1, call); err == nil {
			return fact.CauseNotAsked
		}
		if c := CauseOf(err); c == fact.CauseForbidden || c == fact.CauseNoKind || !Pause(ctx) {
			break
		}
	}
	return CauseOf(err)
}

// once calls with a share of the time that is left, so that one lost packet does not
// use up all of it.
func once(ctx context.Context, share bool, call func(context.Context) error) error {
	if share {
		var cancel context.CancelFunc
		ctx, cancel = Attempt(ctx)
		defer cancel()
	}
	return call(ctx)
}

var pods = corev1.SchemeGroupVersion.WithResource("pods")

const (
	// labelJobName and labelControllerUID are what the Job controller puts on Pods.
	labelJobName       = "batch.kubernetes.io/job-name"
	labelControllerUID = "batch.kubernetes.io/controller-uid"
	// maxFinishedPods bounds the Pods that are looked at for ones that are being
	// deleted although they have ended, which takes a finalizer.
	maxFinishedPods = 500
)

// PodsOf finds the Pods of a Job that still run or are being deleted: of the Job with
// this UID, or, where uid is empty, of whichever Job had the name.
func (o *Objects) PodsOf(ctx context.Context, namespace, job, uid string) naming.PodsFact {
	set := labels.Set{labelJobName: job}
	if uid != "" {
		set = labels.Set{labelControllerUID: uid}
	}
	var out naming.PodsFact
	cause := tryHard(ctx, func(ctx context.Context) error {
		out = naming.PodsFact{State: fact.Absent}
		if uid == "" {
			// Nearly always nothing ever had the name. Whatever the API server has in memory
			// will do to see that: Pods of a Job that is gone are older than its deletion. A
			// consistent list waits for that memory to catch up, some 100 ms on a busy server.
			had, err := o.metadata.Resource(pods).Namespace(namespace).List(ctx, metav1.ListOptions{LabelSelector: set.String(), ResourceVersion: "0"})
			if err != nil || len(had.Items) == 0 {
				return err
			}
		}
		running, err := o.metadata.Resource(pods).Namespace(namespace).List(ctx, metav1.ListOptions{
			LabelSelector: set.String(), FieldSelector: "status.phase!=Succeeded,status.phase!=Failed", Limit: naming.MaxPods + 1,
		})
		if err != nil {
			return err
		}
		if len(running.Items) > 0 {
			out.State, out.More, out.Terminating = fact.Known, running.Continue != "", true
			for _, p := range running.Items {
				note(&out, p)
				out.Terminating = out.Terminating && p.DeletionTimestamp != nil
			}
			return nil
		}
		ended, err := o.metadata.Resource(pods).Namespace(namespace).List(ctx, metav1.ListOptions{LabelSelector: set.String(), Limit: maxFinishedPods})
		if err != nil {
			return err
		}
		for _, p := range ended.Items {
			if p.DeletionTimestamp != nil {
				out.State, out.Terminating = fact.Known, true
				note(&out, p)
			}
		}
		return nil
	})
	if cause != fact.CauseNotAsked {
		return naming.PodsFact{Cause: cause}
	}
	return out
}

// note adds a Pod: in front of the others where none has been on its way out for longer.
func note(f *naming.PodsFact, p metav1.PartialObjectMetadata) {
	if d := p.DeletionTimestamp; d != nil && (f.Since.IsZero() || d.Time.Before(f.Since)) {
		f.Names, f.Since = append([]string{p.Name}, f.Names...), d.Time
		return
	}
	f.Names = append(f.Names, p.Name)
}

const (
	// maxRights bounds what is remembered of rights.
	maxRights = 4096
	// A right counts for so long after it was asked for. Lost rights matter more than
	// granted ones, but who waits for a grant tries again within seconds.
	rightFor, noRightFor = 10 * time.Second, 2 * time.Second
)

// MayDelete reports whether a user may delete an object: the one who creates must have
// the right to what belay does for them.
func (o *Objects) MayDelete(ctx context.Context, user authenticationv1.UserInfo, res v1alpha1.ResolvedResource, namespace, name string) naming.RightFact {
	key, err := rightKey(user, res, namespace, name)
	if err != nil {
		return naming.RightFact{Cause: fact.CauseServer}
	}
	if allowed, ok := o.rights.Get(key); ok {
		return rightOf(allowed == true)
	}
	var review *authorizationv1.SubjectAccessReview
	cause := tryHard(ctx, func(ctx context.Context) error {
		review = &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, Groups: user.Groups, UID: user.UID, Extra: extra(user.Extra),
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: "delete", Group: res.Group, Version: res.Version, Resource: res.Resource, Namespace: namespace, Name: name,
			},
		}}
		return o.reviews.Create(ctx, review)
	})
	if cause != fact.CauseNotAsked {
		return naming.RightFact{Cause: cause}
	}
	lasting := noRightFor
	if review.Status.Allowed {
		lasting = rightFor
	}
	o.rights.Add(key, review.Status.Allowed, lasting)
	return rightOf(review.Status.Allowed)
}

func rightOf(allowed bool) naming.RightFact {
	if allowed {
		return naming.RightFact{State: fact.Known}
	}
	return naming.RightFact{State: fact.Absent}
}

func extra(in map[string]authenticationv1.ExtraValue) map[string]authorizationv1.ExtraValue {
	out := map[string]authorizationv1.ExtraValue{}
	for k, v := range in {
		out[k] = authorizationv1.ExtraValue(v)
	}
	return out
}

// rightKey is everything that the right depends on.
func rightKey(user authenticationv1.UserInfo, res v1alpha1.ResolvedResource, namespace, name string) (string, error) {
	raw, err := json.Marshal([]any{user, res, namespace, name})
	if err != nil {
		return "", fmt.Errorf("encoding the user: %w", err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}
