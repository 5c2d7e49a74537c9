package owner

import "fmt"

// AsWarning is what warn mode makes of a decision: the object is admitted
// unchanged, and the warning says what enforce would have done.
func (d Decision) AsWarning() Decision {
	w := Decision{Allowed: true, Reason: d.Reason, Message: d.Message, Warnings: d.Warnings, Ambiguous: d.Ambiguous}
	switch {
	case !d.Allowed:
		w.Message = fmt.Sprintf("mode warn: would be denied with %d: %s", d.Code, d.Message)
		w.Warnings = append(w.Warnings[:len(w.Warnings):len(w.Warnings)], w.Message)
	case len(d.Edits) > 0:
		w.Message = "mode warn: would be " + d.Message
		w.Warnings = append(w.Warnings[:len(w.Warnings):len(w.Warnings)], w.Message)
	}
	return w
}
