package e2e

import (
	"context"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/belay-dev/belay/test/fixtures/opensandbox"
	"github.com/belay-dev/belay/test/fixtures/spur"
)

// presets are those of the upstreams, below manifests/presets.
var presets = []string{"otf", "felis-restore", "spur", "opensandbox-witnessed"}

// upstreams installs the upstreams' kinds and presets, and waits until the policies are in force.
func (c *cluster) upstreams(ctx context.Context) error {
	for _, crd := range []*apiextensionsv1.CustomResourceDefinition{spur.CRD(), opensandbox.CRD(opensandbox.CRDOptions{Record: &opensandbox.Record{}})} {
		if err := c.ApplyCRD(ctx, crd); err != nil {
			return err
		}
	}
	for _, preset := range presets {
		if _, err := c.kubectl(ctx, "apply", "-k", "manifests/presets/"+preset); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for _, w := range []struct {
		wait  func(context.Context, string) error
		names []string
	}{
		{c.WaitPolicy, []string{"otf", "spur"}},
		{c.WaitNamePolicy, []string{"otf", "spur", "felis-restore"}},
		{c.WaitRecoveryPolicy, []string{"opensandbox"}},
	} {
		for _, name := range w.names {
			if err := w.wait(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
