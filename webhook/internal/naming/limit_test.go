package naming

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"

	"github.com/belay-dev/belay/webhook/client/spawn/names"
)

// indexed is an Indexed Job.
func indexed(completions string) string {
	return `{"spec":{"completionMode":"Indexed","completions":` + completions + `}}`
}

func TestLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		group, kind, object string
		want                int
	}{
		"N02: a Job's name becomes a label":            {"batch", "Job", `{}`, 63},
		"N04: one index":                               {"batch", "Job", indexed("1"), 61},
		"N04: ten indexes have one digit":              {"batch", "Job", indexed("10"), 61},
		"N04: eleven have two":                         {"batch", "Job", indexed("11"), 60},
		"N04: 100000 indexes have five digits":         {"batch", "Job", indexed("100000"), 57},
		"N04: 100001 have six":                         {"batch", "Job", indexed("100001"), 56},
		"N04: more indexes than a Job may have":        {"batch", "Job", indexed("9223372036854775807"), 43},
		"N04: a Job that counts and has no indexes":    {"batch", "Job", `{"spec":{"completionMode":"NonIndexed","completions":100000}}`, 63},
		"N04: completions that are none":               {"batch", "Job", indexed("-5"), 63},
		"N04: completions that are missing":            {"batch", "Job", `{"spec":{"completionMode":"Indexed"}}`, 63},
		"N04: completions that are no number":          {"batch", "Job", indexed(`"100000"`), 63},
		"N04: completions that are a fraction":         {"batch", "Job", indexed("100000.5"), 57},
		"N04: completions beyond every integer":        {"batch", "Job", indexed("1e300"), 63},
		"N04: a StatefulSet and a hash become a label": {"apps", "StatefulSet", `{}`, 52},
		"N04: a CronJob's name is part of its Jobs'":   {"batch", "CronJob", `{}`, 52},
		"a Service's name is a DNS label":              {"", "Service", `{}`, 63},
		"a custom resource's name is held to a label":  {"example.com", "Train", `{}`, 63},
		"a spec that is no object":                     {"batch", "Job", `{"spec":7}`, 63},
		"no object":                                    {"batch", "Job", `null`, 63},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Limit(c.group, c.kind, objectOf(t, c.object)); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

// objectOf decodes an object with integers kept as such, as reviews are.
func objectOf(t *testing.T, raw string) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(raw))
	d.UseNumber()
	var out map[string]any
	if err := d.Decode(&out); err != nil {
		t.Fatal(err)
	}
	numbers(out)
	return out
}

func numbers(m map[string]any) {
	for k, v := range m {
		switch v := v.(type) {
		case json.Number:
			if n, err := v.Int64(); err == nil {
				m[k] = n
			} else if f, err := v.Float64(); err == nil {
				m[k] = f
			}
		case map[string]any:
			numbers(v)
		}
	}
}

func TestCheckName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 64)
	for title, c := range map[string]struct {
		name, group, kind, object string
		want                      string // part of the rule that it breaks; empty for none
	}{
		"a label":                                 {"restore-a", "batch", "Job", `{}`, ""},
		"a subdomain":                             {"restore.a", "example.com", "Train", `{}`, ""},
		"capitals":                                {"Restore", "batch", "Job", `{}`, "lower case alphanumeric"},
		"a dash at the end":                       {"restore-", "batch", "Job", `{}`, "lower case alphanumeric"},
		"a space":                                 {"re store", "batch", "Job", `{}`, "lower case alphanumeric"},
		"a line break":                            {"restore\n", "batch", "Job", `{}`, "lower case alphanumeric"},
		"another script":                          {"日本", "batch", "Job", `{}`, "lower case alphanumeric"},
		"N03: 253 bytes":                          {strings.Repeat("a", 253), "example.com", "Train", `{}`, ""},
		"N03: 254 bytes":                          {strings.Repeat("a", 254), "example.com", "Train", `{}`, "no more than 253"},
		"N02: a Job's name of 64 characters":      {long, "batch", "Job", `{}`, "it has 64 characters, and it becomes a label of its Pods, so that at most 63 fit"},
		"N02: a Job's name of 63 characters":      {long[1:], "batch", "Job", `{}`, ""},
		"N04: 60 characters and 100000 indexes":   {long[4:], "batch", "Job", indexed("100000"), "it has 60 characters, and its Pods are named after it with an index of 5 digits, so that at most 57 fit"},
		"N04: 57 characters and 100000 indexes":   {long[7:], "batch", "Job", indexed("100000"), ""},
		"N04: a StatefulSet of 58 characters":     {long[6:], "apps", "StatefulSet", `{}`, "it has 58 characters, and its Pods carry it in a label with 11 more characters, so that at most 52 fit"},
		"N04: a CronJob of 53 characters":         {long[11:], "batch", "CronJob", `{}`, "it has 53 characters, and its Jobs are named after it with 11 more characters, so that at most 52 fit"},
		"N04: a CronJob of 52 characters":         {long[12:], "batch", "CronJob", `{}`, ""},
		"N04: a Service that begins with a digit": {"9lives", "", "Service", `{}`, "a DNS-1035 label"},
		"a Service with a dot":                    {"a.b", "", "Service", `{}`, "a DNS-1035 label"},
		"a Service of 64 characters":              {long, "", "Service", `{}`, "no more than 63"},
		"a Service":                               {"web", "", "Service", `{}`, ""},
		"a Service of another group":              {"9lives", "serving.knative.dev", "Service", `{}`, ""},
		"a Role may have a colon":                 {"team:reader", "rbac.authorization.k8s.io", "Role", `{}`, ""},
		"a ClusterRole may have capitals":         {"system:Reader", "rbac.authorization.k8s.io", "ClusterRole", `{}`, ""},
		"a Role is a segment of a path":           {"team/reader", "rbac.authorization.k8s.io", "Role", `{}`, "may not contain '/'"},
		"a Role is not the path above":            {"..", "rbac.authorization.k8s.io", "Role", `{}`, "may not be '..'"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			got := CheckName(c.name, c.group, c.kind, objectOf(t, c.object))
			if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// FuzzEveryGeneratedNameIsValid holds names to the API's own validation, and what is
// derived of them, too.
func FuzzEveryGeneratedNameIsValid(f *testing.F) {
	for _, prefix := range []string{"", "restore", "9lives", "---", strings.Repeat("a", 253), strings.Repeat("a", 51) + "-x", strings.Repeat("a", 51) + ".x", "Ünï", "日本", "\xff\x00", strings.Repeat("é", 40)} {
		for _, completions := range []int64{0, 1, 100000, 1 << 62} {
			f.Add(prefix, "key", completions)
		}
	}
	f.Fuzz(func(t *testing.T, prefix, key string, completions int64) {
		object := map[string]any{"spec": map[string]any{"completionMode": "Indexed", "completions": completions}}
		for _, k := range [][2]string{{"batch", "Job"}, {"batch", "CronJob"}, {"apps", "StatefulSet"}, {"", "Service"}, {"", "Pod"}, {"", "Secret"}, {"rbac.authorization.k8s.io", "Role"}, {"example.com", "Train"}} {
			most := Limit(k[0], k[1], object)
			name := names.Of(prefix, most, key)
			if rule := CheckName(name, k[0], k[1], object); rule != "" {
				t.Errorf("%v %q: %s", k, name, rule)
			}
			for _, rules := range [][]string{validation.NameIsDNSSubdomain(name, false), validation.NameIsDNS1035Label(name, false), content.IsLabelValue(name), content.IsPathSegmentName(name)} {
				if len(rules) > 0 {
					t.Errorf("%v %q: %s", k, name, rules)
				}
			}
			if name != names.Of(prefix, most, key) {
				t.Errorf("%v %q: has two names", k, name)
			}
			if k[1] == "Job" && completions > 0 {
				if rules := validation.NameIsDNSLabel(fmt.Sprintf("%s-%d", name, completions-1), false); len(rules) > 0 {
					t.Errorf("the last Pod of %q: %s", name, rules)
				}
			}
			if k[1] == "StatefulSet" {
				if rules := content.IsLabelValue(name + "-0123456789"); len(rules) > 0 {
					t.Errorf("the revision of %q: %s", name, rules)
				}
			}
			if k[1] == "CronJob" {
				if rules := validation.NameIsDNSLabel(name+"-0123456789", false); len(rules) > 0 {
					t.Errorf("a Job of %q: %s", name, rules)
				}
			}
		}
	})
}
