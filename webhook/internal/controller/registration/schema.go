package registration

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/recovery"
)

// recordUID is how long a UID is, and with it an entry of a record.
const recordUID = len(v1alpha1.NoPodUID)

// recordField is what one version's schema says of the record.
type recordField struct {
	nullable, required, defaulted bool
	minItems, maxItems            int64
}

// checkCRD judges whether a CRD carries what a RecoveryPolicy stands on, and says what its
// schema makes of the record. All versions that are served or stored count: one whose schema
// lacks the field would drop it, without a word.
func checkCRD(s v1alpha1.RecoveryPolicySpec, crd *apiextensionsv1.CustomResourceDefinition, version string) (v1alpha1.RecordSchema, verdict, bool) {
	var fields []recordField
	found := false
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if !v.Served && !v.Storage {
			continue
		}
		f, bad, wrong := checkVersion(s, crd.Name, v)
		if wrong {
			return v1alpha1.RecordSchema{}, bad, true
		}
		fields = append(fields, f)
		found = found || (v.Served && v.Name == version)
	}
	if !found {
		return v1alpha1.RecordSchema{}, verdict{reason: v1alpha1.ReasonUnknownKind, again: true, message: fmt.Sprintf("spec.resource: CRD %s does not serve version %s", crd.Name, version)}, true
	}
	record, problem := together(fields)
	if problem != "" {
		return record, verdict{reason: v1alpha1.ReasonUnsuitableField, again: true, message: clip(fmt.Sprintf("CRD %s: spec.recordPath: %s %s", crd.Name, s.RecordPath, problem))}, true
	}
	return record, verdict{}, false
}

// together is what fits all versions: an object is validated in the one that a client writes,
// after belay's changes have been converted to it.
func together(fields []recordField) (v1alpha1.RecordSchema, string) {
	var out v1alpha1.RecordSchema
	nullable, absent, empty := true, true, true
	for _, f := range fields {
		nullable = nullable && f.nullable
		// Removed, it would be missing, or come back with its default.
		absent = absent && !f.required && !f.defaulted
		empty = empty && f.minItems == 0
		out.Required = out.Required || f.required
		if f.maxItems > 0 && (out.MaxItems == 0 || f.maxItems < out.MaxItems) {
			out.MaxItems = f.maxItems
		}
	}
	switch {
	case nullable:
		out.Cleared = v1alpha1.ClearNull
	case absent:
		out.Cleared = v1alpha1.ClearRemove
	case empty:
		out.Cleared = v1alpha1.ClearEmpty
	default:
		return out, "can be neither null nor absent nor empty in all versions, so that a record could not be cleared"
	}
	return out, ""
}

func checkVersion(s v1alpha1.RecoveryPolicySpec, crd string, v *apiextensionsv1.CustomResourceDefinitionVersion) (recordField, verdict, bool) {
	where := fmt.Sprintf("CRD %s, version %s", crd, v.Name)
	no := func(reason, format string, args ...any) (recordField, verdict, bool) {
		return recordField{}, verdict{reason: reason, again: true, message: clip(where + ": " + fmt.Sprintf(format, args...))}, true
	}
	if v.Served && (v.Subresources == nil || v.Subresources.Status == nil) {
		return no(v1alpha1.ReasonStatusSubresourceMissing, "has no status subresource, so that its status could be written past the guard; add \"subresources: {status: {}}\"")
	}
	if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
		return no(v1alpha1.ReasonProvenanceFieldMissing, "has no schema, so that %s is not known to be stored", s.RecordPath)
	}
	phase, _ := property(v.Schema.OpenAPIV3Schema, s.PhasePath)
	switch {
	case phase == nil:
		return no(v1alpha1.ReasonUnsuitableField, "spec.phasePath: the schema has no field %s", s.PhasePath)
	case phase.Type != "string":
		return no(v1alpha1.ReasonUnsuitableField, "spec.phasePath: %s is %s, and should be a string", s.PhasePath, typeOf(phase))
	}
	if name, word := unknownPhase(s, phase); name != "" {
		return no(v1alpha1.ReasonUnknownPhase, "spec.%s: %q is none of the values that the schema allows at %s: %s", word, name, s.PhasePath, strings.Join(enumOf(phase), ", "))
	}
	if s.ConditionsPath != "" {
		if problem, reason := checkConditionList(s, v.Schema.OpenAPIV3Schema); problem != "" {
			return no(reason, "%s", problem)
		}
	}
	record, required := property(v.Schema.OpenAPIV3Schema, s.RecordPath)
	switch {
	case record == nil:
		return no(v1alpha1.ReasonProvenanceFieldMissing, "spec.recordPath: the schema has no field %s, so that a record would be dropped without a word; upgrade the CRD, or add the field: {type: array, items: {type: string}}", s.RecordPath)
	case record.Type != "array" || record.Items == nil || record.Items.Schema == nil || record.Items.Schema.Type != "string":
		return no(v1alpha1.ReasonUnsuitableField, "spec.recordPath: %s is %s, and should be a list of strings", s.RecordPath, typeOf(record))
	}
	if problem := unfit(record); problem != "" {
		return no(v1alpha1.ReasonUnsuitableField, "spec.recordPath: %s %s", s.RecordPath, problem)
	}
	if problem := unfitAround(v.Schema.OpenAPIV3Schema, s.RecordPath); problem != "" {
		return no(v1alpha1.ReasonUnsuitableField, "spec.recordPath: %s", problem)
	}
	out := recordField{nullable: record.Nullable, required: required, defaulted: record.Default != nil}
	if record.MaxItems != nil {
		out.maxItems = *record.MaxItems
	}
	if record.MinItems != nil {
		out.minItems = *record.MinItems
	}
	return out, verdict{}, false
}

// property finds the schema of a path, nil where there is none, and whether its parent
// requires it.
func property(schema *apiextensionsv1.JSONSchemaProps, path v1alpha1.StatusPath) (found *apiextensionsv1.JSONSchemaProps, required bool) {
	here := schema
	for _, name := range recovery.Segments(path) {
		p, has := here.Properties[name]
		if !has {
			return nil, false
		}
		required = slices.Contains(here.Required, name)
		here = &p
	}
	return here, required
}

func typeOf(p *apiextensionsv1.JSONSchemaProps) string {
	switch {
	case p.XIntOrString:
		return "int-or-string"
	case p.Type == "":
		return "of no type"
	case p.Type == "array" && p.Items != nil && p.Items.Schema != nil:
		return "a list of " + p.Items.Schema.Type
	}
	return "of type " + p.Type
}

// unfit says which bounds of the schema a list of UIDs does not fit in. What cannot be told
// from here to allow every UID would refuse the failure itself, not only the record.
func unfit(record *apiextensionsv1.JSONSchemaProps) string {
	e := record.Items.Schema
	switch {
	case len(e.Enum) > 0:
		return "allows only some values"
	case e.MaxLength != nil && *e.MaxLength < int64(recordUID):
		return fmt.Sprintf("allows %d characters an entry; a UID has %d", *e.MaxLength, recordUID)
	case e.MinLength != nil && *e.MinLength > int64(recordUID):
		return fmt.Sprintf("wants %d characters an entry; a UID has %d", *e.MinLength, recordUID)
	case e.Nullable:
		return "allows null as an entry, which is no UID"
	case !patternAllows(e.Pattern):
		return fmt.Sprintf("wants entries that match %q; UIDs do not", e.Pattern)
	case e.Format != "" && e.Format != "uuid":
		return fmt.Sprintf("wants entries of the format %q", e.Format)
	case record.MaxItems != nil && *record.MaxItems < 1:
		return "has room for nothing"
	case record.MinItems != nil && *record.MinItems > 1:
		return fmt.Sprintf("wants at least %d entries", *record.MinItems)
	}
	for _, p := range []*apiextensionsv1.JSONSchemaProps{record, e} {
		if len(p.XValidations)+len(p.AllOf)+len(p.AnyOf)+len(p.OneOf) > 0 || p.Not != nil {
			return "has rules (x-kubernetes-validations, allOf, anyOf, oneOf or not), which belay cannot judge"
		}
	}
	return ""
}

// unfitAround says what, around the record, could make the API server refuse what belay
// writes there: a rule that speaks of it, or a parent that cannot be made for it alone.
func unfitAround(schema *apiextensionsv1.JSONSchemaProps, path v1alpha1.StatusPath) string {
	here, where := schema, ""
	segments := recovery.Segments(path)
	last := segments[len(segments)-1]
	for i, name := range segments {
		for _, rule := range here.XValidations {
			if strings.Contains(rule.Rule, last) {
				return fmt.Sprintf("a rule of the schema at %q speaks of %s, and belay cannot judge it: %s", where, last, rule.Rule)
			}
		}
		parts := slices.Concat(here.AllOf, here.AnyOf, here.OneOf)
		if here.Not != nil {
			parts = append(parts, *here.Not)
		}
		for _, part := range parts {
			if raw, err := json.Marshal(part); err != nil || strings.Contains(string(raw), strconv.Quote(last)) {
				return fmt.Sprintf("the schema at %q speaks of %s in allOf, anyOf, oneOf or not, which belay cannot judge", where, last)
			}
		}
		// The status itself is there when an object fails: it has the phase.
		if i > 1 && (slices.ContainsFunc(here.Required, func(r string) bool { return r != name }) || (here.MinProperties != nil && *here.MinProperties > 1)) {
			return fmt.Sprintf("%s wants other fields as well, so that belay could not add it for the record", where)
		}
		below, ok := here.Properties[name]
		if !ok {
			return ""
		}
		here, where = &below, where+"."+name
	}
	return ""
}

// patternAllows reports whether UIDs match a pattern, as far as two of them show.
func patternAllows(pattern string) bool {
	if pattern == "" {
		return true
	}
	re, err := regexp.Compile(pattern)
	return err == nil && re.MatchString(v1alpha1.NoPodUID) && re.MatchString("9f8e7d6c-5b4a-4321-8fed-cba987654321")
}

func enumOf(p *apiextensionsv1.JSONSchemaProps) []string {
	var out []string
	for _, e := range p.Enum {
		var s string
		if json.Unmarshal(e.Raw, &s) == nil {
			out = append(out, s)
		}
	}
	return out
}

// unknownPhase finds a phase that the schema does not allow: one with a typing error would
// be no way out of a failure, or a way without a guard.
func unknownPhase(s v1alpha1.RecoveryPolicySpec, phase *apiextensionsv1.JSONSchemaProps) (name, field string) {
	if len(phase.Enum) == 0 {
		return "", ""
	}
	allowed := enumOf(phase)
	for _, list := range []struct {
		field  string
		phases []v1alpha1.Phase
	}{
		{"phases.failed", s.Phases.Failed},
		{"phases.recovered", s.Phases.Recovered},
		{"phases.lifecycle", s.Phases.Lifecycle},
	} {
		for _, p := range list.phases {
			if !slices.Contains(allowed, string(p)) {
				return string(p), list.field
			}
		}
	}
	return "", ""
}

// checkConditionList judges the schema of the conditions, and the types that the policy
// names.
func checkConditionList(s v1alpha1.RecoveryPolicySpec, schema *apiextensionsv1.JSONSchemaProps) (problem, reason string) {
	list, _ := property(schema, s.ConditionsPath)
	switch {
	case list == nil:
		return fmt.Sprintf("spec.conditionsPath: the schema has no field %s", s.ConditionsPath), v1alpha1.ReasonUnsuitableField
	case list.Type != "array" || list.Items == nil || list.Items.Schema == nil || list.Items.Schema.Type != "object" || list.Items.Schema.Nullable:
		return fmt.Sprintf("spec.conditionsPath: %s is %s, and should be a list of conditions", s.ConditionsPath, typeOf(list)), v1alpha1.ReasonUnsuitableField
	}
	kind, ok := list.Items.Schema.Properties["type"]
	if !ok || kind.Type != "string" || list.Items.Schema.Properties["status"].Type != "string" {
		return fmt.Sprintf("spec.conditionsPath: the entries of %s have not the strings type and status", s.ConditionsPath), v1alpha1.ReasonUnsuitableField
	}
	if s.Recovered != nil {
		for _, c := range s.Recovered.SetConditions {
			if problem := unfitCondition(c, list.Items.Schema); problem != "" {
				return fmt.Sprintf("spec.recovered.setConditions: %s: %s", c.Type, problem), v1alpha1.ReasonUnsuitableField
			}
		}
	}
	if len(kind.Enum) == 0 {
		return "", ""
	}
	allowed := enumOf(&kind)
	type named struct{ field, name string }
	var names []named
	if s.Terminal != nil {
		names = append(names, named{"terminal.type", s.Terminal.Type})
	}
	if s.Recovered != nil {
		for _, c := range s.Recovered.SetConditions {
			names = append(names, named{"recovered.setConditions", c.Type})
		}
	}
	for _, n := range names {
		if !slices.Contains(allowed, n.name) {
			return fmt.Sprintf("spec.%s: %q is none of the types of conditions that the schema allows: %s", n.field, n.name, strings.Join(allowed, ", ")), v1alpha1.ReasonUnknownPhase
		}
	}
	return "", ""
}

// unfitCondition says why the API server would refuse a condition that belay writes.
func unfitCondition(c v1alpha1.ConditionEdit, entry *apiextensionsv1.JSONSchemaProps) string {
	values := map[string]string{"type": c.Type, "status": string(c.Status), "reason": c.Reason, "message": c.Message}
	for _, name := range entry.Required {
		if v, ours := values[name]; name != "lastTransitionTime" && (!ours || v == "") {
			return fmt.Sprintf("the schema wants %s, which the policy does not give", name)
		}
	}
	for _, name := range []string{"status", "reason", "message"} {
		field, ok := entry.Properties[name]
		v := values[name]
		switch {
		case v == "":
		case !ok:
			return fmt.Sprintf("the schema has no %s", name)
		case len(field.Enum) > 0 && !slices.Contains(enumOf(&field), v):
			return fmt.Sprintf("the schema allows %s as %s, and not %q", strings.Join(enumOf(&field), ", "), name, v)
		case field.MinLength != nil && int64(len([]rune(v))) < *field.MinLength, field.MaxLength != nil && int64(len([]rune(v))) > *field.MaxLength:
			return fmt.Sprintf("the schema wants another length of %s", name)
		case field.Pattern != "":
			if re, err := regexp.Compile(field.Pattern); err == nil && !re.MatchString(v) {
				return fmt.Sprintf("the schema wants a %s that matches %q", name, field.Pattern)
			}
		}
	}
	return ""
}
