package naming

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/belay-dev/belay/webhook/client/spawn/names"
)

// Limit is the longest name, in bytes, that belay gives an object, so that everything
// that is named after it has a valid name, too: a DNS label at most, since names end
// up in labels and host names.
func Limit(group, kind string, object map[string]any) int {
	most, _ := derived(group, kind, object)
	if most == 0 {
		return names.MaxLabel
	}
	return most
}

// derived is the longest name of kinds whose controllers derive names or labels from
// it that are limited, and why; 0 for all others.
func derived(group, kind string, object map[string]any) (most int, why string) {
	switch {
	case IsJob(group, kind):
		// The name is the value of the label batch.kubernetes.io/job-name on its Pods, and
		// the Pods of an Indexed Job have NAME-INDEX as their host name (validation of
		// batch/v1).
		if mode, _, _ := unstructured.NestedString(object, "spec", "completionMode"); mode == "Indexed" {
			if n := integer(object, "spec", "completions"); n > 0 {
				digits := len(strconv.FormatInt(n-1, 10))
				return names.MaxLabel - 1 - digits, fmt.Sprintf("its Pods are named after it with an index of %d digits", digits)
			}
		}
		return names.MaxLabel, "it becomes a label of its Pods"
	case group == "batch" && kind == "CronJob":
		// validation of batch/v1: the controller adds 11 characters.
		return names.MaxLabel - 11, "its Jobs are named after it with 11 more characters"
	case group == "apps" && kind == "StatefulSet":
		// The label controller-revision-hash is NAME-HASH, with a hash of up to 10.
		return names.MaxLabel - 11, "its Pods carry it in a label with 11 more characters"
	}
	return 0, ""
}

func integer(object map[string]any, path ...string) int64 {
	v, _, _ := unstructured.NestedFieldNoCopy(object, path...)
	switch n := v.(type) {
	case int64:
		return n
	case float64:
		return int64(n)
	default:
		return 0
	}
}

// CheckName says which rule a name breaks, or nothing.
func CheckName(name, group, kind string, object map[string]any) string {
	if group == "rbac.authorization.k8s.io" {
		// The one group whose names are held to less: "system:reader" is one.
		return strings.Join(content.IsPathSegmentName(name), ", ")
	}
	if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
		return errs[0]
	}
	if group == "" && kind == "Service" {
		if errs := validation.IsDNS1035Label(name); len(errs) > 0 {
			return errs[0]
		}
	}
	if most, why := derived(group, kind, object); most > 0 && len(name) > most {
		return fmt.Sprintf("it has %d characters, and %s, so that at most %d fit", len(name), why, most)
	}
	return ""
}
