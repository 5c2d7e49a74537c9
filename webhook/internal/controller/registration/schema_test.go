package registration

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/belay-dev/belay/test/builders"
	"github.com/belay-dev/belay/webhook/api/v1alpha1"
)

type (
	props      = apiextensionsv1.JSONSchemaProps
	crdVersion = apiextensionsv1.CustomResourceDefinitionVersion
)

// sandboxes is where the resource of RecoveryPolicies is served.
func sandboxes() v1alpha1.ResolvedResource {
	return v1alpha1.ResolvedResource{Group: "sandbox.opensandbox.io", Version: "v1alpha1", Kind: "BatchSandbox", Resource: "batchsandboxes", Namespaced: true}
}

func textOf(values ...string) props {
	p := props{Type: "string"}
	for _, v := range values {
		p.Enum = append(p.Enum, apiextensionsv1.JSON{Raw: []byte(`"` + v + `"`)})
	}
	return p
}

func objectOf(fields map[string]props, required ...string) props {
	return props{Type: "object", Properties: fields, Required: required}
}

func arrayOf(items props) props {
	return props{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &items}}
}

// versionOf is a version of the CRD that carries a guard, with these changes of its status.
func versionOf(name string, changes ...func(status map[string]props)) crdVersion {
	status := map[string]props{
		"phase":         textOf("Pending", "Succeed", "Pausing", "Paused", "Resuming", "Failed"),
		"failedPodUIDs": arrayOf(props{Type: "string"}),
		"conditions":    arrayOf(objectOf(map[string]props{"type": textOf("Ready", "PodFailed", "ResumeFailed"), "status": textOf()}, "type", "status")),
	}
	for _, change := range changes {
		change(status)
	}
	return crdVersion{
		Name: name, Served: true, Storage: true, Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &props{Type: "object", Properties: map[string]props{"status": objectOf(status)}}},
	}
}

func crdOf(versions ...crdVersion) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "batchsandboxes.sandbox.opensandbox.io"},
		Spec:       apiextensionsv1.CustomResourceDefinitionSpec{Group: "sandbox.opensandbox.io", Scope: apiextensionsv1.NamespaceScoped, Versions: versions},
	}
}

// record changes the schema of the record.
func record(change func(*props)) func(map[string]props) {
	return func(status map[string]props) {
		p := status["failedPodUIDs"]
		p = *p.DeepCopy()
		change(&p)
		status["failedPodUIDs"] = p
	}
}

func items(change func(*props)) func(map[string]props) {
	return record(func(p *props) { change(p.Items.Schema) })
}

func without(field string) func(map[string]props) {
	return func(status map[string]props) { delete(status, field) }
}

func requiring(v crdVersion, fields ...string) crdVersion {
	status := v.Schema.OpenAPIV3Schema.Properties["status"]
	status.Required = fields
	v.Schema.OpenAPIV3Schema.Properties["status"] = status
	return v
}

func notServed(v crdVersion) crdVersion { v.Served, v.Storage = false, false; return v }
func onlyStored(v crdVersion) crdVersion {
	v.Served, v.Storage = false, true
	return v
}
func onlyServed(v crdVersion) crdVersion { v.Served, v.Storage = true, false; return v }
func noStatus(v crdVersion) crdVersion   { v.Subresources = nil; return v }

// TestCheckCRD has a row for every reason and every message.
func TestCheckCRD(t *testing.T) {
	t.Parallel()
	const crdName = "CRD batchsandboxes.sandbox.opensandbox.io"
	const where = crdName + ", version v1alpha1: "
	var (
		missing    = v1alpha1.ReasonProvenanceFieldMissing
		unsuitable = v1alpha1.ReasonUnsuitableField
		unknown    = v1alpha1.ReasonUnknownPhase
	)
	full := versionOf("v1alpha1")
	nested := func(s *v1alpha1.RecoveryPolicySpec) { s.RecordPath = ".status.recovery.uids" }
	conditions := func(change func(*props)) func(map[string]props) {
		return func(status map[string]props) {
			p := status["conditions"]
			p = *p.DeepCopy()
			change(&p)
			status["conditions"] = p
		}
	}
	setReady := func(reason, message string) func(*v1alpha1.RecoveryPolicySpec) {
		return func(s *v1alpha1.RecoveryPolicySpec) {
			s.Recovered = &v1alpha1.RecoveredStatus{Phase: "Succeed", SetConditions: []v1alpha1.ConditionEdit{{Type: "Ready", Status: metav1.ConditionTrue, Reason: reason, Message: message}}}
		}
	}
	wanting := func(field string) func(map[string]props) {
		return conditions(func(p *props) {
			p.Items.Schema.Required = append(p.Items.Schema.Required, field)
			p.Items.Schema.Properties["reason"], p.Items.Schema.Properties["message"] = textOf(), textOf()
		})
	}
	for name, c := range map[string]struct {
		versions []crdVersion
		spec     func(*v1alpha1.RecoveryPolicySpec)
		reason   string // empty: nothing is wrong
		message  string
	}{
		"nothing is wrong": {versions: []crdVersion{full}},
		"no status subresource": {
			versions: []crdVersion{noStatus(full)}, reason: v1alpha1.ReasonStatusSubresourceMissing,
			message: where + `has no status subresource, so that its status could be written past the guard; add "subresources: {status: {}}"`,
		},
		"a scale subresource is no status": {
			versions: []crdVersion{func() crdVersion {
				v := versionOf("v1alpha1")
				v.Subresources = &apiextensionsv1.CustomResourceSubresources{Scale: &apiextensionsv1.CustomResourceSubresourceScale{}}
				return v
			}()}, reason: v1alpha1.ReasonStatusSubresourceMissing, message: where + "has no status subresource",
		},
		"no schema":    {versions: []crdVersion{func() crdVersion { v := versionOf("v1alpha1"); v.Schema = nil; return v }()}, reason: missing, message: where + "has no schema, so that .status.failedPodUIDs is not known to be stored"},
		"empty schema": {versions: []crdVersion{func() crdVersion { v := versionOf("v1alpha1"); v.Schema.OpenAPIV3Schema = nil; return v }()}, reason: missing, message: where + "has no schema, so that .status.failedPodUIDs is not known to be stored"},
		"a schema of nothing": {
			versions: []crdVersion{func() crdVersion { v := versionOf("v1alpha1"); v.Schema.OpenAPIV3Schema = &props{}; return v }()},
			reason:   unsuitable, message: where + "spec.phasePath: the schema has no field .status.phase",
		},
		"no record": {
			versions: []crdVersion{versionOf("v1alpha1", without("failedPodUIDs"))}, reason: missing,
			message: where + "spec.recordPath: the schema has no field .status.failedPodUIDs, so that a record would be dropped without a word; upgrade the CRD, or add the field: {type: array, items: {type: string}}",
		},
		"a record further down that is not there": {versions: []crdVersion{full}, spec: nested, reason: missing, message: where + "spec.recordPath: the schema has no field .status.recovery.uids, so that"},
		"a record below a text":                   {versions: []crdVersion{full}, spec: func(s *v1alpha1.RecoveryPolicySpec) { s.RecordPath = ".status.phase.uids" }, reason: missing, message: where + "spec.recordPath: the schema has no field .status.phase.uids"},
		"a record in another case":                {versions: []crdVersion{full}, spec: func(s *v1alpha1.RecoveryPolicySpec) { s.RecordPath = ".status.failedPodUids" }, reason: missing, message: where + "spec.recordPath: the schema has no field .status.failedPodUids"},
		"a record that would be kept anyway is not known to be a list": {
			versions: []crdVersion{versionOf("v1alpha1", without("failedPodUIDs"), func(status map[string]props) { status["x"] = props{XPreserveUnknownFields: new(true)} })},
			reason:   missing, message: "the schema has no field",
		},
		"a record that is a text":             {versions: []crdVersion{versionOf("v1alpha1", record(func(p *props) { *p = textOf() }))}, reason: unsuitable, message: where + "spec.recordPath: .status.failedPodUIDs is of type string, and should be a list of strings"},
		"a record that is a map":              {versions: []crdVersion{versionOf("v1alpha1", record(func(p *props) { *p = objectOf(nil) }))}, reason: unsuitable, message: "is of type object, and should be a list of strings"},
		"a record of numbers":                 {versions: []crdVersion{versionOf("v1alpha1", record(func(p *props) { *p = arrayOf(props{Type: "integer"}) }))}, reason: unsuitable, message: "is a list of integer, and should be a list of strings"},
		"a record of anything":                {versions: []crdVersion{versionOf("v1alpha1", record(func(p *props) { *p = props{Type: "array"} }))}, reason: unsuitable, message: "is of type array, and should be a list of strings"},
		"a record of an empty kind of items":  {versions: []crdVersion{versionOf("v1alpha1", record(func(p *props) { *p = props{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{}} }))}, reason: unsuitable, message: "is of type array, and should be a list of strings"},
		"a record of no type":                 {versions: []crdVersion{versionOf("v1alpha1", record(func(p *props) { *p = props{} }))}, reason: unsuitable, message: "is of no type, and should be a list of strings"},
		"a record of numbers or texts":        {versions: []crdVersion{versionOf("v1alpha1", record(func(p *props) { *p = props{XIntOrString: true} }))}, reason: unsuitable, message: "is int-or-string, and should be a list of strings"},
		"a record of numbers or texts, again": {versions: []crdVersion{versionOf("v1alpha1", record(func(p *props) { *p = arrayOf(props{XIntOrString: true}) }))}, reason: unsuitable, message: "and should be a list of strings"},
		"no phase":                            {versions: []crdVersion{versionOf("v1alpha1", without("phase"))}, reason: unsuitable, message: where + "spec.phasePath: the schema has no field .status.phase"},
		"a phase that is a number":            {versions: []crdVersion{versionOf("v1alpha1", func(s map[string]props) { s["phase"] = props{Type: "integer"} })}, reason: unsuitable, message: where + "spec.phasePath: .status.phase is of type integer, and should be a string"},
		"a phase that is a number or a text":  {versions: []crdVersion{versionOf("v1alpha1", func(s map[string]props) { s["phase"] = props{XIntOrString: true} })}, reason: unsuitable, message: where + "spec.phasePath: .status.phase is int-or-string, and should be a string"},
		"phases that may be anything":         {versions: []crdVersion{versionOf("v1alpha1", func(s map[string]props) { s["phase"] = textOf() })}, spec: func(s *v1alpha1.RecoveryPolicySpec) { s.Phases.Failed = []v1alpha1.Phase{"Broken"} }},
		"a failed phase with a typing error": {
			versions: []crdVersion{full}, spec: func(s *v1alpha1.RecoveryPolicySpec) { s.Phases.Failed = []v1alpha1.Phase{"Failed", "Faild"} }, reason: unknown,
			message: where + `spec.phases.failed: "Faild" is none of the values that the schema allows at .status.phase: Pending, Succeed, Pausing, Paused, Resuming, Failed`,
		},
		"a recovered phase with one": {versions: []crdVersion{full}, spec: func(s *v1alpha1.RecoveryPolicySpec) { s.Phases.Recovered = []v1alpha1.Phase{"succeed"} }, reason: unknown, message: where + `spec.phases.recovered: "succeed" is none`},
		"a lifecycle phase with one": {versions: []crdVersion{full}, spec: func(s *v1alpha1.RecoveryPolicySpec) { s.Phases.Lifecycle = []v1alpha1.Phase{"Paused", "Pause"} }, reason: unknown, message: where + `spec.phases.lifecycle: "Pause" is none`},
		"phases that are no texts among those that are": {versions: []crdVersion{versionOf("v1alpha1", func(s map[string]props) {
			p := textOf("Pending", "Succeed", "Pausing", "Paused", "Resuming", "Failed")
			p.Enum = append(p.Enum, apiextensionsv1.JSON{Raw: []byte("null")}, apiextensionsv1.JSON{Raw: []byte("7")}, apiextensionsv1.JSON{Raw: []byte("{")})
			s["phase"] = p
		})}},
		"no conditions":                     {versions: []crdVersion{versionOf("v1alpha1", without("conditions"))}, reason: unsuitable, message: where + "spec.conditionsPath: the schema has no field .status.conditions"},
		"no conditions, and none are named": {versions: []crdVersion{versionOf("v1alpha1", without("conditions"))}, spec: func(s *v1alpha1.RecoveryPolicySpec) { s.ConditionsPath, s.Terminal = "", nil }},
		"conditions that are a map":         {versions: []crdVersion{versionOf("v1alpha1", conditions(func(p *props) { *p = objectOf(nil) }))}, reason: unsuitable, message: where + "spec.conditionsPath: .status.conditions is of type object, and should be a list of conditions"},
		"conditions that are texts":         {versions: []crdVersion{versionOf("v1alpha1", conditions(func(p *props) { *p = arrayOf(textOf()) }))}, reason: unsuitable, message: "is a list of string, and should be a list of conditions"},
		"conditions that may be null":       {versions: []crdVersion{versionOf("v1alpha1", conditions(func(p *props) { p.Items.Schema.Nullable = true }))}, reason: unsuitable, message: "and should be a list of conditions"},
		"conditions of anything":            {versions: []crdVersion{versionOf("v1alpha1", conditions(func(p *props) { p.Items = nil }))}, reason: unsuitable, message: "is of type array, and should be a list of conditions"},
		"conditions without a type":         {versions: []crdVersion{versionOf("v1alpha1", conditions(func(p *props) { delete(p.Items.Schema.Properties, "type") }))}, reason: unsuitable, message: where + "spec.conditionsPath: the entries of .status.conditions have not the strings type and status"},
		"conditions without a status":       {versions: []crdVersion{versionOf("v1alpha1", conditions(func(p *props) { delete(p.Items.Schema.Properties, "status") }))}, reason: unsuitable, message: "have not the strings type and status"},
		"conditions that are true or false": {versions: []crdVersion{versionOf("v1alpha1", conditions(func(p *props) { p.Items.Schema.Properties["status"] = props{Type: "boolean"} }))}, reason: unsuitable, message: "have not the strings type and status"},
		"conditions whose type is a number": {versions: []crdVersion{versionOf("v1alpha1", conditions(func(p *props) { p.Items.Schema.Properties["type"] = props{Type: "integer"} }))}, reason: unsuitable, message: "have not the strings type and status"},
		"a terminal condition with a typing error": {
			versions: []crdVersion{full}, spec: func(s *v1alpha1.RecoveryPolicySpec) { s.Terminal.Type = "ResumeFaild" }, reason: unknown,
			message: where + `spec.terminal.type: "ResumeFaild" is none of the types of conditions that the schema allows: Ready, PodFailed, ResumeFailed`,
		},
		"a condition that is set with one": {versions: []crdVersion{full}, spec: func(s *v1alpha1.RecoveryPolicySpec) {
			setReady("", "")(s)
			s.Recovered.SetConditions[0].Type = "ready"
		}, reason: unknown, message: where + `spec.recovered.setConditions: "ready" is none of the types of conditions that the schema allows`},
		"a condition that is removed need not be one": {versions: []crdVersion{full}, spec: func(s *v1alpha1.RecoveryPolicySpec) {
			s.Recovered = &v1alpha1.RecoveredStatus{Phase: "Succeed", RemoveConditions: []string{"Older"}}
		}},
		"conditions of any type":                                {versions: []crdVersion{versionOf("v1alpha1", conditions(func(p *props) { p.Items.Schema.Properties["type"] = textOf() }))}, spec: func(s *v1alpha1.RecoveryPolicySpec) { s.Terminal.Type = "Dead" }},
		"a condition without the reason that the schema wants":  {versions: []crdVersion{versionOf("v1alpha1", wanting("reason"))}, spec: setReady("", "x"), reason: unsuitable, message: "spec.recovered.setConditions"},
		"a condition without the message that the schema wants": {versions: []crdVersion{versionOf("v1alpha1", wanting("message"))}, spec: setReady("X", ""), reason: unsuitable, message: "spec.recovered.setConditions"},
		"a condition with all that the schema wants":            {versions: []crdVersion{versionOf("v1alpha1", wanting("message"), wanting("reason"))}, spec: setReady("X", "x")},
		"a version that is served lacks the field": {
			versions: []crdVersion{full, onlyServed(versionOf("v1", without("failedPodUIDs")))}, reason: missing,
			message: "CRD batchsandboxes.sandbox.opensandbox.io, version v1: spec.recordPath: the schema has no field .status.failedPodUIDs",
		},
		"a version that is served has no status subresource":    {versions: []crdVersion{onlyServed(noStatus(versionOf("v1"))), full}, reason: v1alpha1.ReasonStatusSubresourceMissing, message: "version v1: has no status subresource"},
		"a version that is served has other phases":             {versions: []crdVersion{full, onlyServed(versionOf("v1", func(s map[string]props) { s["phase"] = textOf("Running") }))}, reason: unknown, message: "version v1: spec.phases.failed"},
		"a version that is neither served nor stored lacks all": {versions: []crdVersion{full, notServed(noStatus(versionOf("v1beta1", without("failedPodUIDs"), without("phase"))))}},
		"the version that is stored counts, served or not":      {versions: []crdVersion{onlyServed(full), onlyStored(versionOf("v1", without("failedPodUIDs")))}, reason: missing, message: "version v1: spec.recordPath: the schema has no field"},
		"one that is only stored needs no status subresource":   {versions: []crdVersion{onlyServed(full), onlyStored(noStatus(versionOf("v1")))}},
		"the version is not there":                              {versions: []crdVersion{versionOf("v1")}, reason: v1alpha1.ReasonUnknownKind, message: "spec.resource: CRD batchsandboxes.sandbox.opensandbox.io does not serve version v1alpha1"},
		"the version is not served":                             {versions: []crdVersion{notServed(full), versionOf("v1")}, reason: v1alpha1.ReasonUnknownKind, message: "does not serve version v1alpha1"},
		"the version is only stored":                            {versions: []crdVersion{onlyStored(full), onlyServed(versionOf("v1"))}, reason: v1alpha1.ReasonUnknownKind, message: "does not serve version v1alpha1"},
		"no version at all":                                     {reason: v1alpha1.ReasonUnknownKind, message: "does not serve version v1alpha1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := builders.MakeRecoveryPolicy("opensandbox")
			if c.spec != nil {
				p.Spec(c.spec)
			}
			_, v, bad := checkCRD(p.Obj().Spec, crdOf(c.versions...), "v1alpha1")
			if bad != (c.reason != "") || v.reason != c.reason || !strings.Contains(v.message, c.message) || v.ok || v.recoveryInForce != nil {
				t.Errorf("%t %+v", bad, v)
			}
			if bad && !v.again {
				t.Error("a CRD that is mended changes nothing")
			}
			if len(v.message) > 1100 {
				t.Errorf("a message of %d bytes", len(v.message))
			}
		})
	}
}

// TestBoundsThatNoRecordFitsIn: a failure could not be written at all.
func TestBoundsThatNoRecordFitsIn(t *testing.T) {
	t.Parallel()
	rule := apiextensionsv1.ValidationRules{{Rule: "true"}}
	rules := "has rules (x-kubernetes-validations, allOf, anyOf, oneOf or not), which belay cannot judge"
	for name, c := range map[string]struct {
		change func(map[string]props)
		want   string // empty: it fits
	}{
		"no bounds":                         {record(func(*props) {}), ""},
		"some values only":                  {items(func(p *props) { *p = textOf("a", "b") }), "allows only some values"},
		"entries that are too short":        {items(func(p *props) { p.MaxLength = new(int64(35)) }), "allows 35 characters an entry; a UID has 36"},
		"entries as long as a UID":          {items(func(p *props) { p.MaxLength, p.MinLength = new(int64(36)), new(int64(36)) }), ""},
		"entries that are too long":         {items(func(p *props) { p.MinLength = new(int64(37)) }), "wants 37 characters an entry; a UID has 36"},
		"a pattern of something else":       {items(func(p *props) { p.Pattern = "^pod-" }), `wants entries that match "^pod-"; UIDs do not`},
		"a pattern of UIDs":                 {items(func(p *props) { p.Pattern = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$" }), ""},
		"a pattern of UIDs that are random": {items(func(p *props) { p.Pattern = "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$" }), "UIDs do not"},
		"a pattern that matches zeros only": {items(func(p *props) { p.Pattern = "^[0-]+$" }), "UIDs do not"},
		"a pattern that is none":            {items(func(p *props) { p.Pattern = "(" }), "UIDs do not"},
		"the format of a date":              {items(func(p *props) { p.Format = "date" }), `wants entries of the format "date"`},
		"the format of a UUID":              {items(func(p *props) { p.Format = "uuid" }), ""},
		"no room":                           {record(func(p *props) { p.MaxItems = new(int64(0)) }), "has room for nothing"},
		"room for one":                      {record(func(p *props) { p.MaxItems = new(int64(1)) }), ""},
		"at least one":                      {record(func(p *props) { p.MinItems = new(int64(1)) }), ""},
		"at least two":                      {record(func(p *props) { p.MinItems = new(int64(2)) }), "wants at least 2 entries"},
		"rules of the list":                 {record(func(p *props) { p.XValidations = rule }), rules},
		"rules of the entries":              {items(func(p *props) { p.XValidations = rule }), rules},
		"allOf of the list":                 {record(func(p *props) { p.AllOf = []props{{}} }), rules},
		"anyOf of the entries":              {items(func(p *props) { p.AnyOf = []props{{}} }), rules},
		"oneOf of the entries":              {items(func(p *props) { p.OneOf = []props{{}} }), rules},
		"not of the list":                   {record(func(p *props) { p.Not = &props{} }), rules},
		"not of the entries":                {items(func(p *props) { p.Not = &props{} }), rules},
		"entries that may be null":          {items(func(p *props) { p.Nullable = true }), "allows null as an entry, which is no UID"},
		"a set":                             {record(func(p *props) { p.XListType = new("set") }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, v, bad := checkCRD(builders.MakeRecoveryPolicy("opensandbox").Obj().Spec, crdOf(versionOf("v1alpha1", c.change)), "v1alpha1")
			if bad != (c.want != "") || !strings.HasSuffix(v.message, c.want) || bad && (v.reason != v1alpha1.ReasonUnsuitableField || !strings.Contains(v.message, "spec.recordPath: .status.failedPodUIDs ")) {
				t.Errorf("%t %+v", bad, v)
			}
		})
	}
}

// TestHowARecordIsCleared: in a way that fits every version that is served or stored.
func TestHowARecordIsCleared(t *testing.T) {
	t.Parallel()
	nullable := record(func(p *props) { p.Nullable = true })
	defaulted := record(func(p *props) { p.Default = &apiextensionsv1.JSON{Raw: []byte("[]")} })
	most := func(n int64) func(map[string]props) { return record(func(p *props) { p.MaxItems = &n }) }
	least := func(n int64) func(map[string]props) { return record(func(p *props) { p.MinItems = &n }) }
	wanted := func(v crdVersion) crdVersion { return requiring(v, "phase", "failedPodUIDs") }
	v1 := func(v crdVersion) crdVersion { v.Name = "v1"; return onlyServed(v) }
	const impossible = "CRD batchsandboxes.sandbox.opensandbox.io: spec.recordPath: .status.failedPodUIDs can be neither null nor absent nor empty in all versions, so that a record could not be cleared"
	null, remove, empty := v1alpha1.ClearNull, v1alpha1.ClearRemove, v1alpha1.ClearEmpty
	for name, c := range map[string]struct {
		versions []crdVersion
		want     v1alpha1.RecordSchema
		message  string
	}{
		"optional":                            {[]crdVersion{versionOf("v1alpha1")}, v1alpha1.RecordSchema{Cleared: remove}, ""},
		"nullable":                            {[]crdVersion{versionOf("v1alpha1", nullable)}, v1alpha1.RecordSchema{Cleared: null}, ""},
		"required":                            {[]crdVersion{wanted(versionOf("v1alpha1"))}, v1alpha1.RecordSchema{Cleared: empty, Required: true}, ""},
		"another field is required":           {[]crdVersion{requiring(versionOf("v1alpha1"), "phase")}, v1alpha1.RecordSchema{Cleared: remove}, ""},
		"nullable and required":               {[]crdVersion{wanted(versionOf("v1alpha1", nullable))}, v1alpha1.RecordSchema{Cleared: null, Required: true}, ""},
		"with a default":                      {[]crdVersion{versionOf("v1alpha1", defaulted)}, v1alpha1.RecordSchema{Cleared: empty}, ""},
		"with a default, and nullable":        {[]crdVersion{versionOf("v1alpha1", defaulted, nullable)}, v1alpha1.RecordSchema{Cleared: null}, ""},
		"not empty":                           {[]crdVersion{versionOf("v1alpha1", least(1))}, v1alpha1.RecordSchema{Cleared: remove}, ""},
		"not empty, and nullable":             {[]crdVersion{wanted(versionOf("v1alpha1", least(1), nullable))}, v1alpha1.RecordSchema{Cleared: null, Required: true}, ""},
		"not empty, and required":             {[]crdVersion{wanted(versionOf("v1alpha1", least(1)))}, v1alpha1.RecordSchema{}, impossible},
		"not empty, and with a default":       {[]crdVersion{versionOf("v1alpha1", least(1), defaulted)}, v1alpha1.RecordSchema{}, impossible},
		"least is nothing":                    {[]crdVersion{wanted(versionOf("v1alpha1", least(0)))}, v1alpha1.RecordSchema{Cleared: empty, Required: true}, ""},
		"a limit":                             {[]crdVersion{versionOf("v1alpha1", most(7))}, v1alpha1.RecordSchema{Cleared: remove, MaxItems: 7}, ""},
		"the tightest limit, first":           {[]crdVersion{versionOf("v1alpha1", most(3)), v1(versionOf("v1", most(7)))}, v1alpha1.RecordSchema{Cleared: remove, MaxItems: 3}, ""},
		"the tightest limit, last":            {[]crdVersion{versionOf("v1alpha1", most(7)), v1(versionOf("v1", most(3)))}, v1alpha1.RecordSchema{Cleared: remove, MaxItems: 3}, ""},
		"a limit in one of them, first":       {[]crdVersion{versionOf("v1alpha1", most(3)), v1(versionOf("v1"))}, v1alpha1.RecordSchema{Cleared: remove, MaxItems: 3}, ""},
		"a limit in one of them, last":        {[]crdVersion{versionOf("v1alpha1"), v1(versionOf("v1", most(3)))}, v1alpha1.RecordSchema{Cleared: remove, MaxItems: 3}, ""},
		"a limit of one that does not count":  {[]crdVersion{versionOf("v1alpha1", most(7)), notServed(versionOf("v1", most(3)))}, v1alpha1.RecordSchema{Cleared: remove, MaxItems: 7}, ""},
		"nullable in one of them":             {[]crdVersion{versionOf("v1alpha1", nullable), v1(versionOf("v1"))}, v1alpha1.RecordSchema{Cleared: remove}, ""},
		"nullable in one, required in other":  {[]crdVersion{versionOf("v1alpha1", nullable), v1(wanted(versionOf("v1")))}, v1alpha1.RecordSchema{Cleared: empty, Required: true}, ""},
		"required in the one that is stored":  {[]crdVersion{onlyServed(versionOf("v1alpha1")), onlyStored(wanted(versionOf("v1")))}, v1alpha1.RecordSchema{Cleared: empty, Required: true}, ""},
		"nothing fits both":                   {[]crdVersion{versionOf("v1alpha1", least(1)), v1(wanted(versionOf("v1")))}, v1alpha1.RecordSchema{}, impossible},
		"what does not count may be anything": {[]crdVersion{versionOf("v1alpha1", nullable), notServed(wanted(versionOf("v1", least(1))))}, v1alpha1.RecordSchema{Cleared: null}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, versions := range [][]crdVersion{c.versions, reversed(c.versions)} {
				got, v, bad := checkCRD(builders.MakeRecoveryPolicy("opensandbox").Obj().Spec, crdOf(versions...), "v1alpha1")
				if bad != (c.message != "") || v.message != c.message || bad && (v.reason != v1alpha1.ReasonUnsuitableField || !v.again) {
					t.Errorf("%t %+v", bad, v)
				}
				if diff := cmp.Diff(c.want, got); diff != "" && !bad {
					t.Errorf("(-want +got)\n%s", diff)
				}
			}
		})
	}
}

// TestWhatIsAroundTheRecord: rules that speak of it, and parents that cannot be made for it
// alone, would refuse what belay writes there.
func TestWhatIsAroundTheRecord(t *testing.T) {
	t.Parallel()
	rule := func(text string) apiextensionsv1.ValidationRules {
		return apiextensionsv1.ValidationRules{{Rule: "true"}, {Rule: text}}
	}
	speaks := []props{{Properties: map[string]props{"failedPodUIDs": {MaxItems: new(int64(1))}}}}
	silent := []props{{Properties: map[string]props{"phase": {}, "failedPodUIDsOld": {}}}}
	top := func(change func(root, status *props)) crdVersion {
		v := versionOf("v1alpha1")
		root := v.Schema.OpenAPIV3Schema
		status := root.Properties["status"]
		change(root, &status)
		root.Properties["status"] = status
		return v
	}
	below := func(change func(parent, record *props)) crdVersion {
		return versionOf("v1alpha1", func(status map[string]props) {
			list := arrayOf(textOf())
			parent := objectOf(map[string]props{"failedPodUIDs": list, "since": textOf()})
			change(&parent, &list)
			parent.Properties["failedPodUIDs"] = list
			status["recovery"] = parent
		})
	}
	nestedPath := func(s *v1alpha1.RecoveryPolicySpec) { s.RecordPath = ".status.recovery.failedPodUIDs" }
	for name, c := range map[string]struct {
		version crdVersion
		spec    func(*v1alpha1.RecoveryPolicySpec)
		want    string // empty: it is accepted
	}{
		"a rule of the object that speaks of it":        {top(func(root, _ *props) { root.XValidations = rule("size(self.status.failedPodUIDs) < 2") }), nil, `a rule of the schema at "" speaks of failedPodUIDs, and belay cannot judge it: size(self.status.failedPodUIDs) < 2`},
		"a rule of the status that speaks of it":        {top(func(_, status *props) { status.XValidations = rule("has(self.failedPodUIDs)") }), nil, `a rule of the schema at ".status" speaks of failedPodUIDs, and belay cannot judge it: has(self.failedPodUIDs)`},
		"a rule of the status that does not":            {top(func(_, status *props) { status.XValidations = rule("self.phase != 'x'") }), nil, ""},
		"allOf of the status that speaks of it":         {top(func(_, status *props) { status.AllOf = speaks }), nil, `the schema at ".status" speaks of failedPodUIDs in allOf, anyOf, oneOf or not, which belay cannot judge`},
		"anyOf of the object that speaks of it":         {top(func(root, _ *props) { root.AnyOf = []props{{Properties: map[string]props{"status": speaks[0]}}} }), nil, `the schema at "" speaks of failedPodUIDs in allOf, anyOf, oneOf or not, which belay cannot judge`},
		"oneOf of the status that requires it":          {top(func(_, status *props) { status.OneOf = []props{{Required: []string{"failedPodUIDs"}}} }), nil, `the schema at ".status" speaks of failedPodUIDs in allOf, anyOf, oneOf or not, which belay cannot judge`},
		"not of the status that speaks of it":           {top(func(_, status *props) { status.Not = &props{Required: []string{"failedPodUIDs"}} }), nil, `the schema at ".status" speaks of failedPodUIDs in `},
		"allOf of the status that does not":             {top(func(_, status *props) { status.AllOf = silent }), nil, ""},
		"other fields that the status wants":            {top(func(_, status *props) { status.Required = []string{"phase", "conditions"} }), nil, ""},
		"a parent that wants nothing":                   {below(func(*props, *props) {}), nestedPath, ""},
		"a parent that wants it":                        {below(func(parent, _ *props) { parent.Required = []string{"failedPodUIDs"} }), nestedPath, ""},
		"a parent that wants another":                   {below(func(parent, _ *props) { parent.Required = []string{"since"} }), nestedPath, ".status.recovery wants other fields as well, so that belay could not add it for the record"},
		"a parent that wants it and another":            {below(func(parent, _ *props) { parent.Required = []string{"failedPodUIDs", "since"} }), nestedPath, ".status.recovery wants other fields as well, so that belay could not add it for the record"},
		"a parent that wants two, whichever":            {below(func(parent, _ *props) { parent.MinProperties = new(int64(2)) }), nestedPath, ".status.recovery wants other fields as well, so that belay could not add it for the record"},
		"a parent that wants one, whichever":            {below(func(parent, _ *props) { parent.MinProperties = new(int64(1)) }), nestedPath, ""},
		"a rule of the parent that speaks of it":        {below(func(parent, _ *props) { parent.XValidations = rule("self.failedPodUIDs.all(u, u != '')") }), nestedPath, `a rule of the schema at ".status.recovery" speaks of failedPodUIDs, and belay cannot judge it: self.failedPodUIDs.all(u, u != '')`},
		"a parent that is not the record's wants more":  {below(func(parent, _ *props) { parent.Required = []string{"since"} }), nil, ""},
		"a rule of a parent that is not the record's's": {below(func(parent, _ *props) { parent.XValidations = rule("has(self.failedPodUIDs)") }), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := builders.MakeRecoveryPolicy("opensandbox")
			if c.spec != nil {
				p.Spec(c.spec)
			}
			_, v, bad := checkCRD(p.Obj().Spec, crdOf(c.version), "v1alpha1")
			if bad != (c.want != "") || bad && (v.reason != v1alpha1.ReasonUnsuitableField || !strings.Contains(v.message, ": spec.recordPath: "+c.want)) {
				t.Errorf("%t %+v", bad, v)
			}
		})
	}
}

// TestConditionsThatTheSchemaRefuses: a recovery that writes one would be refused, each time.
func TestConditionsThatTheSchemaRefuses(t *testing.T) {
	t.Parallel()
	edit := v1alpha1.ConditionEdit{Type: "Ready", Status: metav1.ConditionTrue, Reason: "PodsReady", Message: "é"}
	entry := func(change func(*props)) func(map[string]props) {
		return func(status map[string]props) {
			full := objectOf(map[string]props{
				"type": textOf(), "status": textOf("True", "False", "Unknown"), "reason": {Type: "string", MinLength: new(int64(1)), MaxLength: new(int64(9)), Pattern: "^[A-Z]"},
				"message": {Type: "string", MaxLength: new(int64(1))}, "lastTransitionTime": {Type: "string", Format: "date-time"},
			}, "type", "status", "reason", "message", "lastTransitionTime")
			if change != nil {
				change(&full)
			}
			status["conditions"] = arrayOf(full)
		}
	}
	field := func(name string, change func(*props)) func(*props) {
		return func(p *props) {
			f := p.Properties[name]
			change(&f)
			p.Properties[name] = f
		}
	}
	for name, c := range map[string]struct {
		schema func(*props)
		edit   func(*v1alpha1.ConditionEdit)
		want   string // empty: it fits
	}{
		"all is as the schema wants it":       {nil, nil, ""},
		"the schema wants nothing":            {func(p *props) { p.Required = nil }, func(e *v1alpha1.ConditionEdit) { e.Reason, e.Message = "", "" }, ""},
		"no reason":                           {nil, func(e *v1alpha1.ConditionEdit) { e.Reason = "" }, "the schema wants reason, which the policy does not give"},
		"no message":                          {nil, func(e *v1alpha1.ConditionEdit) { e.Message = "" }, "the schema wants message, which the policy does not give"},
		"a field that belay does not write":   {func(p *props) { p.Required = append(p.Required, "severity") }, nil, "the schema wants severity, which the policy does not give"},
		"a reason that the schema lacks":      {func(p *props) { delete(p.Properties, "reason"); p.Required = nil }, nil, "the schema has no reason"},
		"a message that the schema lacks":     {func(p *props) { delete(p.Properties, "message"); p.Required = nil }, nil, "the schema has no message"},
		"a status that the schema lacks":      {field("status", func(p *props) { *p = textOf("On", "Off") }), nil, `the schema allows On, Off as status, and not "True"`},
		"a reason that the schema does not":   {field("reason", func(p *props) { *p = textOf("A", "B") }), nil, `the schema allows A, B as reason, and not "PodsReady"`},
		"a reason that is too long":           {nil, func(e *v1alpha1.ConditionEdit) { e.Reason = "PodsReady1" }, "the schema wants another length of reason"},
		"a reason that is too short":          {field("reason", func(p *props) { p.MinLength, p.MaxLength = new(int64(10)), nil }), nil, "the schema wants another length of reason"},
		"a message that is too long":          {nil, func(e *v1alpha1.ConditionEdit) { e.Message = "éé" }, "the schema wants another length of message"},
		"a reason of another pattern":         {nil, func(e *v1alpha1.ConditionEdit) { e.Reason = "ready" }, `the schema wants a reason that matches "^[A-Z]"`},
		"a pattern that cannot be told":       {field("reason", func(p *props) { p.Pattern = "(?!x)" }), nil, ""},
		"a time that the schema wants":        {func(p *props) { p.Required = []string{"lastTransitionTime"} }, nil, ""},
		"a status of the schema, and no enum": {field("status", func(p *props) { p.Enum = nil }), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := edit
			if c.edit != nil {
				c.edit(&e)
			}
			spec := builders.MakeRecoveryPolicy("opensandbox").Spec(func(s *v1alpha1.RecoveryPolicySpec) {
				s.Recovered = &v1alpha1.RecoveredStatus{Phase: "Succeed", SetConditions: []v1alpha1.ConditionEdit{e}}
			}).Obj().Spec
			_, v, bad := checkCRD(spec, crdOf(versionOf("v1alpha1", entry(c.schema))), "v1alpha1")
			if bad != (c.want != "") || bad && (v.reason != v1alpha1.ReasonUnsuitableField || !strings.HasSuffix(v.message, ": spec.recovered.setConditions: Ready: "+c.want)) {
				t.Errorf("%t %+v", bad, v)
			}
		})
	}
}

func reversed(versions []crdVersion) []crdVersion {
	out := slices.Clone(versions)
	slices.Reverse(out)
	return out
}

// TestARecordFurtherDownIsFound: what its own parent requires counts, and no other.
func TestARecordFurtherDownIsFound(t *testing.T) {
	t.Parallel()
	below := func(required ...string) func(map[string]props) {
		return func(status map[string]props) {
			status["recovery"] = objectOf(map[string]props{"in": objectOf(map[string]props{"uids": arrayOf(textOf())}, required...)}, "in")
			status["state"] = objectOf(map[string]props{"phase": status["phase"], "list": status["conditions"]})
			delete(status, "phase")
			delete(status, "conditions")
			delete(status, "failedPodUIDs")
		}
	}
	spec := builders.MakeRecoveryPolicy("opensandbox").Spec(func(s *v1alpha1.RecoveryPolicySpec) {
		s.PhasePath, s.RecordPath, s.ConditionsPath = ".status.state.phase", ".status.recovery.in.uids", ".status.state.list"
	}).Obj().Spec
	for name, c := range map[string]struct {
		version crdVersion
		want    v1alpha1.RecordSchema
	}{
		"its parent requires it":           {versionOf("v1alpha1", below("uids")), v1alpha1.RecordSchema{Cleared: v1alpha1.ClearEmpty, Required: true}},
		"only its parent's parent does so": {versionOf("v1alpha1", below()), v1alpha1.RecordSchema{Cleared: v1alpha1.ClearRemove}},
		"the status requires one like it":  {requiring(versionOf("v1alpha1", below()), "recovery", "uids"), v1alpha1.RecordSchema{Cleared: v1alpha1.ClearRemove}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, v, bad := checkCRD(spec, crdOf(c.version), "v1alpha1")
			if diff := cmp.Diff(c.want, got); bad || diff != "" {
				t.Errorf("%+v (-want +got)\n%s", v, diff)
			}
		})
	}
}
