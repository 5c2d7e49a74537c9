package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// images are the names of the two that run in a cluster.
type images struct{ controller, cainjector string }

// releasedImages reads the names of the release's images from its Helm chart: the module has no
// other place for them. The tag is the chart's own version, which is the module's.
func releasedImages(folder, version string) (images, error) {
	file := filepath.Join(folder, "deploy", "charts", "cert-manager", "values.yaml")
	content, err := os.ReadFile(file)
	if err != nil {
		return images{}, fmt.Errorf("reading the names of the released images: %w", err)
	}
	var values chartValues
	if err := yaml.Unmarshal(content, &values); err != nil {
		return images{}, fmt.Errorf("reading %s: %w", file, err)
	}
	var named images
	for _, image := range []struct {
		to    *string
		what  string
		image chartImage
	}{{&named.controller, "image", values.Image}, {&named.cainjector, "cainjector.image", values.CAInjector.Image}} {
		if *image.to = values.name(image.image, version); *image.to == "" {
			return images{}, fmt.Errorf("%s does not say what image %q is called, by imageRegistry and its name or by its repository", file, image.what)
		}
	}
	return named, nil
}

// chartValues is what names images in the chart's values.yaml.
type chartValues struct {
	ImageRegistry  string     `json:"imageRegistry"`
	ImageNamespace string     `json:"imageNamespace"`
	Image          chartImage `json:"image"`
	CAInjector     struct {
		Image chartImage `json:"image"`
	} `json:"cainjector"`
}

type chartImage struct {
	Repository string `json:"repository"`
	Name       string `json:"name"`
	Tag        string `json:"tag"`
}

// name is what the chart's template makes of these values; empty if they do not suffice. A digest
// beside the tag would add nothing: images lose it when they are saved and loaded.
func (v chartValues) name(image chartImage, version string) string {
	repository := image.Repository
	if repository == "" {
		if v.ImageRegistry == "" || image.Name == "" {
			return ""
		}
		repository = v.ImageRegistry + "/" + image.Name
		if v.ImageNamespace != "" {
			repository = v.ImageRegistry + "/" + v.ImageNamespace + "/" + image.Name
		}
	}
	return repository + ":" + cmp.Or(image.Tag, version)
}

// folderOr returns the folder, or that of the go command's module cache.
func folderOr(ctx context.Context, folder string) (string, error) {
	if folder != "" {
		return folder, nil
	}
	return moduleFolder(ctx, moduleVersion())
}
