// Package inject decides what becomes of a Pod that is to have a belay-sidecar. It is pure,
// and works on the object as it was sent: what it does not know it leaves alone.
//
// The sidecar is a native one, an init container that is restarted always: it starts before
// the main container and ends after it, and a Job does not wait for it. It is added after the
// Pod's own init containers, so that it starts last among them, and where a Pod brings one along
// it stays in its place: templates are made from Pods that run, other webhooks may have come
// before, and the same Pod is seen again when one comes after. Such a one is built anew from
// nothing that it says of itself, save for what others have a right to change: a mirror of
// the image's registry, the size of resources, SELinux and AppArmor, foreign variables and
// mounts.
//
// Whatever it is that keeps a Pod from having a sidecar, the Pod is admitted without: a witness
// is worth less than the Pod. The one thing that is denied is a Pod whose sidecar another
// webhook has turned into an init container that never ends, since it would hang.
package inject
