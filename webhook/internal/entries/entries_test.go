package entries

import "testing"

func TestOurs(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"otf.owner.belay.dev":          true,
		"otf.name.belay.dev":           true,
		"otf.recovery.belay.dev":       true,
		"otf.sidecar.belay.dev":        true,
		"1.otf.sidecar.belay.dev":      true, // for a policy's further selectors
		"annotation.belay.dev":         true,
		"sidecar.annotation.belay.dev": true,

		"audit.example.com":             false,
		"audit.belay.dev":               false, // nobody but its writer knows what it is
		"audit.annotation.belay.dev":    false,
		"owner.belay.dev":               false,
		"audit.notbelay.dev":            false,
		"otf.owner.belay.dev.example":   false,
		"x.sidecar.annotation.belay.de": false,
		"":                              false,
	} {
		if got := Ours(name); got != want {
			t.Errorf("%q: %t", name, got)
		}
	}
}
