// Package app is belay-sidecar: it probes a pod's main container from inside the pod and
// tells belay's collector whether it is ready.
//
// # What it does
//
// It runs the probe that it was given, as the kubelet would, but more often while it waits for
// the container to be ready. It reports when the result changes, at once; and again after the
// time that the collector asks for: a minute as a rule, a few seconds while the pod is to
// recover. While the collector is away it tries again, at most every five seconds, and keeps
// nothing but what is so now. On SIGTERM it says that it stops, waits two seconds for that at
// most, and exits with 0.
//
// Nothing that goes wrong ends it: a native sidecar that is not running makes its pod
// unready. With settings that make no sense it says so in its log, and waits for SIGTERM.
//
// It opens no port, runs as any user, and writes no file.
//
// # Flags
//
//	--once            probe once, report once, say what came of both, and exit: 0 when the
//	                  container is ready (or there is no probe) and the collector took the
//	                  report, 1 otherwise
//	--print-settings  print every setting, and what is wrong with them; 0 when nothing is,
//	                  2 otherwise
//	--version         print the version
//	--help            print this
//
// In a running pod:
//
//	kubectl exec POD -c belay-sidecar -- /belay-sidecar --once
//
// # Settings
//
// They come from environment variables, which injection sets; see package settings, or
// --print-settings. BELAY_LOG_LEVEL=debug logs each probe and each report. The token and
// the CA are read from their files anew for every report and every connection, so that
// both can be renewed under a running sidecar. A token is never logged.
package app
