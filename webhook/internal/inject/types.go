package inject

// Reason says what becomes of a Pod. The list is closed.
type Reason string

const (
	// ReasonInjected means: a sidecar was added.
	ReasonInjected Reason = "SidecarInjected"
	// ReasonRebuilt means: the sidecar that came with the Pod was built anew.
	ReasonRebuilt Reason = "SidecarRebuilt"
	// ReasonInPlace means: the sidecar is as it should be.
	ReasonInPlace Reason = "SidecarInPlace"
	// ReasonSkipped means: the Pod's annotation declines it.
	ReasonSkipped Reason = "SidecarSkipped"
	// ReasonMirrorPod means: it is the image of a static Pod, which nobody can change.
	ReasonMirrorPod Reason = "MirrorPod"
	// ReasonWindows means: it is for Windows, which the sidecar is not made for.
	ReasonWindows Reason = "WindowsPod"
	// ReasonNameClash means: the Pod has a container or a volume of the sidecar's name.
	ReasonNameClash Reason = "NameClash"
	// ReasonNoMainContainer means: what is named as the main container is not there.
	ReasonNoMainContainer Reason = "NoMainContainer"
	// ReasonTooLarge means: the Pod is so large that with a sidecar it might not be stored.
	ReasonTooLarge Reason = "PodTooLarge"
	// ReasonUnsuitable means: the Pod has not the shape of one.
	ReasonUnsuitable Reason = "UnsuitablePod"

	// ReasonMissing means: the final Pod has no sidecar.
	ReasonMissing Reason = "SidecarMissing"
	// ReasonBlocking means: the final Pod would wait for its sidecar to end, which it never does.
	ReasonBlocking Reason = "SidecarBlocking"
	// ReasonDamaged means: the final Pod's sidecar cannot report.
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
	// Pod is the object as it was sent, and Bytes its length as JSON.
	Pod   map[string]any
	Bytes int
	// By says what asks for the sidecar: v1alpha1.SidecarByPolicy or SidecarByAnnotation.
	By string
	// MainContainer is the policy's; empty for none.
	MainContainer string
	Config        Config
	CA            CASource
}

// maxPodBytes is how large a Pod may be that gets a sidecar: etcd's bound of 1.5 MiB for a
// request (etcd --max-request-bytes), less 16 KiB for the sidecar and what the API server adds.
const maxPodBytes = 1536<<10 - 16<<10

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
