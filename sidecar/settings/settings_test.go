package settings_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/settings"
)

// least is the least environment that makes sense.
func least() map[string]string {
	return map[string]string{
		settings.Collector: "belay-collector.belay-system.svc:9443",
		settings.Namespace: "training",
		settings.Pod:       "worker-0",
		settings.PodUID:    "0c7d1a3e-5b0f-4c55-9d8e-0a9f6d1b2c3d",
		settings.Container: "main",
	}
}

// full sets every variable to something that is not its default.
func full() map[string]string {
	return map[string]string{
		settings.Collector:        "[fd00::1]:9443",
		settings.ServerName:       "belay-collector.belay-system.svc",
		settings.Namespace:        "training",
		settings.Pod:              "db.example-0",
		settings.PodUID:           "0c7d1a3e-5b0f-4c55-9d8e-0a9f6d1b2c3d",
		settings.PodIP:            "fd00::7",
		settings.Container:        "main",
		settings.ProbeSpec:        "https://[fd00::8]:8443/healthz?full=1",
		settings.ProbeHeaders:     "Host: example.org\nX-Empty: \nX-Colon: a:b: c",
		settings.ProbePeriod:      "5s",
		settings.ProbeTimeout:     "2.5s",
		settings.SuccessThreshold: "2",
		settings.FailureThreshold: "7",
		settings.TokenFile:        "/elsewhere/token",
		settings.CAFile:           "/elsewhere/ca.crt",
		settings.LogLevel:         "debug",
	}
}

func lookup(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

func with(env map[string]string, pairs ...string) map[string]string {
	for i := 0; i < len(pairs); i += 2 {
		env[pairs[i]] = pairs[i+1]
	}
	return env
}

func TestReadDefaults(t *testing.T) {
	t.Parallel()
	want := settings.Settings{
		Collector: "belay-collector.belay-system.svc:9443", ServerName: "belay-collector.belay-system.svc",
		Namespace: "training", Pod: "worker-0", PodUID: "0c7d1a3e-5b0f-4c55-9d8e-0a9f6d1b2c3d", Container: "main",
		Probe:  settings.Probe{Kind: settings.KindNone},
		Period: 10 * time.Second, Timeout: time.Second, Successes: 1, Failures: 3,
		TokenFile: "/var/run/belay/token", CAFile: "/var/run/belay/ca.crt",
	}
	if got, err := settings.Read(lookup(least())); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}

func TestReadEverything(t *testing.T) {
	t.Parallel()
	want := settings.Settings{
		Collector: "[fd00::1]:9443", ServerName: "belay-collector.belay-system.svc",
		Namespace: "training", Pod: "db.example-0", PodUID: "0c7d1a3e-5b0f-4c55-9d8e-0a9f6d1b2c3d", PodIP: "fd00::7", Container: "main",
		Probe:   settings.Probe{Kind: settings.KindHTTPS, Host: "fd00::8", Port: 8443, Path: "/healthz?full=1"},
		Headers: []settings.Header{{Name: "Host", Value: "example.org"}, {Name: "X-Empty"}, {Name: "X-Colon", Value: "a:b: c"}},
		Period:  5 * time.Second, Timeout: 2500 * time.Millisecond, Successes: 2, Failures: 7,
		TokenFile: "/elsewhere/token", CAFile: "/elsewhere/ca.crt", Debug: true,
	}
	if got, err := settings.Read(lookup(full())); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}

// Every variable that a sidecar may be given has to be in List, or --print-settings would
// hide it.
func TestListIsReadAgain(t *testing.T) {
	t.Parallel()
	tests := map[string]map[string]string{
		"the least that makes sense": least(),
		"every variable":             full(),
		"a ready file":               with(least(), settings.ProbeSpec, "file:///shared/ready"),
		"a service of gRPC":          with(least(), settings.ProbeSpec, "grpc://:9000/a.b.C"),
		"info said aloud":            with(least(), settings.LogLevel, "info"),
		"the longest period":         with(least(), settings.ProbePeriod, "1h", settings.ProbeTimeout, "1h"),
		"a collector by address":     with(least(), settings.Collector, "10.0.0.1:65535"),
	}
	for name, env := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, err := settings.Read(lookup(env))
			if err != nil {
				t.Fatal(err)
			}
			listed := map[string]string{}
			for _, pair := range want.List() {
				if _, twice := listed[pair[0]]; twice {
					t.Errorf("%s is listed twice", pair[0])
				}
				listed[pair[0]] = pair[1]
			}
			if got, err := settings.Read(lookup(listed)); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, %v\nwant %+v", got, err, want)
			}
			if got, want := slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(full())); !slices.Equal(got, want) {
				t.Errorf("lists %v, want %v", got, want)
			}
		})
	}
}

func TestReadFaults(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		name, value string
		want        string // part of the error; empty: it makes sense
	}{
		"the collector is required":                      {settings.Collector, "", `BELAY_COLLECTOR is ""`},
		"the collector needs a port":                     {settings.Collector, "belay", `BELAY_COLLECTOR is "belay"`},
		"the collector needs a host":                     {settings.Collector, ":9443", `BELAY_COLLECTOR is ":9443"`},
		"the collector's port is a number":               {settings.Collector, "belay:https", `BELAY_COLLECTOR is "belay:https"`},
		"the collector's port is digits alone":           {settings.Collector, "belay:+9443", `BELAY_COLLECTOR is "belay:+9443"`},
		"the collector's port is above 0":                {settings.Collector, "belay:0", `BELAY_COLLECTOR is "belay:0"`},
		"the collector's port is below 65536":            {settings.Collector, "belay:65536", `BELAY_COLLECTOR is "belay:65536"`},
		"an IPv6 collector needs brackets":               {settings.Collector, "fd00::1:9443", `with an IPv6 address in brackets`},
		"an IPv6 collector in brackets":                  {settings.Collector, "[fd00::1]:9443", ""},
		"the collector is no URL":                        {settings.Collector, "https://belay:9443", `BELAY_COLLECTOR is "https://belay:9443"`},
		"the collector has no path":                      {settings.Collector, "belay/x:9443", `BELAY_COLLECTOR is "belay/x:9443"`},
		"the collector has no user":                      {settings.Collector, "me@belay:9443", `BELAY_COLLECTOR is "me@belay:9443"`},
		"the collector has no space":                     {settings.Collector, "be lay:9443", `BELAY_COLLECTOR is "be lay:9443"`},
		"the collector has no query":                     {settings.Collector, "belay?x:9443", `BELAY_COLLECTOR is "belay?x:9443"`},
		"a long collector is told in part":               {settings.Collector, strings.Repeat("x", 1000), `it must be HOST:PORT`},
		"the namespace is required":                      {settings.Namespace, "", `BELAY_NAMESPACE is not set`},
		"the namespace is one":                           {settings.Namespace, "a/b", `BELAY_NAMESPACE: namespace "a/b" holds the character '/'`},
		"the pod is required":                            {settings.Pod, "", `BELAY_POD is not set`},
		"the pod is one":                                 {settings.Pod, "Worker", `BELAY_POD: pod "Worker" holds the character 'W'`},
		"the pod's name has a bound":                     {settings.Pod, strings.Repeat("p", 254), `BELAY_POD: pod has 254 bytes`},
		"the pod's UID is required":                      {settings.PodUID, "", `BELAY_POD_UID is not set`},
		"the pod's UID is one":                           {settings.PodUID, "a b", `BELAY_POD_UID: uid "a b" holds the character ' '`},
		"the container is required":                      {settings.Container, "", `BELAY_CONTAINER is not set`},
		"the container is one":                           {settings.Container, "main!", `BELAY_CONTAINER: container "main!" holds the character '!'`},
		"the pod's address may be absent":                {settings.PodIP, "", ""},
		"the pod's address is one":                       {settings.PodIP, "localhost", `BELAY_POD_IP is "localhost", which is no IP address`},
		"the pod's address has no brackets":              {settings.PodIP, "[fd00::7]", `BELAY_POD_IP is "[fd00::7]"`},
		"the pod's address may be IPv6":                  {settings.PodIP, "fd00::7", ""},
		"the probe is one":                               {settings.ProbeSpec, "ftp://:21", `BELAY_PROBE: "ftp://:21" has an unknown scheme`},
		"a header is a line with a colon":                {settings.ProbeHeaders, "Host", `BELAY_PROBE_HEADERS: "Host" is no line of the form Name: value`},
		"a header has a name":                            {settings.ProbeHeaders, "A: b\n: c", `BELAY_PROBE_HEADERS: ": c" is no line`},
		"a period has a unit":                            {settings.ProbePeriod, "10", `BELAY_PROBE_PERIOD is "10"; it must be from 1s to 1h0m0s`},
		"a period of a second is the least":              {settings.ProbePeriod, "1s", ""},
		"a period below a second is too short":           {settings.ProbePeriod, "999ms", `BELAY_PROBE_PERIOD is "999ms"`},
		"a period above an hour is too long":             {settings.ProbePeriod, "61m", `BELAY_PROBE_PERIOD is "61m"`},
		"a period is not negative":                       {settings.ProbePeriod, "-10s", `BELAY_PROBE_PERIOD is "-10s"`},
		"a period that no number holds":                  {settings.ProbePeriod, "9999999999h", `BELAY_PROBE_PERIOD`},
		"a time-out has a unit":                          {settings.ProbeTimeout, "x", `BELAY_PROBE_TIMEOUT is "x"`},
		"a time-out of none would never end":             {settings.ProbeTimeout, "0s", `BELAY_PROBE_TIMEOUT is "0s"`},
		"a success threshold is a number":                {settings.SuccessThreshold, "one", `BELAY_PROBE_SUCCESS_THRESHOLD is "one"; it must be from 1 to 1000`},
		"a success threshold is above 0":                 {settings.SuccessThreshold, "0", `BELAY_PROBE_SUCCESS_THRESHOLD is "0"`},
		"a failure threshold is a number":                {settings.FailureThreshold, "3.0", `BELAY_PROBE_FAILURE_THRESHOLD is "3.0"`},
		"a failure threshold has a bound":                {settings.FailureThreshold, "1001", `BELAY_PROBE_FAILURE_THRESHOLD is "1001"`},
		"a threshold that no number holds":               {settings.FailureThreshold, "99999999999999999999", `BELAY_PROBE_FAILURE_THRESHOLD`},
		"a log level is one of two":                      {settings.LogLevel, "Debug", `BELAY_LOG_LEVEL is "Debug"; it must be info or debug`},
		"a variable of a newer webhook says nothing yet": {"BELAY_LATER", "\x00", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := settings.Read(lookup(with(least(), tc.name, tc.value)))
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("got %v, want no error", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want an error with %s", err, tc.want)
			case tc.want != "" && strings.Contains(err.Error(), "\n"):
				t.Errorf("one fault is told as several: %v", err)
			case tc.want != "" && len(err.Error()) > 1000:
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

// Who mends settings should not have to start a pod for each fault.
func TestReadTellsAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		settings.PodIP:            "x",
		settings.ProbeSpec:        "x",
		settings.ProbeHeaders:     "x",
		settings.ProbePeriod:      "x",
		settings.ProbeTimeout:     "x",
		settings.SuccessThreshold: "x",
		settings.FailureThreshold: "x",
		settings.LogLevel:         "x",
	}
	s, err := settings.Read(lookup(env))
	if err == nil {
		t.Fatal("got no error")
	}
	// These three have nothing that can be wrong with them here.
	free := []string{settings.ServerName, settings.TokenFile, settings.CAFile}
	told := strings.Split(err.Error(), "\n")
	for name := range full() {
		about := slices.ContainsFunc(told, func(line string) bool {
			return strings.HasPrefix(line, name+" ") || strings.HasPrefix(line, name+":")
		})
		if about == slices.Contains(free, name) {
			t.Errorf("told about %s: %t", name, about)
		}
	}
	for range 20 {
		if _, again := settings.Read(lookup(env)); fmt.Sprint(again) != fmt.Sprint(err) {
			t.Fatalf("the order changes:\n%v\n\n%v", err, again)
		}
	}
	// What is wrong is as if it were not there, so that nothing runs by half.
	if s.Period != settings.DefaultPeriod || s.Timeout != settings.DefaultTimeout || s.Successes != 1 || s.Failures != 3 || s.Probe.Runs() || s.Headers != nil || s.Debug {
		t.Errorf("got %+v", s)
	}
}

func TestHeadersComeBack(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		text string
		want []settings.Header
	}{
		"none":                          {"", nil},
		"lines of nothing":              {"\n\r\n\n", nil},
		"one":                           {"A: b", []settings.Header{{Name: "A", Value: "b"}}},
		"a last line that ends":         {"A: b\n", []settings.Header{{Name: "A", Value: "b"}}},
		"lines as of Windows":           {"A: b\r\nC: d\r\n", []settings.Header{{Name: "A", Value: "b"}, {Name: "C", Value: "d"}}},
		"the same name twice":           {"A: b\nA: c", []settings.Header{{Name: "A", Value: "b"}, {Name: "A", Value: "c"}}},
		"no space after the colon":      {"A:b", []settings.Header{{Name: "A", Value: "b"}}},
		"more space belongs to a value": {"A:  b ", []settings.Header{{Name: "A", Value: " b "}}},
		"no value":                      {"A:", []settings.Header{{Name: "A"}}},
		"colons in a value":             {"A: :b:", []settings.Header{{Name: "A", Value: ":b:"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := settings.Read(lookup(with(least(), settings.ProbeHeaders, tc.text)))
			if err != nil || !slices.Equal(s.Headers, tc.want) {
				t.Fatalf("got %q, %v, want %q", s.Headers, err, tc.want)
			}
			again, err := settings.Read(lookup(with(least(), settings.ProbeHeaders, settings.FormatHeaders(s.Headers))))
			if err != nil || !slices.Equal(again.Headers, tc.want) {
				t.Errorf("came back as %q, %v", again.Headers, err)
			}
		})
	}
}

func FuzzHeaders(f *testing.F) {
	f.Add("Host: example.org\nX: :y")
	f.Add("A:\r\r\n : ")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := settings.Read(lookup(with(least(), settings.ProbeHeaders, text)))
		if err != nil {
			return
		}
		again, err := settings.Read(lookup(with(least(), settings.ProbeHeaders, settings.FormatHeaders(s.Headers))))
		if err != nil || !slices.Equal(again.Headers, s.Headers) {
			t.Errorf("%q became %q, %v", s.Headers, again.Headers, err)
		}
	})
}
