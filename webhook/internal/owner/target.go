package owner

import (
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/wording"
)

// version matches API versions, which tells "v1/ConfigMap/site" (core group) from
// "batch/v1/Job/build": no API group is named like a version.
var version = regexp.MustCompile(`^v[1-9][0-9]*((alpha|beta)[1-9][0-9]*)?$`)

// maxAnnotation bounds the annotation: group 253, version and kind 63, two names 253.
const maxAnnotation = 900

// FromAnnotation reads the annotation belay.dev/owner, of the form
// [GROUP/]VERSION/KIND/[NAMESPACE/]NAME. A value that cannot be read is a Problem:
// whoever wrote it wanted an owner, and silently leaving the object without one
// would be the failure that belay is there to prevent.
func FromAnnotation(value string) Target {
	bad := func(why string) Target {
		return Target{
			Reason:  ReasonAnnotationInvalid,
			Problem: fmt.Sprintf("annotation %s: %q %s; write [GROUP/]VERSION/KIND/NAME, such as \"batch/v1/Job/build-7\"", v1alpha1.OwnerAnnotation, wording.Clip(value, 100), why),
		}
	}
	if value == "" {
		return Target{}
	}
	if len(value) > maxAnnotation {
		return bad(fmt.Sprintf("is longer than %d bytes", maxAnnotation))
	}
	parts := strings.Split(value, "/")
	group := ""
	if !version.MatchString(parts[0]) {
		group, parts = parts[0], parts[1:]
		if errs := validation.IsDNS1123Subdomain(group); len(errs) > 0 {
			return bad("does not begin with an API group or version")
		}
	}
	if len(parts) < 3 || len(parts) > 4 {
		return bad("has the wrong number of parts")
	}
	if !version.MatchString(parts[0]) {
		return bad(fmt.Sprintf("has no API version where %q is", wording.Clip(parts[0], 63)))
	}
	w := &Wanted{APIVersion: parts[0], Kind: parts[1], Name: parts[len(parts)-1]}
	if group != "" {
		w.APIVersion = group + "/" + parts[0]
	}
	if len(parts) == 4 {
		w.Namespace = parts[2]
		if errs := validation.IsDNS1123Label(w.Namespace); len(errs) > 0 {
			return bad("has an invalid namespace")
		}
	}
	if errs := validation.IsDNS1035Label(strings.ToLower(w.Kind)); len(errs) > 0 {
		return bad("has an invalid kind")
	}
	if w.Name == "" || len(w.Name) > 253 || len(content.IsPathSegmentName(w.Name)) > 0 {
		return bad("has an invalid name")
	}
	if why := NeverOwner(group, w.Kind); why != "" {
		return bad(why)
	}
	return Target{Owner: w}
}

// NeverOwner says why a kind can never be asked for as an owner: those that belay
// reads for its own needs would tell whoever names them what they may not read
// themselves.
func NeverOwner(group, kind string) string {
	switch {
	case group == v1alpha1.GroupVersion.Group:
		return "names a kind of belay's own"
	case group == "" && strings.EqualFold(kind, "Namespace"):
		return "names a Namespace, which owns what is in it anyway"
	default:
		return ""
	}
}

// String is how messages speak of a wanted owner: job "build", spurjob with labels a=b.
func (w Wanted) String() string {
	if w.Name != "" {
		return fmt.Sprintf("%s %q", strings.ToLower(w.Kind), w.Name)
	}
	return fmt.Sprintf("%s with labels %s", strings.ToLower(w.Kind), formatLabels(w.Labels))
}

// Group is the API group of the wanted owner.
func (w Wanted) Group() string { return groupOf(w.APIVersion) }

// AnchorOwner is the wanted owner as an Anchor names it.
func (w Wanted) AnchorOwner() v1alpha1.AnchorOwner {
	return v1alpha1.AnchorOwner{APIVersion: w.APIVersion, Kind: w.Kind, Name: w.Name, MatchLabels: w.Labels}
}

func groupOf(apiVersion string) string { return schema.FromAPIVersionAndKind(apiVersion, "").Group }

// maxWhy bounds what of an error goes into a message: it may quote the object, and
// ends in a warning header, of which the API server keeps 4 KiB in all.
const maxWhy = 1024
