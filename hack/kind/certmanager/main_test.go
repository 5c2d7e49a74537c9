package main

import (
	"bytes"
	"errors"
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
	kinds := map[string]int{}
	var images []string
	accounts, used := map[string]bool{}, map[string]bool{}
	for _, object := range printed(t, "--image", "localhost/image:v1") {
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
		case "ClusterRole":
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
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"localhost/image:v1", "localhost/image:v1"}, images); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(accounts, used); diff != "" {
		t.Errorf("service accounts (-there +used):\n%s", diff)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run([]string{"version"}, &out); err != nil || !strings.HasPrefix(out.String(), "v1.") {
		t.Errorf("version: %q, %v", out.String(), err)
	}
	for _, args := range [][]string{{"issue"}, {"controller", "--nope"}, {"cainjector", "x"}} {
		if _, misused := errors.AsType[usageError](run(args, &out)); !misused {
			t.Errorf("%q is no usage error", args)
		}
	}
	if err := run([]string{"manifests", "--module", t.TempDir()}, &out); err == nil || !strings.Contains(err.Error(), "deploy/crds") {
		t.Errorf("a folder that is not the module's: %v", err)
	}
}
