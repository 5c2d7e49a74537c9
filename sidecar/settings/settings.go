package settings

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/belay-dev/belay/sidecar/wire"
)

// Names of the variables.
const (
	// Collector is HOST:PORT of the collector, an IPv6 address in brackets. Required.
	Collector = "BELAY_COLLECTOR"
	// ServerName is the name in the collector's certificate. Default: the host of Collector.
	ServerName = "BELAY_SERVER_NAME"
	// Namespace, Pod and PodUID say which pod it is, by the downward API. Required.
	Namespace = "BELAY_NAMESPACE"
	Pod       = "BELAY_POD"
	PodUID    = "BELAY_POD_UID"
	// PodIP is where a probe without a host goes, by the downward API. Default localhost.
	PodIP = "BELAY_POD_IP"
	// Container is the name of the main container. Required.
	Container = "BELAY_CONTAINER"
	// ProbeSpec is how the main container is probed; see Parse. Default none.
	ProbeSpec = "BELAY_PROBE"
	// ProbeHeaders are lines "Name: value", for http and https.
	ProbeHeaders = "BELAY_PROBE_HEADERS"
	// ProbePeriod is the time from one probe to the next, such as 10s. Default 10s, at
	// least 1s.
	ProbePeriod = "BELAY_PROBE_PERIOD"
	// ProbeTimeout bounds one probe. Default 1s.
	ProbeTimeout = "BELAY_PROBE_TIMEOUT"
	// SuccessThreshold and FailureThreshold are how many probes in a row it takes to say
	// ready, and not ready. Default 1 and 3.
	SuccessThreshold = "BELAY_PROBE_SUCCESS_THRESHOLD"
	FailureThreshold = "BELAY_PROBE_FAILURE_THRESHOLD"
	// TokenFile has the pod's token, CAFile the CA of the collector; both are read again
	// each time. Default: DefaultTokenFile and DefaultCAFile.
	TokenFile = "BELAY_TOKEN_FILE" //nolint:gosec // the name of a variable that names a file
	CAFile    = "BELAY_CA_FILE"
	// LogLevel is info or debug. Default info.
	LogLevel = "BELAY_LOG_LEVEL"
)

// Defaults of the files, which injection mounts.
const (
	MountPath        = "/var/run/belay"
	TokenPath        = "token"
	CAPath           = "ca.crt"
	DefaultTokenFile = MountPath + "/" + TokenPath
	DefaultCAFile    = MountPath + "/" + CAPath
)

// Defaults of a readinessProbe, and its bounds:
// https://kubernetes.io/docs/concepts/workloads/pods/probes/
const (
	DefaultPeriod           = 10 * time.Second
	DefaultTimeout          = time.Second
	DefaultSuccessThreshold = 1
	DefaultFailureThreshold = 3
	// MinPeriod is the shortest that the kubelet knows, too.
	MinPeriod = time.Second
	// MaxPeriod bounds a period and a time-out, and MaxThreshold a threshold. Those of a
	// readinessProbe are far above.
	MaxPeriod    = time.Hour
	MaxThreshold = 1000
)

// Settings are all that a sidecar is told.
type Settings struct {
	Collector  string
	ServerName string
	Namespace  string
	Pod        string
	PodUID     string
	PodIP      string
	Container  string
	Probe      Probe
	Headers    []Header
	Period     time.Duration
	Timeout    time.Duration
	Successes  int
	Failures   int
	TokenFile  string
	CAFile     string
	Debug      bool
}

// Header is one header of an HTTP probe.
type Header struct{ Name, Value string }

// Read reads the settings and checks them. The error says everything that is wrong; what
// could be read is returned with it.
func Read(getenv func(string) string) (Settings, error) {
	r := reader{getenv: getenv}
	s := Settings{
		Collector: getenv(Collector), ServerName: getenv(ServerName),
		Namespace: getenv(Namespace), Pod: getenv(Pod), PodUID: getenv(PodUID), PodIP: getenv(PodIP), Container: getenv(Container),
		Period: r.duration(ProbePeriod, DefaultPeriod), Timeout: r.duration(ProbeTimeout, DefaultTimeout),
		Successes: r.count(SuccessThreshold, DefaultSuccessThreshold), Failures: r.count(FailureThreshold, DefaultFailureThreshold),
		TokenFile: r.text(TokenFile, DefaultTokenFile), CAFile: r.text(CAFile, DefaultCAFile),
	}
	var err error
	if s.Probe, err = Parse(getenv(ProbeSpec)); err != nil {
		r.errs = append(r.errs, fmt.Errorf("%s: %w", ProbeSpec, err))
	}
	if s.Headers, err = parseHeaders(getenv(ProbeHeaders)); err != nil {
		r.errs = append(r.errs, fmt.Errorf("%s: %w", ProbeHeaders, err))
	}
	switch level := getenv(LogLevel); level {
	case "", "info":
	case "debug":
		s.Debug = true
	default:
		r.errs = append(r.errs, fmt.Errorf("%s is %.32q; it must be info or debug", LogLevel, level))
	}
	if host, _, err := net.SplitHostPort(s.Collector); err == nil && s.ServerName == "" {
		s.ServerName = host
	}
	return s, errors.Join(append(r.errs, s.validate()...)...)
}

// validate says everything that is wrong with settings that could be read.
func (s Settings) validate() []error {
	var errs []error
	for _, v := range []struct{ name, value string }{{Namespace, s.Namespace}, {Pod, s.Pod}, {PodUID, s.PodUID}, {Container, s.Container}} {
		if v.value == "" {
			errs = append(errs, fmt.Errorf("%s is not set; injection takes it from the pod", v.name))
		} else if err := reportable(v.name, v.value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", v.name, err))
		}
	}
	if !isAddress(s.Collector) {
		errs = append(errs, fmt.Errorf("%s is %.256q; it must be HOST:PORT, with an IPv6 address in brackets", Collector, s.Collector))
	}
	if s.PodIP != "" && net.ParseIP(s.PodIP) == nil {
		errs = append(errs, fmt.Errorf("%s is %.64q, which is no IP address", PodIP, s.PodIP))
	}
	return errs
}

// reportable says what keeps a value out of a report: with it, none could ever be sent.
func reportable(name, value string) error {
	r := wire.Report{Namespace: "x", Pod: "x", UID: "x", Container: "x", State: wire.StateUnknown, Reason: "X", Reporter: "x", Sequence: 1}
	switch name {
	case Namespace:
		r.Namespace = value
	case Pod:
		r.Pod = value
	case PodUID:
		r.UID = value
	case Container:
		r.Container = value
	}
	return r.Validate()
}

// isAddress reports whether text is HOST:PORT as a URL takes it: one with more in it would
// send the pod's token to somebody else, or fail on every report.
func isAddress(text string) bool {
	host, port, err := net.SplitHostPort(text)
	if err != nil || host == "" {
		return false
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return false
	}
	u, err := url.Parse("https://" + text + "/")
	return err == nil && u.Host == text && u.Path == "/"
}

// List is every variable with its value, in the order in which people read them.
func (s Settings) List() [][2]string {
	level := "info"
	if s.Debug {
		level = "debug"
	}
	return [][2]string{
		{Collector, s.Collector},
		{ServerName, s.ServerName},
		{Namespace, s.Namespace},
		{Pod, s.Pod},
		{PodUID, s.PodUID},
		{PodIP, s.PodIP},
		{Container, s.Container},
		{ProbeSpec, s.Probe.String()},
		{ProbeHeaders, FormatHeaders(s.Headers)},
		{ProbePeriod, s.Period.String()},
		{ProbeTimeout, s.Timeout.String()},
		{SuccessThreshold, strconv.Itoa(s.Successes)},
		{FailureThreshold, strconv.Itoa(s.Failures)},
		{TokenFile, s.TokenFile},
		{CAFile, s.CAFile},
		{LogLevel, level},
	}
}

// reader reads single variables and collects what is wrong.
type reader struct {
	getenv func(string) string
	errs   []error
}

func (r *reader) text(name, standard string) string {
	if v := r.getenv(name); v != "" {
		return v
	}
	return standard
}

func (r *reader) duration(name string, standard time.Duration) time.Duration {
	v := r.getenv(name)
	if v == "" {
		return standard
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < MinPeriod || d > MaxPeriod {
		r.errs = append(r.errs, fmt.Errorf("%s is %.32q; it must be from %s to %s", name, v, MinPeriod, MaxPeriod))
		return standard
	}
	return d
}

func (r *reader) count(name string, standard int) int {
	v := r.getenv(name)
	if v == "" {
		return standard
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > MaxThreshold {
		r.errs = append(r.errs, fmt.Errorf("%s is %.32q; it must be from 1 to %d", name, v, MaxThreshold))
		return standard
	}
	return n
}

// FormatHeaders writes headers as lines.
func FormatHeaders(headers []Header) string {
	lines := make([]string, 0, len(headers))
	for _, h := range headers {
		lines = append(lines, h.Name+": "+h.Value)
	}
	return strings.Join(lines, "\n")
}

func parseHeaders(text string) ([]Header, error) {
	var out []Header
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" {
			return nil, fmt.Errorf("%.64q is no line of the form Name: value", line)
		}
		out = append(out, Header{Name: name, Value: strings.TrimPrefix(value, " ")})
	}
	return out, nil
}
