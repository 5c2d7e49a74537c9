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
	"strings"
	"text/template"
)

// installation is everything but the CustomResourceDefinitions.
//
//go:embed manifests.yaml
var installation string

type manifestOptions struct {
	image  string
	module string
}

func defaultImage(version string) string { return "localhost/belay-certmanager:" + version }

// writeManifests writes the CustomResourceDefinitions of the module and what
// runs the image, as one stream of YAML.
func writeManifests(ctx context.Context, w io.Writer, o manifestOptions) error {
	if o.module == "" {
		var err error
		if o.module, err = moduleFolder(ctx, moduleVersion()); err != nil {
			return err
		}
	}
	files, err := filepath.Glob(filepath.Join(o.module, "deploy", "crds", "*.yaml"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("%s has no deploy/crds/*.yaml; is it the folder of %s?", o.module, module)
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
	text, err := template.New("manifests.yaml").Parse(installation)
	if err != nil {
		return err
	}
	return text.Execute(w, map[string]string{"Image": o.image, "Version": moduleVersion()})
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
