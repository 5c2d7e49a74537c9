package wire_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/belay-dev/belay/sidecar/wire"
)

func valid() wire.Report {
	return wire.Report{
		Namespace: "training",
		Pod:       "worker-0",
		UID:       "0c7d1a3e-5b0f-4c55-9d8e-0a9f6d1b2c3d",
		Container: "main",
		Instance:  "containerd://4f1c0e5a",
		State:     wire.StateReady,
		Reason:    "ProbeSucceeded",
		Reporter:  "b7Qm3xYc",
		Sequence:  7,

		ObservedUnixMillis:      1796000000123,
		ReporterSinceUnixMillis: 1795999999001,
	}
}

func TestReportValidate(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change func(*wire.Report)
		want   string // part of the error; empty: valid
	}{
		"a complete report is valid":            {change: func(*wire.Report) {}},
		"the container's instance may be empty": {change: func(r *wire.Report) { r.Instance = "" }},
		"a container may be not ready":          {change: func(r *wire.Report) { r.State = wire.StateNotReady }},
		"a container's state may be unknown":    {change: func(r *wire.Report) { r.State = wire.StateUnknown }},
		"a pod name may be a subdomain":         {change: func(r *wire.Report) { r.Pod = "db.example-0" }},
		"a name may be as long as Kubernetes allows": {change: func(r *wire.Report) {
			r.Pod, r.Namespace = strings.Repeat("p", 253), strings.Repeat("n", 63)
		}},

		"the time of the probe may be absent": {change: func(r *wire.Report) { r.ObservedUnixMillis = 0 }},
		"no probe was before 1970":            {change: func(r *wire.Report) { r.ObservedUnixMillis = -1 }, want: "observedUnixMillis is -1"},
		"no sidecar began before 1970":        {change: func(r *wire.Report) { r.ReporterSinceUnixMillis = -1 }, want: "reporterSinceUnixMillis is -1"},
		"the year has four digits":            {change: func(r *wire.Report) { r.ObservedUnixMillis = wire.MaxUnixMillis + 1 }, want: "observedUnixMillis is 253402300800000"},

		"the namespace is required":   {change: func(r *wire.Report) { r.Namespace = "" }, want: `namespace is empty`},
		"the pod is required":         {change: func(r *wire.Report) { r.Pod = "" }, want: `pod is empty`},
		"the UID is required":         {change: func(r *wire.Report) { r.UID = "" }, want: `uid is empty`},
		"the container is required":   {change: func(r *wire.Report) { r.Container = "" }, want: `container is empty`},
		"the reason is required":      {change: func(r *wire.Report) { r.Reason = "" }, want: `reason is empty`},
		"the reporter is required":    {change: func(r *wire.Report) { r.Reporter = "" }, want: `reporter is empty`},
		"the state is required":       {change: func(r *wire.Report) { r.State = "" }, want: `state "" is none of`},
		"the state is a closed list":  {change: func(r *wire.Report) { r.State = "ready" }, want: `state "ready" is none of`},
		"the sequence counts from 1":  {change: func(r *wire.Report) { r.Sequence = 0 }, want: `sequence is 0`},
		"a namespace is a name":       {change: func(r *wire.Report) { r.Namespace = "a/b" }, want: `namespace "a/b" holds the character '/'`},
		"a pod name has a bound":      {change: func(r *wire.Report) { r.Pod = strings.Repeat("p", 254) }, want: `pod has 254 bytes, at most 253`},
		"a UID has a bound":           {change: func(r *wire.Report) { r.UID = strings.Repeat("u", 129) }, want: `uid has 129 bytes, at most 128`},
		"an instance has a bound":     {change: func(r *wire.Report) { r.Instance = strings.Repeat("i", 129) }, want: `instance has 129 bytes, at most 128`},
		"a UID breaks no line":        {change: func(r *wire.Report) { r.UID = "a\nb" }, want: `uid "a\nb" holds the character '\n'`},
		"a reason is one word":        {change: func(r *wire.Report) { r.Reason = "probe failed" }, want: `reason "probe failed" holds the character ' '`},
		"a reason starts by a letter": {change: func(r *wire.Report) { r.Reason = "9Lives" }, want: `reason "9Lives" starts with no letter`},
		"all faults are told at once": {change: func(r *wire.Report) { *r = wire.Report{} }, want: "sequence is 0"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := valid()
			tc.change(&report)
			err := report.Validate()
			if tc.want == "" {
				if err != nil {
					t.Fatalf("got %v, want no error", err)
				}
				data, err := wire.EncodeReport(report)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := wire.DecodeReport(data); err != nil || got != report {
					t.Errorf("came back as %+v, %v", got, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
			if _, err := wire.EncodeReport(report); err == nil {
				t.Error("an invalid report was encoded")
			}
		})
	}
}

func TestDecodeReport(t *testing.T) {
	t.Parallel()
	data, err := wire.EncodeReport(valid())
	if err != nil {
		t.Fatal(err)
	}
	good := string(data)
	tests := map[string]struct {
		in   string
		want string // part of the error; empty: read as valid()
	}{
		"a field of a newer sidecar is ignored": {in: strings.Replace(good, "{", `{"later":{"a":[1]},`, 1)},
		"surrounding space is ignored":          {in: " " + good + "\n"},
		"nothing is not a report":               {in: "", want: "unexpected end"},
		"a report that breaks off":              {in: good[:len(good)/2], want: "unexpected end"},
		"two reports":                           {in: good + good, want: "after top-level value"},
		"null is not a report":                  {in: "null", want: "namespace is empty"},
		"a list is not a report":                {in: "[]", want: "cannot unmarshal"},
		"a negative sequence":                   {in: strings.Replace(good, ":7", ":-7", 1), want: "cannot unmarshal"},
		"more than the bound":                   {in: good + strings.Repeat(" ", wire.MaxReportBytes), want: "at most 4096 are read"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := wire.DecodeReport([]byte(tc.in))
			switch {
			case tc.want == "" && (err != nil || got != valid()):
				t.Errorf("got %+v, %v", got, err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

// The bound on an encoded report must hold for the longest valid one, with
// room to spare for fields that come later.
func TestLongestReportFits(t *testing.T) {
	t.Parallel()
	longest := wire.Report{
		Namespace: strings.Repeat("n", 63),
		Pod:       strings.Repeat("p", 253),
		UID:       strings.Repeat("u", 128),
		Container: strings.Repeat("c", 63),
		Instance:  strings.Repeat("i", 128),
		State:     wire.StateNotReady,
		Reason:    strings.Repeat("R", 128),
		Reporter:  strings.Repeat("r", 128),
		Sequence:  1<<64 - 1,
	}
	data, err := wire.EncodeReport(longest)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > wire.MaxReportBytes/3 {
		t.Errorf("the longest report has %d bytes, more than a third of the bound %d", len(data), wire.MaxReportBytes)
	}
}

func FuzzDecodeReport(f *testing.F) {
	data, err := wire.EncodeReport(valid())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"namespace":"a","pod":"b","uid":"c","container":"d","state":"Unknown","reason":"E","reporter":"f","sequence":18446744073709551615}`))
	f.Add([]byte(`{"STATE":"Ready","state":"NotReady","sequence":1e3,"pod":"\ud800"}`))
	f.Add([]byte("[[[[[[[["))
	f.Fuzz(func(t *testing.T, in []byte) {
		report, err := wire.DecodeReport(in)
		if err != nil {
			return
		}
		out, err := wire.EncodeReport(report)
		if err != nil {
			t.Fatalf("%+v was read from %q and cannot be sent: %v", report, in, err)
		}
		if len(out) > wire.MaxReportBytes/3 {
			t.Errorf("%q was read and takes %d bytes", in, len(out))
		}
		if again, err := wire.DecodeReport(out); err != nil || again != report {
			t.Errorf("%+v became %+v, %v", report, again, err)
		}
		if strings.Contains(string(out), `\`) || !json.Valid(out) {
			t.Errorf("%s needs escapes: a field let something through", out)
		}
	})
}
