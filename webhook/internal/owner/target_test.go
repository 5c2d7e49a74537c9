package owner

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFromAnnotation(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 253)
	for name, c := range map[string]struct {
		value string
		want  *Wanted
		// problem is what the message must say, beside the annotation's name.
		problem string
	}{
		"nothing asks for nothing":                 {"", nil, ""},
		"a named group":                            {"batch/v1/Job/build-7", &Wanted{APIVersion: "batch/v1", Kind: "Job", Name: "build-7"}, ""},
		"a group with dots and a beta version":     {"spur.dev/v1beta2/SpurJob/x", &Wanted{APIVersion: "spur.dev/v1beta2", Kind: "SpurJob", Name: "x"}, ""},
		"the core group":                           {"v1/ConfigMap/site", &Wanted{APIVersion: "v1", Kind: "ConfigMap", Name: "site"}, ""},
		"a kind in lower case":                     {"batch/v1/job/build-7", &Wanted{APIVersion: "batch/v1", Kind: "job", Name: "build-7"}, ""},
		"O03: a namespace is kept for the check":   {"batch/v1/Job/other/x", &Wanted{APIVersion: "batch/v1", Kind: "Job", Namespace: "other", Name: "x"}, ""},
		"a namespace in the core group":            {"v1/ConfigMap/other/site", &Wanted{APIVersion: "v1", Kind: "ConfigMap", Namespace: "other", Name: "site"}, ""},
		"a name with a colon, as ClusterRoles are": {"rbac.authorization.k8s.io/v1/ClusterRole/system:node", &Wanted{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: "system:node"}, ""},
		"the longest name":                         {"v1/ConfigMap/" + long, &Wanted{APIVersion: "v1", Kind: "ConfigMap", Name: long}, ""},
		"a name of other letters":                  {"v1/ConfigMap/zürich", &Wanted{APIVersion: "v1", Kind: "ConfigMap", Name: "zürich"}, ""},

		"a name alone":                {"build-7", nil, "has the wrong number of parts"},
		"kind and name alone":         {"Job/build-7", nil, "does not begin with an API group or version"},
		"namespace, kind and name":    {"other-ns/Job/x", nil, "has the wrong number of parts"},
		"a version that is none":      {"batch/1/Job/x", nil, `has no API version where "1" is`},
		"a version in capitals":       {"batch/V1/Job/x", nil, `has no API version where "V1" is`},
		"too many parts":              {"batch/v1/Job/ns/x/y", nil, "has the wrong number of parts"},
		"an empty name":               {"batch/v1/Job/", nil, "has an invalid name"},
		"an empty kind":               {"batch/v1//x", nil, "has an invalid kind"},
		"an empty namespace":          {"batch/v1/Job//x", nil, "has an invalid namespace"},
		"a namespace of other signs":  {"batch/v1/Job/../x", nil, "has an invalid namespace"},
		"a name that climbs":          {"batch/v1/Job/..", nil, "has an invalid name"},
		"a name with a percent sign":  {"batch/v1/Job/a%2fb", nil, "has an invalid name"},
		"a name that is too long":     {"v1/ConfigMap/" + long + "n", nil, "has an invalid name"},
		"a kind with a newline":       {"v1/Config\nMap/x", nil, "has an invalid kind"},
		"a group in capitals":         {"Batch/v1/Job/x", nil, "does not begin with an API group or version"},
		"an empty group":              {"/v1/Job/x", nil, "does not begin with an API group or version"},
		"a value that is far too big": {strings.Repeat("é", 5000), nil, "is longer than 900 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := FromAnnotation(c.value)
			if diff := cmp.Diff(c.want, got.Owner); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if c.problem == "" {
				if got.Problem != "" || got.Reason != "" {
					t.Errorf("unexpected problem: %+v", got)
				}
				return
			}
			if got.Reason != ReasonAnnotationInvalid || !strings.Contains(got.Problem, c.problem) || !strings.HasPrefix(got.Problem, "annotation belay.dev/owner: ") {
				t.Errorf("got %q (%s), want %q", got.Problem, got.Reason, c.problem)
			}
			if len(got.Problem) > 400 {
				t.Errorf("message of %d bytes", len(got.Problem))
			}
		})
	}
}

func FuzzFromAnnotation(f *testing.F) {
	for _, s := range []string{"", "v1", "v1/ConfigMap/site", "batch/v1/Job/ns/x", "/", "////", "batch", "v1/\xff/x", "a/v1/K/\n", strings.Repeat("é", 600)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := FromAnnotation(s)
		if (got.Owner == nil) != (got.Reason != "" || s == "") {
			t.Fatalf("neither an owner nor a reason: %+v", got)
		}
		if strings.ContainsAny(got.Problem, "\n\r") {
			t.Errorf("message of two lines: %q", got.Problem)
		}
		if w := got.Owner; w != nil {
			parts := []string{w.APIVersion, w.Kind, w.Name}
			if w.Namespace != "" {
				parts = []string{w.APIVersion, w.Kind, w.Namespace, w.Name}
			}
			if back := strings.Join(parts, "/"); back != s {
				t.Errorf("%q is read as %q", s, back)
			}
		}
	})
}
