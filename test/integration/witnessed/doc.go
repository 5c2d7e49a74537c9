// Package witnessed tests the sidecars: how Pods get them, what they report, and what becomes
// of it, on a real control plane with real belay-sidecar processes. There is no kubelet: the
// tests write what one would write to a Pod's status, and mount what one would mount.
package witnessed
