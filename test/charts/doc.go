// Package charts holds the chart to what kustomize makes, and both to what belay promises of its
// manifests. It has tests only.
//
// By themselves they compare the files of CRDs. With BELAY_HELM and BELAY_KUSTOMIZE, the paths of
// these tools, they compare what the tools make of everything, and look at it; "make verify-chart"
// sets both.
package charts
