package choice_test

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/belay-dev/belay/hack/kind/choice"
)

func TestChoose(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		from   string
		pull   int // its exit code; -1: it must not be called, -2: it cannot be started
		want   string
		failed bool
	}{
		"by default released, where it can be pulled":  {"", 0, choice.Released, false},
		"by default built, where it cannot":            {"", choice.NotPulled, choice.Built, false},
		"auto is the default, where it can":            {choice.Auto, 0, choice.Released, false},
		"auto is the default, where it cannot":         {choice.Auto, choice.NotPulled, choice.Built, false},
		"another failure is none of the registry":      {choice.Auto, 1, "", true},
		"no engine is no reason to build":              {choice.Auto, 3, "", true},
		"a command that is not there is not a refusal": {choice.Auto, -2, "", true},
		"released is asked for, and can be pulled":     {choice.Released, 0, choice.Released, false},
		"released is asked for, and cannot be pulled":  {choice.Released, choice.NotPulled, "", true},
		"built is asked for":                           {choice.Built, -1, choice.Built, false},
		"something else is asked for":                  {"latest", -1, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := choice.Choose(test.from, func() error {
				command := exec.CommandContext(t.Context(), "sh", "-c", fmt.Sprintf("exit %d", test.pull))
				switch test.pull {
				case -1:
					t.Error("it pulls")
				case -2:
					command = exec.CommandContext(t.Context(), t.TempDir()+"/kind")
				}
				if err := command.Run(); err != nil {
					return fmt.Errorf("kind pull: %w", err)
				}
				return nil
			})
			if got != test.want || (err != nil) != test.failed {
				t.Errorf("%q, %v; want %q, an error: %t", got, err, test.want, test.failed)
			}
		})
	}
}
