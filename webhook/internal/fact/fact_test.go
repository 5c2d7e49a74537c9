package fact

import "testing"

// TestUnknownIsTheZeroValue: what nobody has looked up is not known to be absent.
func TestUnknownIsTheZeroValue(t *testing.T) {
	t.Parallel()
	var s State
	if s != Unknown || s == Absent || s == Known {
		t.Errorf("%v", s)
	}
}

func TestEachCauseHasItsWords(t *testing.T) {
	t.Parallel()
	seen := map[string]Cause{}
	for _, c := range []Cause{CauseNotAsked, CauseTimeout, CauseForbidden, CauseNoKind, CauseServer} {
		words := c.Words()
		if other, ok := seen[words]; ok || words == "" {
			t.Errorf("%q and %q are both %q", c, other, words)
		}
		seen[words] = c
	}
	if got := Cause("Odd").Words(); got != CauseNotAsked.Words() {
		t.Errorf("a cause that nobody knows: %q", got)
	}
}
