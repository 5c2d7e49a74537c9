// Command certmanager runs cert-manager's own controllers in clusters that
// cannot pull its released images. It is a main of its own over the packages of
// the module github.com/cert-manager/cert-manager: the mains of that project
// are modules with replace lines, which no proxy serves as commands.
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
package main
