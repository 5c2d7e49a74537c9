package e2e

import "testing"

// The tests in their order: those that leave belay as it is come first, and the last take it
// away. Only what is below TestStories runs side by side.

func TestStories(t *testing.T) {
	t.Run("OTF", storyOTF)
	t.Run("Felis", storyFelis)
	t.Run("Spur", storySpur)
	t.Run("OpenSandbox", storyOpenSandbox)
	t.Run("Sidecars", sidecars)
}

func TestLatency(t *testing.T)         { latency(t) }
func TestNoLostCalls(t *testing.T)     { noLostCalls(t) }
func TestRotation(t *testing.T)        { rotation(t) }
func TestRepairs(t *testing.T)         { repairs(t) }
func TestNetworkPolicies(t *testing.T) { networkPolicies(t) }
func TestScaledToZero(t *testing.T)    { scaledToZero(t) }
func TestBootstrap(t *testing.T)       { bootstrap(t) }
func TestCertManager(t *testing.T)     { certManager(t) }
func TestUninstall(t *testing.T)       { uninstall(t) }
func TestHelm(t *testing.T)            { helm(t) }
