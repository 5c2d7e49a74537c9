package facts

import corev1 "k8s.io/api/core/v1"

// namespaceKind is the kind of the objects whose labels opt in.
var namespaceKind = corev1.SchemeGroupVersion.WithKind("Namespace")
