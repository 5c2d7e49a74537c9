/*
Chart makes the templates of manifests/charts/belay from what kustomize builds.

	go run ./hack/chart -kustomize bin/kustomize-…

belay is written down once, below manifests. Each of its overlays and components is one side of a
choice that the chart offers as a value; this command builds all combinations, and merges the
objects line by line: what all of them have stands as it is, and the rest in a condition. So the
chart makes what kustomize makes, whatever is chosen, and test/charts compares the two.

Some fields become values in addition, such as images and resources (see holes), and the
namespace is that of the release. Its CRDs are made by "make -C manifests helm-gen-crds", and the
Namespace is Helm's business; both are left out. values.yaml, and what only Helm needs, is written
by hand.
*/
package main
