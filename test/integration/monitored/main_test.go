package monitored

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/belay-dev/belay/test/integration/stack"
)

// The Prometheus operator, for its CustomResourceDefinitions alone. No Go code is imported, so
// there is no go.sum to hold the module to its contents: the sum is here. It is the hash that
// go.sum would have, and the go command says it of what it has downloaded.
const (
	operatorModule  = "github.com/prometheus-operator/prometheus-operator"
	operatorVersion = "v0.94.1"
	operatorSum     = "h1:QEIb2wenPH+SdMN1xMf8l4Pmj00YYXXI6HlbLlQWkww="
)

// shared is belay, on a control plane that has the operator's CRDs and cert-manager's.
var shared *stack.Stack

func TestMain(m *testing.M) {
	os.Exit(stack.Main(m, &shared, 4, stack.Options{Presets: []string{"felis-restore"}}, func(ctx context.Context, s *stack.Stack) error {
		operator, err := operatorFolder(ctx)
		if err != nil {
			return err
		}
		certManager, err := certManagerFolder(ctx)
		if err != nil {
			return err
		}
		for _, pattern := range []string{
			filepath.Join(operator, "example", "prometheus-operator-crd", "monitoring.coreos.com_servicemonitors.yaml"),
			filepath.Join(operator, "example", "prometheus-operator-crd", "monitoring.coreos.com_prometheusrules.yaml"),
			filepath.Join(certManager, "deploy", "crds", "*.yaml"),
		} {
			if err := applyFiles(ctx, s, pattern); err != nil {
				return err
			}
		}
		return nil
	}))
}

// applyFiles applies the manifests that a pattern is about; there must be one.
func applyFiles(ctx context.Context, s *stack.Stack, pattern string) error {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("there is no %s", pattern)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		objects, err := stack.Decode(raw)
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
		if err := s.Apply(ctx, objects...); err != nil {
			return err
		}
	}
	return nil
}

// operatorFolder is where the operator's module is. The go command downloads it if need be.
func operatorFolder(ctx context.Context) (string, error) {
	// Outside of every module, so that no go.mod has a say.
	dir, err := os.MkdirTemp("", "belay-monitored-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var said struct{ Dir, Sum, Error string }
	err = ask(ctx, dir, &said, "mod", "download", "-json", operatorModule+"@"+operatorVersion)
	if said.Error != "" {
		err = errors.New(said.Error)
	}
	if err != nil {
		return "", fmt.Errorf("downloading %s %s: %w", operatorModule, operatorVersion, err)
	}
	if said.Sum != operatorSum {
		return "", fmt.Errorf("%s %s has the sum %s, and %s is expected", operatorModule, operatorVersion, said.Sum, operatorSum)
	}
	return said.Dir, nil
}

// certManagerFolder is where the module of cert-manager is that go.mod pins.
func certManagerFolder(ctx context.Context) (string, error) {
	var said struct{ Dir string }
	if err := ask(ctx, stack.Root(), &said, "list", "-m", "-json", "github.com/cert-manager/cert-manager"); err != nil {
		return "", fmt.Errorf("looking for cert-manager's module: %w", err)
	}
	return said.Dir, nil
}

// ask reads the JSON that the go command prints, also when it fails.
func ask(ctx context.Context, dir string, answer any, args ...string) error {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr = dir, &stderr
	out, err := cmd.Output()
	if jsonErr := json.Unmarshal(out, answer); err == nil {
		err = jsonErr
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	return nil
}
