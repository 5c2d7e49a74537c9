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
	// podPage is how many Pods are read at once: anybody may put the labels on theirs,
	// and 256 KiB of annotations as well.
	podPage = 10
	// maxPodPages bounds the Pods that are looked at in all. Those beyond are not waited
	// for: a Job of thousands of Pods that all hang is found by the first of them.
	maxPodPages = 20
)

// PodsOf finds the Pods of a Job that still run or are being deleted: of the Job with
// this UID, or, where uid is empty, of whichever Job had the name.
func (o *Objects) PodsOf(ctx context.Context, namespace, job, uid string) naming.PodsFact {
	set := labels.Set{labelJobName: job}
	if uid != "" {
		set = labels.Set{labelControllerUID: uid}
	}
	look := metav1.ListOptions{LabelSelector: set.String()}
	var out naming.PodsFact
	cause := tryHard(ctx, func(ctx context.Context) error {
		out = naming.PodsFact{State: fact.Absent}
		// Nearly always nothing ever had the name: one look, for one Pod.
		had, err := o.pods(ctx, namespace, look, 1, 1)
		if err != nil || len(had) == 0 {
			return err
		}
		running := look
		running.FieldSelector = "status.phase!=Succeeded,status.phase!=Failed"
		for _, only := range []metav1.ListOptions{running, look} {
			found, err := o.pods(ctx, namespace, only, podPage, maxPodPages)
			if err != nil {
				return err
			}
			for _, p := range found {
				// The labels are anybody's to set; of a Job that is there its reference tells.
				if !ofJob(p, job, uid) || (only.FieldSelector == "" && p.deleting == nil) {
					continue
				}
				if out.State == fact.Absent {
					out.State, out.Terminating = fact.Known, true
				}
				out.Terminating = out.Terminating && p.deleting != nil
				note(&out, p)
			}
			if out.State == fact.Known {
				return nil
			}
		}
		return nil
	})
	if cause != fact.CauseNotAsked {
		return naming.PodsFact{Cause: cause}
	}
	return out
}

// livePod is what counts of a Pod.
type livePod struct {
	name     string
	deleting *metav1.Time
	owner    *metav1.OwnerReference
}

// pods reads Pods page by page, and keeps of each only what counts.
func (o *Objects) pods(ctx context.Context, namespace string, options metav1.ListOptions, page int64, pages int) ([]livePod, error) {
	var out []livePod
	options.Limit = page
	for range pages {
		list, err := o.metadata.Resource(pods).Namespace(namespace).List(ctx, options)
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			out = append(out, livePod{list.Items[i].Name, list.Items[i].DeletionTimestamp, metav1.GetControllerOf(&list.Items[i])})
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	return out, nil
}

// ofJob reports whether the Job with that UID, or where it is not known one of that name,
// is the Pod's controller. A Job that is gone may have left its Pods without any: deleting
// one with default options does.
func ofJob(p livePod, job, uid string) bool {
	if uid == "" && p.owner == nil {
		return true
	}
	return p.owner != nil && p.owner.Kind == "Job" && p.owner.Name == job && (uid == "" || string(p.owner.UID) == uid)
}

// note adds a Pod: in front of the others where none has been on its way out for longer.
func note(f *naming.PodsFact, p livePod) {
	switch {
	case p.deleting != nil && (f.Since.IsZero() || p.deleting.Time.Before(f.Since)):
		f.Names, f.Since = append([]string{p.name}, f.Names...), p.deleting.Time
	case len(f.Names) <= naming.MaxPods:
		f.Names = append(f.Names, p.name)
	}
	f.More = len(f.Names) > naming.MaxPods
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
