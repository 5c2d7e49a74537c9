// Command certmanager runs cert-manager's own controllers in clusters that
// cannot pull its released images, and prints what installs these images in
// clusters that can. It is a main of its own over the packages of the module
// github.com/cert-manager/cert-manager: the mains of that project are modules
// with replace lines, which no proxy serves as commands.
//
// # What is built
//
// What is the release's: the controllers of Issuers and ClusterIssuers
// (selfSigned and ca), of Certificates (trigger, key manager, request manager,
// issuing, readiness, revision manager), of CertificateRequests (approver, ca,
// selfSigned), and cainjector for webhook configurations; and the
// CustomResourceDefinitions, which are read from the module as it was
// downloaded. How the controllers are put together follows the release.
//
// What is not there: the webhook, so nothing is validated beyond the schemas,
// approvals are not authorized, and durations of seconds are accepted; ACME,
// Vault, Venafi, Ingress, Gateway API and CertificateSigningRequests;
// cainjector for APIServices and conversions; metrics; leader election, in
// place of which there is one replica that is replaced by Recreate. The
// libraries of Kubernetes are those of belay, which are newer than the
// release's.
//
// # What is released
//
// "manifests --released" has the release's own controller and cainjector do the
// same, and no more: --controllers names the controllers above, and injection
// is turned off for the kinds above. How the images are called is read from the
// Helm chart in the module; their tag is the module's version. The rest is as
// the release has it by default, metrics and leader election included, whose
// Leases are in the namespace of the Deployments. The roles are those of what
// is built, and what the commands themselves read: Challenges, for metrics; the
// CustomResourceDefinition of Certificates, for cainjector waits for it; Leases.
// The webhook is not there either.
package main
