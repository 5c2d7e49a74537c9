package wire

import (
	"encoding/json"
	"fmt"
	"time"
)

// MaxAnswerBytes bounds an encoded answer.
const MaxAnswerBytes = 1 << 10

// Bounds of the interval at which a sidecar repeats an unchanged report.
const (
	// MinInterval is that of a pod under recovery. The sidecar probes once a
	// second at most, so more reports would say nothing new.
	MinInterval = time.Second
	// DefaultInterval holds until the collector has said something else: at
	// 10,000 pods it is 167 reports a second for all collectors together.
	DefaultInterval = time.Minute
	// MaxInterval bounds how long a sidecar can be made to keep quiet, and so
	// how long a pod that comes under recovery waits for its first fresh report.
	MaxInterval = 10 * time.Minute
)

// Answer is what the collector says to a report that it accepted. A report
// that it did not accept is answered by an HTTP status other than 200.
type Answer struct {
	// IntervalMillis is when to report again if nothing changes before, in
	// milliseconds. Read it through Interval.
	IntervalMillis int64 `json:"intervalMillis,omitempty"`
	// Outcome is what came of the report, for people: a word of the collector's closed list
	// (see its Reason), such as Written or NotRunning. Collectors before it leave it out.
	Outcome string `json:"outcome,omitempty"`
}

// AnswerWith returns the answer that tells what came of a report, and asks for the given interval.
func AnswerWith(outcome string, interval time.Duration) Answer {
	return Answer{IntervalMillis: interval.Milliseconds(), Outcome: outcome}
}

// Interval returns when to report again. It is total: an absent interval is
// DefaultInterval and any other is brought within the bounds. The report has
// been delivered by then, so refusing the answer would only send it once more,
// and a collector gone wrong can make sidecars neither spin nor fall silent.
func (a Answer) Interval() time.Duration {
	switch {
	case a.IntervalMillis <= 0:
		return DefaultInterval
	case a.IntervalMillis < MinInterval.Milliseconds():
		return MinInterval
	case a.IntervalMillis > MaxInterval.Milliseconds():
		return MaxInterval
	}
	return time.Duration(a.IntervalMillis) * time.Millisecond
}

// EncodeAnswer returns the JSON of an answer.
func EncodeAnswer(a Answer) ([]byte, error) { return json.Marshal(a) }

// DecodeAnswer reads one answer. Fields that it does not know are ignored.
func DecodeAnswer(data []byte) (Answer, error) {
	if len(data) > MaxAnswerBytes {
		return Answer{}, fmt.Errorf("decoding answer: %d bytes, at most %d are read", len(data), MaxAnswerBytes)
	}
	var a Answer
	if err := json.Unmarshal(data, &a); err != nil {
		return Answer{}, fmt.Errorf("decoding answer: %w", err)
	}
	return a, nil
}
