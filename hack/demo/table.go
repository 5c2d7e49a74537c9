package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// table prints what happened, and reports whether every line is as promised.
func table(out io.Writer, rows []row, version string) bool {
	_, _ = fmt.Fprintf(out, "\nOTF's own calls on Kubernetes %s, after the Jobs were deleted:\n\n", version)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "\tWITHOUT BELAY\t\tWITH BELAY\t\t")
	_, _ = fmt.Fprintln(w, "WHAT HAPPENS\tSecret created with\ttoken Secret\tSecret created with\ttoken Secret\tAS PROMISED")
	ok := true
	var broken []string
	for _, r := range rows {
		good, why := r.asPromised()
		mark := "yes"
		if !good {
			ok, mark = false, "NO"
			broken = append(broken, fmt.Sprintf("%s: %s", r.name, why))
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.name, owner(r.without), fate(r.without), owner(r.with), fate(r.with), mark)
	}
	_ = w.Flush()
	if ok {
		_, _ = fmt.Fprintf(out, "\nWithout belay %d of %d runs left a live token behind. With belay none did, and no call of OTF was denied by it.\n", leaks(rows), len(rows))
		return true
	}
	_, _ = fmt.Fprintf(out, "\nNot as promised:\n  %s\n", strings.Join(broken, "\n  "))
	return false
}

// asPromised holds a line against what it must show, in both namespaces: a demo in
// which nothing leaks without belay shows nothing.
func (r row) asPromised() (bool, string) {
	switch {
	case r.with.broken != nil:
		return false, "with belay: " + r.with.broken.Error()
	case r.without.broken != nil:
		return false, "without belay: " + r.without.broken.Error()
	case r.with.owner != "Anchor":
		return false, "with belay the Secret was created with owner " + r.with.owner
	case r.without.owner != "nobody":
		return false, "without belay the Secret was created with owner " + r.without.owner
	case r.with.left:
		return false, "with belay the Secret is still there"
	case r.without.left != r.leaks:
		return false, fmt.Sprintf("without belay the Secret is left over: %t, expected %t", r.without.left, r.leaks)
	}
	return true, ""
}

func owner(s side) string {
	if s.owner == "nobody" {
		return "no owner"
	}
	return "an owner"
}

func fate(s side) string {
	if s.left {
		return "LEAKED"
	}
	return "collected"
}

func leaks(rows []row) int {
	n := 0
	for _, r := range rows {
		if r.without.left {
			n++
		}
	}
	return n
}
