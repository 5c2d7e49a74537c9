package main

import (
	"context"
	"slices"
	"strings"
	"time"
)

// nodeImage returns the name of an image that the engine has: one that was built before, kind's
// own, or a new one.
func (k *kind) nodeImage(ctx context.Context) (string, error) {
	key, err := k.key(ctx, append(slices.Clone(binarySources), nodeSources...)...)
	if err != nil {
		return "", err
	}
	short, err := lacksSysResource()
	if err != nil {
		return "", err
	}
	built := "kindest/node:" + kubernetesVersion + "-belay-" + key
	image, err := k.imageHere(ctx, built, short)
	if err != nil || image != "" {
		return image, err
	}
	return built, k.buildNode(ctx, built)
}

// imageHere returns the image that nodeImage has without building one, or none. short says that
// no process here can have CAP_SYS_RESOURCE.
func (k *kind) imageHere(ctx context.Context, built string, short bool) (string, error) {
	official := k.from != "built"
	if k.from == "auto" && short {
		k.say("node image: not kind's own, whose containers want limits and scores that take CAP_SYS_RESOURCE")
		official = false
	}
	if official && k.has(ctx, officialImage) {
		k.say("node image: kind's own is here")
		k.made = "kind's own node image, which was here"
		return officialImage, nil
	}
	if k.from != "official" && k.has(ctx, built) {
		k.say("node image: built before")
		k.made = "the node image that was built before"
		return built, nil
	}
	if !official {
		return "", nil
	}
	err := k.tools.step("pulling kind's node image", func() error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
		defer cancel()
		return k.tools.run(ctx, call{name: "docker", args: []string{"pull", "--quiet", officialImage}})
	})
	switch {
	case err == nil:
		k.made = "kind's own node image, pulled now"
		return officialImage, nil
	case k.from == "official" || ctx.Err() != nil:
		return "", err
	}
	k.say("it cannot be pulled (" + lastLine(err) + "); building one")
	return "", nil
}

func (k *kind) has(ctx context.Context, image string) bool {
	return k.tools.run(ctx, call{name: "docker", args: []string{"image", "inspect", image}}) == nil
}

func lastLine(err error) string {
	lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
	return lines[len(lines)-1]
}
