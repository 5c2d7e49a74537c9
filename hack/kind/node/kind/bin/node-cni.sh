#!/bin/bash
# Connects this node's pods, in place of kindnet, which is no Go module that can be fetched.
# All nodes are on one network of the container engine. Each sends what is for any pod out of
# eth0, and answers ARP requests for its own pods there, so no agent has to spread routes.
# NetworkPolicies are not enforced.
set -euo pipefail
export KUBECONFIG=/etc/kubernetes/kubelet.conf
# After a restart of the node, that of the last time would have pods start too early.
rm -f /etc/cni/net.d/10-node.conflist

pod_cidr() { kubectl get node "$(hostname)" -o jsonpath='{.spec.podCIDR}' 2>/dev/null || true; }
until [ -s "$KUBECONFIG" ] && cidr="$(pod_cidr)" && [ -n "$cidr" ]; do sleep 0.5; done

# The subnet of all pods is only in what kind gave to kubeadm.
all="$(grep -oE 'podSubnet: *"?[0-9./]+' /kind/kubeadm.conf | grep -oE '[0-9.]+/[0-9]+' | head -1 || true)"
all="${all:-10.244.0.0/16}"
ip route replace "$all" dev eth0
echo 1 >/proc/sys/net/ipv4/conf/eth0/proxy_arp
masquerade=(POSTROUTING -s "$all" ! -d "$all" -j MASQUERADE)
iptables -t nat -C "${masquerade[@]}" 2>/dev/null || iptables -t nat -A "${masquerade[@]}"

# Connections that pods open before kube-proxy has written its rules hang for half a minute, and
# CoreDNS opens some at once. The node is not ready without a configuration, so kube-proxy,
# which needs no network of pods, goes first.
for _ in $(seq 120); do
	if iptables-save -t nat 2>/dev/null | grep -q default/kubernetes:https; then break; fi
	sleep 0.5
done

mkdir -p /etc/cni/net.d
cat >/etc/cni/net.d/.node.tmp <<JSON
{
  "cniVersion": "1.0.0", "name": "node",
  "plugins": [
    {
      "type": "ptp", "ipMasq": false, "mtu": $(cat /sys/class/net/eth0/mtu),
      "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam", "ranges": [[{"subnet": "$cidr"}]], "routes": [{"dst": "0.0.0.0/0"}]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
JSON
mv /etc/cni/net.d/.node.tmp /etc/cni/net.d/10-node.conflist
