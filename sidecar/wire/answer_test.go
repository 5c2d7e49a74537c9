package wire_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/belay-dev/belay/sidecar/wire"
)

func TestAnswerInterval(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		answer wire.Answer
		want   time.Duration
	}{
		"an absent interval is the default":      {answer: wire.Answer{}, want: wire.DefaultInterval},
		"a negative interval is the default":     {answer: wire.Answer{IntervalMillis: -1}, want: wire.DefaultInterval},
		"a short interval is kept":               {answer: wire.AnswerWith("Written", 1500*time.Millisecond), want: 1500 * time.Millisecond},
		"an interval of a moment is the minimum": {answer: wire.AnswerWith("Written", time.Millisecond), want: wire.MinInterval},
		"an interval of a day is the maximum":    {answer: wire.AnswerWith("Written", 24*time.Hour), want: wire.MaxInterval},
		"the largest number does not overflow":   {answer: wire.Answer{IntervalMillis: math.MaxInt64}, want: wire.MaxInterval},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := wire.EncodeAnswer(tc.answer)
			if err != nil {
				t.Fatal(err)
			}
			got, err := wire.DecodeAnswer(data)
			if err != nil {
				t.Fatal(err)
			}
			if got.Interval() != tc.want {
				t.Errorf("got %v, want %v", got.Interval(), tc.want)
			}
		})
	}
}

func TestDecodeAnswer(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		in      string
		wantErr string
	}{
		"a field of a newer collector is ignored": {in: `{"intervalMillis":60000,"later":true}`},
		"an empty object is an answer":            {in: `{}`},
		"a page of somebody else is none":         {in: `<html>`, wantErr: "invalid character"},
		"an interval in words is none":            {in: `{"intervalMillis":"1s"}`, wantErr: "cannot unmarshal"},
		"more than the bound":                     {in: strings.Repeat(" ", wire.MaxAnswerBytes) + "{}", wantErr: "at most 1024 are read"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := wire.DecodeAnswer([]byte(tc.in))
			switch {
			case tc.wantErr == "" && (err != nil || got.Interval() != time.Minute):
				t.Errorf("got %v, %v", got.Interval(), err)
			case tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)):
				t.Errorf("got %v, want an error with %q", err, tc.wantErr)
			}
		})
	}
}

func FuzzDecodeAnswer(f *testing.F) {
	f.Add([]byte(`{"intervalMillis":1000}`))
	f.Add([]byte(`{"intervalMillis":-9223372036854775808}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		answer, err := wire.DecodeAnswer(in)
		if err != nil {
			return
		}
		if got := answer.Interval(); got < wire.MinInterval || got > wire.MaxInterval {
			t.Errorf("%q makes a sidecar wait %v", in, got)
		}
	})
}
