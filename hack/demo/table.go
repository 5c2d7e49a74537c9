package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// legend says how to read every table.
const legend = "Each line is replayed in two namespaces, under the rights of the upstream itself, and held against what is promised; CAPITALS are what goes wrong.\n"

// table is the story of one upstream.
type table struct {
	title string
	// columns are what the two cells of each side show.
	columns cells
	lines   []line
	// sum is the sentence below the lines, where they are all as promised.
	sum string
}

// cells are what one side shows.
type cells [2]string

// line is one thing that happened, without belay and with it.
type line struct {
	name          string
	without, with cells
	// broken is what is not as promised, on either side.
	broken error
}

// print writes a table, and reports whether every line is as promised.
func (t table) print(out io.Writer) bool {
	_, _ = fmt.Fprintf(out, "\n%s\n\n", t.title)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "\tWITHOUT BELAY\t\tWITH BELAY\t\t")
	_, _ = fmt.Fprintf(w, "WHAT HAPPENS\t%s\t%s\t%s\t%s\tAS PROMISED\n", t.columns[0], t.columns[1], t.columns[0], t.columns[1])
	var broken []string
	for _, l := range t.lines {
		mark := "yes"
		if l.broken != nil {
			mark = "NO"
			broken = append(broken, fmt.Sprintf("%s: %s", l.name, strings.ReplaceAll(l.broken.Error(), "\n", "; ")))
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", l.name, l.without[0], l.without[1], l.with[0], l.with[1], mark)
	}
	_ = w.Flush()
	if len(broken) == 0 {
		_, _ = fmt.Fprintf(out, "\n%s\n", t.sum)
		return true
	}
	_, _ = fmt.Fprintf(out, "\nNot as promised:\n  %s\n", strings.Join(broken, "\n  "))
	return false
}

// printAll writes all tables, and reports whether they are all as promised.
func printAll(out io.Writer, version string, tables []table) bool {
	if len(tables) == 0 {
		return false
	}
	_, _ = fmt.Fprintf(out, "\nKubernetes %s. %s", version, legend)
	ok := true
	for _, t := range tables {
		ok = t.print(out) && ok
	}
	return ok
}
