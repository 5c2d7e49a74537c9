package main

import (
	"encoding/binary"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
)

// table is what rules are in, and what whoever cleans up after this looks for.
const table = "belay-networkpolicies"

// makeRules leads new connections into the queue. "nft list table ip
// belay-networkpolicies" prints:
//
//	type filter hook postrouting priority srcnat - 5
//	meta skuid 0 accept
//	ct state established,related accept
//	NFQUEUE num 102 bypass
//
// The place is that of the module's own rules: after the Service's address was
// replaced by a Pod's, before that of who connects is replaced. What processes
// of the node's root send, kubelets' probes above all, always passes, as there.
func makeRules() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	t := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: table})
	conn.FlushTable(t) // of a process that could not clean up
	chain := conn.AddChain(&nftables.Chain{
		Name: "postrouting", Table: t, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource - 5),
	})
	accept := &expr.Verdict{Kind: expr.VerdictAccept}
	target := xt.Unknown(nfqueue(queue))
	for _, rule := range [][]expr.Any{
		{
			&expr.Meta{Key: expr.MetaKeySKUID, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
			accept,
		},
		{
			&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
			&expr.Bitwise{
				SourceRegister: 1, DestRegister: 1, Len: 4,
				Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED), Xor: make([]byte, 4),
			},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
			accept,
		},
		{&expr.Target{Name: "NFQUEUE", Rev: 3, Info: &target}},
	} {
		conn.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: rule})
	}
	return conn.Flush()
}

// removeRules removes what makeRules made.
func removeRules() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	conn.DelTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: table})
	return conn.Flush()
}

// nfqueue is struct xt_NFQ_info_v3 of linux/netfilter/xt_NFQUEUE.h, padded to
// eight bytes as all targets are: the queue's number, that it is one queue, and
// that packets pass when nobody reads it, so that a node whose enforcer was
// killed goes on working.
func nfqueue(number uint16) []byte {
	const bypass = 1
	info := make([]byte, 0, 8)
	for _, field := range [...]uint16{number, 1, bypass, 0} {
		info = binary.NativeEndian.AppendUint16(info, field)
	}
	return info
}
