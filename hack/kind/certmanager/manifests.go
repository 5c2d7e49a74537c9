package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
)

// namespace is where manifests.yaml puts everything.
const namespace = "cert-manager"

// installation is everything but the CustomResourceDefinitions.
//
//go:embed manifests.yaml
var installation string

type manifestOptions struct {
	image    string // with this binary
	module   string
	released bool // the release's images and commands, in place of image
}

// installed is what manifests.yaml is about.
type installed struct {
	Released               bool
	Controller, CAInjector workload
}

// A workload is one container.
type workload struct {
	Image string
	Args  list
}

// list prints itself as a list of YAML.
type list []string

func (l list) String() string {
	content, err := json.Marshal([]string(l))
	if err != nil {
		return err.Error() // strings have no error
	}
	return string(content)
}

func defaultImage(version string) string { return "localhost/belay-certmanager:" + version }

// writeManifests writes the CustomResourceDefinitions of the module and what
// runs the image, as one stream of YAML.
func writeManifests(ctx context.Context, w io.Writer, o manifestOptions) error {
	folder, err := folderOr(ctx, o.module)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(folder, "deploy", "crds", "*.yaml"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("%s has no deploy/crds/*.yaml; is it the folder of %s?", folder, module)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(string(content), "---\n") {
			fmt.Fprintln(w, "---")
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
	what := installed{Controller: workload{o.image, builtArgs("controller")}, CAInjector: workload{o.image, builtArgs("cainjector")}}
	if o.released {
		named, err := releasedImages(folder, moduleVersion())
		if err != nil {
			return err
		}
		forController, forCAInjector := releasedArgs()
		what = installed{Released: true, Controller: workload{named.controller, forController}, CAInjector: workload{named.cainjector, forCAInjector}}
	}
	text, err := template.New("manifests.yaml").Parse(installation)
	if err != nil {
		return err
	}
	return text.Execute(w, what)
}

func builtArgs(command string) list { return list{command, "--health-address=:9403"} }

// releasedArgs have the release's commands do what this binary does, and no more than the roles
// allow. All else is as the release has it by default: leader election, metrics on port 9402, and
// the controller's probe on port 9403.
func releasedArgs() (forController, forCAInjector list) {
	common := list{"--v=2", "--leader-election-namespace=" + namespace}
	forController = append(slices.Clone(common), "--cluster-resource-namespace="+namespace, "--controllers="+strings.Join(controllers, ","))
	forCAInjector = slices.Clone(common)
	for _, kind := range []string{
		cainjector.MutatingWebhookConfigurationName, cainjector.ValidatingWebhookConfigurationName,
		cainjector.CustomResourceDefinitionName, cainjector.APIServiceName,
	} {
		forCAInjector = append(forCAInjector, fmt.Sprintf("--enable-%ss-injectable=%t", kind, injected[kind]))
	}
	return forController, forCAInjector
}

// moduleFolder returns where the go command keeps the module; it downloads the
// module if need be.
func moduleFolder(ctx context.Context, version string) (string, error) {
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", module+"@"+version)
	download.Stderr = os.Stderr
	out, err := download.Output()
	var answer struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &answer); jsonErr == nil && answer.Error != "" {
		err = errors.New(answer.Error)
	}
	if err != nil {
		return "", fmt.Errorf("looking for the module %s@%s (name its folder with --module): %w", module, version, err)
	}
	return answer.Dir, nil
}
