// Package monitored installs belay's monitoring where the Prometheus operator's API is: what
// kustomize and Helm make of manifests/components/{metrics,service-monitor,alerts} is taken by the
// CustomResourceDefinitions of the operator, the ServiceMonitor selects every replica once, and
// metrics that are not belay's own are served with the labels that alerts and dashboard ask for.
// Whether the alerts are right is the business of hack/alerts. It has tests only.
package monitored
