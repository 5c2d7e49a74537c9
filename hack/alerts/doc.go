// Package alerts holds the alerts and the dashboard to what Prometheus makes of them: its own
// parser reads them, and its own engine evaluates the alerts over series as belay, API servers and
// Prometheus itself make them. It has tests only, and is a module of its own since belay itself
// needs nothing of Prometheus' server.
//
// That the Prometheus operator's API takes the objects, and that metrics which are not belay's are
// really there, is the business of test/integration/monitored.
package alerts
