package recovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/belay-dev/belay/webhook/internal/fact"
)

// The model takes an object through every sequence of writes, however long: what a write
// may do depends on the stored object alone, so that it is enough to make every write once
// in every state that any sequence leads to. Beside the object it remembers what belay must not forget, by rules
// that are written from the design and not from the code.

// memory is what has to be remembered of an object.
type memory struct {
	// inFailure: it has failed, and neither recovered nor had its Pods replaced since.
	inFailure bool
	// owed are the UIDs that have been in its record since then, in order.
	owed string
	// unprovable: it failed terminally, in a resume, or without a record, or Pods are missing
	// from its record. No evidence is enough.
	unprovable bool
}

// state is a stored object and what has to be remembered of it.
type state struct {
	phase, record string
	terminal      bool
	memory        memory
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, " ")
}

func (s state) status() Status {
	out := status(s.phase, list(s.record)...)
	out.Terminal = s.terminal
	return out
}

// modelWrite is one write, and what the world is like when it comes.
type modelWrite struct {
	phase    string
	terminal bool
	// record is what the write does with it; keep is a merge that does not mention it.
	record string
	// first and second are what has become of the Pods u1 and u2.
	first, second string
	// around: "resume" for a resume in flight, "annotation" for the one that allows recovery.
	around string
}

func (w modelWrite) String() string {
	return fmt.Sprintf("phase %q, record %s, terminal %t; u1 %s, u2 %s, %s", w.phase, w.record, w.terminal, w.first, w.second, w.around)
}

const (
	keeping, nulling = "kept", "null"
	isHealthy        = "healthy"
	isFailing        = "failing"
	isGone           = "gone"
	isReplaced       = "replaced"
	isUnknown        = "unknown"
	noPods           = "nowhere"
)

func modelWrites() []modelWrite {
	var out []modelWrite
	for _, phase := range []string{"", "Pending", "Succeed", "Pausing", "Paused", "Resuming", "Failed", "Melting"} {
		for _, terminal := range []bool{false, true} {
			for _, record := range []string{keeping, nulling, u1, u2} {
				for _, first := range []string{isHealthy, isFailing, isGone, isReplaced, isUnknown} {
					for _, second := range []string{noPods, isHealthy, isFailing} {
						arounds := []string{""}
						switch phase { // where it may matter
						case "Failed":
							arounds = append(arounds, "resume")
						case "Succeed", "Pending":
							arounds = append(arounds, "annotation")
						}
						for _, around := range arounds {
							out = append(out, modelWrite{phase, terminal, record, first, second, around})
						}
					}
				}
			}
		}
	}
	return out
}

// pods are the Pods of the object, and those of them that fail.
func (w modelWrite) pods() (pods []Pod, failing []string, known bool) {
	switch w.first {
	case isHealthy:
		pods = append(pods, healthyPods[0])
	case isFailing:
		pods, failing = append(pods, failedPods[0]), append(failing, u1)
	case isReplaced:
		pods = append(pods, replacementPod)
	}
	switch w.second {
	case isHealthy:
		pods = append(pods, healthyPods[1])
	case isFailing:
		pods, failing = append(pods, failedPods[1]), append(failing, u2)
	}
	return pods, failing, w.first != isUnknown
}

// A Pod costs more to build than to decide about.
var (
	healthyPods    = []Pod{one(), two()}
	failedPods     = []Pod{one(looping), two(inPhase("Failed", ""))}
	replacementPod = podNamed("box-0", u3)
)

// given are the UIDs that a write shows. What the object carries already is no news, nor is
// a leftover that a merge shows again, but for one with the mark: that may as well be what
// belay made of the write.
func (w modelWrite) given(s state) (uids []string, news bool) {
	was := list(s.record)
	switch w.record {
	case keeping:
		uids = was
	case u1, u2:
		uids = []string{w.record}
	}
	if s.memory.inFailure {
		return uids, !covers(was, uids)
	}
	return uids, len(uids) > 0 && (!same(was, uids) || slices.Contains(was, seal))
}

// proven: all that is owed is ready again, and nothing else fails.
func (w modelWrite) proven(owed []string) bool {
	for _, uid := range owed {
		if uid != u1 && uid != u2 || uid == u1 && w.first != isHealthy || uid == u2 && w.second != isHealthy {
			return false
		}
	}
	return w.first != isUnknown && w.first != isFailing && w.second != isFailing
}

// put makes a write, through both phases, as the API server would. admitted is whether it
// is stored.
func (w modelWrite) put(t *testing.T, p Policy, s state) (stored Status, admitted bool, d Decision) {
	in := Input{Policy: p, Object: Object{Kind: "Box", Name: "a", ResumeInFlight: w.around == "resume", Allowed: w.around == "annotation"}, Old: s.status(), Now: now}
	given, _ := w.given(s)
	in.New = status("", given...)
	if w.record == nulling {
		in.New = in.New.null()
	}
	in.New.Phase, in.New.Terminal = w.phase, w.terminal
	pods, _, known := w.pods()
	decide := func() Decision {
		if !known {
			in.Pods = PodsFact{Cause: fact.CauseTimeout}
		}
		for range 3 {
			d := Decide(in)
			if d.Wish == WishNone {
				return d
			}
			in.Pods = PodsFact{State: fact.Known, Pods: pods, Live: d.Wish == WishLivePods}
		}
		t.Fatalf("no decision: %+v", in)
		return Decision{}
	}
	if d = decide(); !d.Allowed {
		return in.Old, false, d
	}
	in.New, in.Pods = edited(p, in.New, d.Record), PodsFact{}
	if again := decide(); !again.Allowed || !again.Record.None() {
		t.Fatalf("decided again, it is %s: %+v\n%+v", outcome(again), again, in)
	}
	in.Final, in.Pods = true, PodsFact{}
	d = decide()
	if !d.Record.None() || d.Reason == ReasonRecordChanged {
		t.Errorf("the validating phase would edit: %+v", d)
	}
	if !d.Allowed {
		return in.Old, false, d
	}
	return in.New, true, d
}

// after is what has to be remembered once a write is stored.
func (w modelWrite) after(p Policy, s state, record []string) memory {
	before, now := p.kind(s.phase), p.kind(w.phase)
	m := s.memory
	switch {
	case now == recovered, now == replacing:
		return memory{}
	case now == failed:
		m.inFailure = true
		if before != failed && (before == replacing || w.around == "resume") || w.terminal || len(record) == 0 {
			m.unprovable = true
		}
	case len(record) > 0:
		m.inFailure = true // it brings a record along, wherever from
	}
	if !m.inFailure {
		return memory{}
	}
	owed := list(m.owed)
	for _, uid := range record {
		switch {
		case uid == seal:
			m.unprovable = true
		case !slices.Contains(owed, uid):
			owed = append(owed, uid)
		}
	}
	slices.Sort(owed)
	m.owed = strings.Join(owed, " ")
	return m
}

// wrong says what a stored write has broken; empty where nothing.
func (w modelWrite) wrong(p Policy, s state, stored Status) string {
	before, now := p.kind(s.phase), p.kind(w.phase)
	record, was := stored.Record.UIDs, list(s.record)
	marked := slices.Contains(record, seal)
	owed := list(s.memory.owed)
	after := w.after(p, s, record)
	_, failing, _ := w.pods()
	given, news := w.given(s)
	switch {
	case stored.Phase != w.phase || stored.Terminal != w.terminal:
		return "something but the record is changed"
	case len(union(record, nil)) != len(record):
		return "a UID is recorded twice"
	case p.MaxItems > 0 && len(record) > int(p.MaxItems):
		return "the record is longer than the schema allows"
	case (now == recovered || now == replacing) && len(record) > 0:
		return "the record is not cleared"
	case now == recovered && s.memory.inFailure && before == failed && (s.terminal || w.terminal):
		return "a terminal failure recovers"
	case now == recovered && s.memory.inFailure && len(was) > 1 && slices.Contains(was, seal):
		return "an object recovers whose record has overflown"
	case now == recovered && s.memory.inFailure && s.memory.unprovable && w.around != "annotation":
		return "an object recovers that nothing can be proven about"
	case now == recovered && s.memory.inFailure && !s.memory.unprovable && !w.proven(owed):
		return "an object recovers without evidence"
	case !after.inFailure:
		return ""
	case now == failed && after.unprovable && len(record) > 0 && !marked:
		return "a record looks as if evidence would do"
	case now != failed && len(record) == 0:
		return "nobody would know that the object had failed"
	case now != failed && after.unprovable && !marked:
		return "a record looks as if evidence would do, behind the failure"
	case !after.unprovable && !covers(record, owed):
		return "the record is narrower"
	case after.unprovable:
	case news && !covers(record, given):
		return "what the client gives is not recorded"
	case now == failed && before != failed && !news && !covers(record, failing):
		return "a Pod that fails is not recorded"
	case now == failed && before != failed && !news && !s.memory.inFailure && !covers(failing, record):
		return "a leftover is recorded" // S24
	}
	return ""
}

// mustBeAdmitted: the guard is in nobody's way but of those who have to prove something.
func (w modelWrite) mustBeAdmitted(p Policy, s state) bool {
	before, now := p.kind(s.phase), p.kind(w.phase)
	_, _, known := w.pods()
	m := s.memory
	switch {
	case now == recovered && !m.inFailure:
		return true
	case now == recovered && before == failed && (s.terminal || w.terminal):
		return false
	case now == recovered && m.unprovable:
		return w.around == "annotation" && (s.record == "" || s.record == seal)
	case now == recovered:
		return w.proven(list(s.record))
	case now == failed && before != failed:
		_, news := w.given(s)
		carriesMark := m.inFailure && slices.Contains(list(s.record), seal)
		return known || news || carriesMark || w.terminal || before == replacing || w.around == "resume"
	}
	return true
}

// TestEverySequenceOfWrites takes the object through all of them.
func TestEverySequenceOfWrites(t *testing.T) {
	t.Parallel()
	starts := []state{
		{phase: "Failed", record: u1, memory: memory{inFailure: true, owed: u1}},
		{phase: "Failed", memory: memory{inFailure: true, unprovable: true}},
		{phase: "Failed", terminal: true, memory: memory{inFailure: true, unprovable: true}},
		// As they may have been stored before there was a guard.
		{phase: "Failed", record: u1, terminal: true, memory: memory{inFailure: true, owed: u1, unprovable: true}},
		{phase: "Succeed", record: u1},
		{phase: "Succeed", record: u1 + " " + seal},
		{phase: "Pending", record: seal},
		{},
	}
	for name, c := range map[string]struct {
		most    int64
		starts  []state
		atLeast int
	}{
		"a schema without a limit": {0, starts, 40},
		"a schema with two places": {2, append(slices.Clone(starts), state{phase: "Failed", record: u1 + " " + u2, memory: memory{inFailure: true, owed: u1 + " " + u2}}), 40},
		"a schema with one place":  {1, starts, 30},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := policy(func(p *Policy) { p.MaxItems = c.most })
			how := map[state]string{}
			todo := slices.Clone(c.starts)
			for _, s := range todo {
				how[s] = fmt.Sprintf("from %+v", s.status())
			}
			writes := modelWrites()
			made, recoveries, denials := 0, 0, 0
			for len(todo) > 0 {
				s := todo[0]
				todo = todo[1:]
				for _, w := range writes {
					stored, admitted, d := w.put(t, p, s)
					made++
					path := func() string { return how[s] + "\n→ " + w.String() + "\n" + outcome(d) + ": " + d.Message }
					if admitted != w.mustBeAdmitted(p, s) {
						t.Fatalf("admitted: %t\n%s", admitted, path())
					}
					if !admitted {
						denials++
						if !d.Record.None() || strings.Join(stored.Record.UIDs, " ") != s.record {
							t.Fatalf("a denied write changes something\n%s", path())
						}
						continue
					}
					if what := w.wrong(p, s, stored); what != "" {
						t.Fatalf("%s: %q\n%s", what, stored.Record.UIDs, path())
					}
					if s.memory.inFailure && p.kind(w.phase) == recovered {
						recoveries++
					}
					next := state{w.phase, strings.Join(stored.Record.UIDs, " "), w.terminal, w.after(p, s, stored.Record.UIDs)}
					if _, seen := how[next]; !seen {
						how[next] = how[s] + "\n→ " + w.String() + fmt.Sprintf(" = %q", stored.Record.UIDs)
						todo = append(todo, next)
					}
				}
			}
			t.Logf("%d states, %d writes, %d denied, %d recoveries", len(how), made, denials, recoveries)
			if len(how) < c.atLeast || denials < 1000 || recoveries < 100 {
				t.Error("this test proves too little")
			}
		})
	}
}

// TestEveryWriteInModeWarn: nothing is guarded there, so that an object may
// be in any state; there is a decision about every write all the same, and it is told.
func TestEveryWriteInModeWarn(t *testing.T) {
	t.Parallel()
	p := policy()
	writes := modelWrites()
	for _, phase := range []string{"", "Pending", "Succeed", "Pausing", "Resuming", "Failed", "Melting"} {
		for _, record := range []string{"", u1, u1 + " " + u2, seal, u1 + " " + seal} {
			for _, terminal := range []bool{false, true} {
				s := state{phase: phase, record: record, terminal: terminal}
				for i, w := range writes {
					if i%7 != 0 { // every choice of every part comes up, not every combination
						continue
					}
					in := Input{Policy: p, Object: Object{Kind: "Box", Name: "a", Allowed: w.around == "annotation"}, Old: s.status(), New: status(w.phase, list(record)...), Now: now, Final: true, Preview: true}
					pods, _, known := w.pods()
					if !known {
						in.Pods = PodsFact{Cause: fact.CauseServer}
					}
					d, in, _ := asked(t, in, pods)
					checkDecision(t, in, d)
					if d.Reason == ReasonRecordChanged {
						t.Fatalf("in a preview nothing has changed the record: %+v", in)
					}
					if a := d.AsWarning(); !a.Allowed || !a.Record.None() || (!d.Allowed || !d.Record.None()) != (len(a.Warnings) > len(d.Warnings)) {
						t.Fatalf("%+v", a)
					}
				}
			}
		}
	}
}
