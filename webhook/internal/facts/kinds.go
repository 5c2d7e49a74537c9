package facts

import corev1 "k8s.io/api/core/v1"

// NamespaceKind is the kind of the objects whose labels opt in.
var NamespaceKind = corev1.SchemeGroupVersion.WithKind("Namespace")
