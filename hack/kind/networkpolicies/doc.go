// Command networkpolicies enforces NetworkPolicies on the node that it runs on,
// in clusters whose network of pods does not. What decides is the controller of
// the module sigs.k8s.io/kube-network-policies, which kind's own node images
// have in kindnet: the kernel hands it the first packet of each connection, and
// it lets it pass or not. The command of that module ends without cleaning up
// when a kubelet stops it (by SIGTERM), and makes its rules with the statement
// "queue" of nftables, which kernels without CONFIG_NFT_QUEUE do not have.
//
// So this main makes rules of its own (rules.go), by the target NFQUEUE of
// iptables, which such kernels may have; and removes them when it ends. Where
// the kernel takes the module's rules as well, packets are looked at twice,
// which changes nothing.
//
// What is different from a network plug-in's enforcement: IPv4 only; nothing
// is enforced on a node while this does not run there; and connections that
// are there when a policy comes stay, as the module has it.
//
// manifests.yaml runs it on every node.
package main
