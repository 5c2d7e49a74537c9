package probe

import (
	"encoding/binary"
	"testing"
)

func frame(body string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
}

func TestHealthStatusFaults(t *testing.T) {
	t.Parallel()
	const most = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" // the highest varint
	tests := map[string][]byte{
		"nothing":                           {},
		"a prefix that breaks off":          {0, 0, 0, 0},
		"a compressed message":              {1, 0, 0, 0, 0},
		"a message that breaks off":         {0, 0, 0, 0, 1},
		"more than a message":               {0, 0, 0, 0, 0, 0},
		"a tag that breaks off":             frame("\x88"),
		"a tag alone":                       frame("\x08"),
		"a varint that breaks off":          frame("\x08\x81"),
		"a varint of too many bits":         frame("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"),
		"a string that breaks off":          frame("\x08\x01\x12\x05abcd"),
		"a string without its length":       frame("\x12"),
		"a string whose length wraps":       frame("\x12" + most + "\x00\x00\x00\x00\x00\x00\x00\x00"),
		"eight bytes of which seven come":   frame("\x08\x01\x19\x01\x02\x03\x04\x05\x06\x07"),
		"four bytes of which three come":    frame("\x08\x01\x1d\x01\x02\x03"),
		"a group, which is of earlier days": frame("\x0b\x0c"),
	}
	for name, body := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if state, err := healthStatus(body); err == nil || state != 0 {
				t.Errorf("%q is %d, %v", body, state, err)
			}
		})
	}
}

// An answer is somebody else's: whatever it is, reading it ends, and says SERVING for
// nothing but a varint 1 in field 1.
func FuzzHealthStatus(f *testing.F) {
	for _, body := range []string{"", "\x08\x01", "\x08\x02", "\x08\x81\x00", "\x12\x01a\x08\x01", "\x0d\x01\x00\x00\x00", "\x09\x01\x00\x00\x00\x00\x00\x00\x00", "\x0b\x0c", "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
		f.Add(frame(body))
	}
	f.Add([]byte{1, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, body []byte) {
		state, err := healthStatus(body)
		if err != nil {
			if state != 0 {
				t.Errorf("%q is %d and %v", body, state, err)
			}
			return
		}
		if len(body) < 5 || body[0] != 0 {
			t.Errorf("%q was read", body)
		}
		// One more field at the end is passed over, and a last word of field 1 counts.
		for more, want := range map[string]uint64{"\x10\x07": state, "\x1a\x02\x08\x05": state, "\x08\x02": 2} {
			longer := frame(string(body[5:]) + more)
			if got, err := healthStatus(longer); err != nil || got != want {
				t.Errorf("%q is %d, %v, want %d", longer, got, err, want)
			}
		}
	})
}
