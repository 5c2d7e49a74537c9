// Package charts holds the chart's CRDs to those of manifests/crds. It has
// tests only.
//
// By themselves they read the files of both. With BELAY_HELM and
// BELAY_KUSTOMIZE, the paths of these tools, they also compare what the tools
// make of them; "make verify-chart" sets both.
package charts
