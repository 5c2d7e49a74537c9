package inject

// Reason says what becomes of a Pod. The list is closed.
type Reason string

const (
	// ReasonInjected: a sidecar was added.
	ReasonInjected Reason = "SidecarInjected"
	// ReasonRebuilt: the sidecar that came with the Pod was built anew.
	ReasonRebuilt Reason = "SidecarRebuilt"
	// ReasonInPlace: the sidecar is as it should be.
	ReasonInPlace Reason = "SidecarInPlace"
	// ReasonSkipped: the Pod's annotation declines it.
	ReasonSkipped Reason = "SidecarSkipped"
	// ReasonMirrorPod: it is the image of a static Pod, which nobody can change.
	ReasonMirrorPod Reason = "MirrorPod"
	// ReasonWindows: it is for Windows, which the sidecar is not made for.
	ReasonWindows Reason = "WindowsPod"
	// ReasonNameClash: the Pod has a container or a volume of the sidecar's name.
	ReasonNameClash Reason = "NameClash"
	// ReasonNoMainContainer: what is named as the main container is not there.
	ReasonNoMainContainer Reason = "NoMainContainer"
	// ReasonUnsuitable: the Pod has not the shape of one.
	ReasonUnsuitable Reason = "UnsuitablePod"

	// ReasonMissing: the final Pod has no sidecar.
	ReasonMissing Reason = "SidecarMissing"
	// ReasonBlocking: the final Pod would wait for its sidecar to end, which it never does.
	ReasonBlocking Reason = "SidecarBlocking"
	// ReasonDamaged: the final Pod's sidecar cannot report.
	ReasonDamaged Reason = "SidecarDamaged"
)

// CASource is where a sidecar has the CA of the collector from.
type CASource string

const (
	// CAConfigMap is a ConfigMap in the Pod's namespace.
	CAConfigMap CASource = "ConfigMap"
	// CAClusterTrustBundle is a ClusterTrustBundle, which every kubelet has to know.
	CAClusterTrustBundle CASource = "ClusterTrustBundle"
)

// Config is what all sidecars have in common.
type Config struct {
	// Image of the sidecar.
	Image string
	// Collector is HOST:PORT of the collector, and ServerName the name in its certificate.
	Collector, ServerName string
	// CPU, Memory and EphemeralStorage are what a sidecar requests, and its limits, where the
	// Pod's containers have such.
	CPU, Memory, EphemeralStorage string
}

// Input is all that a decision depends on.
type Input struct {
	// Pod is the object as it was sent.
	Pod map[string]any
	// By says what asks for the sidecar: v1alpha1.SidecarByPolicy or SidecarByAnnotation.
	By string
	// MainContainer is the policy's; empty for none.
	MainContainer string
	Config        Config
	CA            CASource
}

// Edit is one change of the object, as an operation of a JSON patch (RFC 6902).
type Edit struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Decision is what becomes of a Pod.
type Decision struct {
	Allowed bool
	Reason  Reason
	// Message says what was done, or what is wrong.
	Message  string
	Warnings []string
	Edits    []Edit
}
