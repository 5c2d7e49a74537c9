package charts

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/belay-dev/belay/webhook/app"
)

// checkFlags: what the containers are given are flags of the programs in them, the ports that they
// say are those where these listen, and a Pod lives as long as its drain takes.
func checkFlags(t *testing.T, all objects) {
	deployments := typed[appsv1.Deployment](t, all, "Deployment")
	for name, command := range map[string]func() *cobra.Command{"belay-webhook": app.NewWebhookCommand, "belay-controller": app.NewControllerCommand} {
		pod := deployments[name].Spec.Template.Spec
		c := pod.Containers[0]
		env := map[string]string{}
		for _, e := range c.Env {
			env[e.Name] = e.Value
			if e.ValueFrom != nil && e.ValueFrom.FieldRef.FieldPath == "metadata.namespace" {
				env[e.Name] = "belay-system"
			}
		}
		var args []string
		for _, a := range c.Args {
			for k, v := range env {
				a = strings.ReplaceAll(a, "$("+k+")", v)
			}
			args = append(args, a)
		}
		flags := command().Flags()
		if err := flags.Parse(args); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		value := func(flag string) string {
			f := flags.Lookup(flag)
			if f == nil {
				t.Fatalf("%s has no flag %s", name, flag)
			}
			return f.Value.String()
		}
		if ns := value("namespace"); ns != "belay-system" {
			t.Errorf("%s: namespace %q", name, ns)
		}
		listens := map[string]string{"probes": "health-probe-bind-address", "metrics": "metrics-bind-address"}
		if name == "belay-webhook" {
			listens["https"], listens["reports"] = "listen", "collector-listen"
			if image := value("sidecar-image"); !strings.HasPrefix(image, "ghcr.io/belay-dev/belay-sidecar:") {
				t.Errorf("image of sidecars: %s", image)
			}
			drain, err := time.ParseDuration(value("drain"))
			if grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second; err != nil || drain < 5*time.Second || grace < drain+15*time.Second {
				t.Errorf("P18: the drain takes %s (%v), of %s until the Pod is killed", drain, err, grace)
			}
		}
		if len(c.Ports) != len(listens) {
			t.Errorf("%s: ports %v", name, c.Ports)
		}
		for _, p := range c.Ports {
			_, port, err := net.SplitHostPort(value(listens[p.Name]))
			if err != nil || port != strconv.Itoa(int(p.ContainerPort)) {
				t.Errorf("%s: port %s is %d, and it listens at %s", name, p.Name, p.ContainerPort, value(listens[p.Name]))
			}
		}
	}
}
