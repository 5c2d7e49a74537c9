package probe

import (
	"encoding/binary"
	"testing"
)

// An answer is somebody else's: whatever it is, reading it ends, and says SERVING for
// nothing but a varint 1 in field 1.
func FuzzHealthStatus(f *testing.F) {
	frame := func(body string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	}
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
