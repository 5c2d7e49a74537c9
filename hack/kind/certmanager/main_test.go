package main

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A controller of another name, in another version of cert-manager, is noticed
// before a cluster waits for it.
func TestEveryControllerIsThere(t *testing.T) {
	t.Parallel()
	for _, name := range controllers {
		if controller.Known()[name] == nil {
			t.Errorf("cert-manager has no controller %q", name)
		}
	}
}

func printed(t *testing.T, args ...string) []*unstructured.Unstructured {
	t.Helper()
	var out bytes.Buffer
	if err := run(append([]string{"manifests"}, args...), &out); err != nil {
		t.Fatal(err)
	}
	return objects(t, out.Bytes())
}

func TestManifests(t *testing.T) {
	t.Parallel()
	var named bytes.Buffer
	if err := run([]string{"images"}, &named); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args   []string
		images []string
		kinds  map[string]int // besides those that both have
	}{
		"what is built":    {[]string{"--image", "localhost/image:v1"}, []string{"localhost/image:v1", "localhost/image:v1"}, nil},
		"what is released": {[]string{"--released"}, strings.Fields(named.String()), map[string]int{"Role": 1, "RoleBinding": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kinds := map[string]int{}
			var images []string
			accounts, used := map[string]bool{}, map[string]bool{}
			for _, object := range printed(t, test.args...) {
				kinds[object.GetKind()]++
				switch object.GetKind() {
				case "ServiceAccount":
					accounts[object.GetName()] = true
				case "Deployment":
					pod, _, err := unstructured.NestedMap(object.Object, "spec", "template", "spec")
					if err != nil {
						t.Fatal(err)
					}
					used[pod["serviceAccountName"].(string)] = true
					for _, container := range pod["containers"].([]any) {
						container := container.(map[string]any)
						images = append(images, container["image"].(string))
						if container["imagePullPolicy"] != "IfNotPresent" {
							t.Errorf("%s pulls its image: %v", object.GetName(), container["imagePullPolicy"])
						}
					}
				case "ClusterRole", "Role":
					rules, _, err := unstructured.NestedSlice(object.Object, "rules")
					if err != nil {
						t.Fatal(err)
					}
					for _, rule := range rules {
						for _, list := range rule.(map[string]any) {
							for _, item := range list.([]any) {
								if strings.Contains(item.(string), "*") {
									t.Errorf("%s grants %v", object.GetName(), rule)
								}
							}
						}
					}
				}
			}
			want := map[string]int{
				"CustomResourceDefinition": 6, "Namespace": 1, "ServiceAccount": 2, "ClusterRole": 2, "ClusterRoleBinding": 2, "Deployment": 2,
			}
			maps.Copy(want, test.kinds)
			if diff := cmp.Diff(want, kinds); diff != "" {
				t.Errorf("kinds (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.images, images); diff != "" {
				t.Errorf("images (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(accounts, used); diff != "" {
				t.Errorf("service accounts (-there +used):\n%s", diff)
			}
		})
	}
}

// Both have the same controllers, and inject into the same kinds.
func TestReleasedArgs(t *testing.T) {
	t.Parallel()
	args := map[string][]string{}
	for name, container := range containers(printed(t, "--released")) {
		args[name] = container.args
	}
	want := map[string][]string{
		"cert-manager": {
			"--v=2", "--leader-election-namespace=cert-manager", "--cluster-resource-namespace=cert-manager", "--controllers=" + strings.Join(controllers, ","),
		},
		"cert-manager-cainjector": {
			"--v=2", "--leader-election-namespace=cert-manager",
			"--enable-mutatingwebhookconfigurations-injectable=true", "--enable-validatingwebhookconfigurations-injectable=true",
			"--enable-customresourcedefinitions-injectable=false", "--enable-apiservices-injectable=false",
		},
	}
	if diff := cmp.Diff(want, args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
}

// The chart of another version may name its images elsewhere.
func TestTheModuleNamesItsImages(t *testing.T) {
	t.Parallel()
	folder, err := moduleFolder(t.Context(), moduleVersion())
	if err != nil {
		t.Fatal(err)
	}
	named, err := releasedImages(folder, moduleVersion())
	if err != nil {
		t.Fatal(err)
	}
	for image, what := range map[string]string{named.controller: "/cert-manager-controller:", named.cainjector: "/cert-manager-cainjector:"} {
		registry, rest, _ := strings.Cut(image, "/")
		if !strings.Contains(registry, ".") || !strings.HasSuffix("/"+rest, what+moduleVersion()) {
			t.Errorf("the image is called %q; want a registry and …%s%s", image, what, moduleVersion())
		}
	}
}

func TestReleasedImages(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		values string
		want   images
		failed string
	}{
		"registry, namespace and names": {
			"imageRegistry: registry.example.com\nimageNamespace: team\nimage: {name: controller, repository: ''}\ncainjector: {image: {name: cainjector}}",
			images{"registry.example.com/team/controller:v1.2.3", "registry.example.com/team/cainjector:v1.2.3"}, "",
		},
		"no namespace": {
			"imageRegistry: registry.example.com\nimage: {name: controller}\ncainjector: {image: {name: cainjector}}",
			images{"registry.example.com/controller:v1.2.3", "registry.example.com/cainjector:v1.2.3"}, "",
		},
		"a repository, and a tag, of their own": {
			"imageRegistry: registry.example.com\nimage: {name: controller, repository: other.example.com/a/b}\ncainjector: {image: {name: cainjector, tag: v0}}",
			images{"other.example.com/a/b:v1.2.3", "registry.example.com/cainjector:v0"}, "",
		},
		"no registry": {"image: {name: controller}\ncainjector: {image: {name: cainjector}}", images{}, `image "image"`},
		"no name":     {"imageRegistry: registry.example.com\nimage: {name: controller}\ncainjector: {}", images{}, `image "cainjector.image"`},
		"no YAML":     {"image: [", images{}, "values.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			chart := filepath.Join(folder, "deploy", "charts", "cert-manager")
			if err := os.MkdirAll(chart, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(chart, "values.yaml"), []byte(test.values), 0o644); err != nil {
				t.Fatal(err)
			}
			got, err := releasedImages(folder, "v1.2.3")
			if (err != nil) != (test.failed != "") || err != nil && !strings.Contains(err.Error(), test.failed) {
				t.Fatalf("the error is %v; want %q", err, test.failed)
			}
			if err == nil && got != test.want {
				t.Errorf("%+v; want %+v", got, test.want)
			}
		})
	}
	if _, err := releasedImages(t.TempDir(), "v1.2.3"); err == nil || !strings.Contains(err.Error(), "values.yaml") {
		t.Errorf("a folder without the chart: %v", err)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run([]string{"version"}, &out); err != nil || !strings.HasPrefix(out.String(), "v1.") {
		t.Errorf("version: %q, %v", out.String(), err)
	}
	for _, args := range [][]string{{"issue"}, {"controller", "--nope"}, {"cainjector", "x"}, {"images", "x"}, {"manifests", "--released", "--image", "x"}} {
		if _, misused := errors.AsType[usageError](run(args, &out)); !misused {
			t.Errorf("%q is no usage error", args)
		}
	}
	if err := run([]string{"manifests", "--module", t.TempDir()}, &out); err == nil || !strings.Contains(err.Error(), "deploy/crds") {
		t.Errorf("a folder that is not the module's: %v", err)
	}
}
