package wire

import "encoding/json"

// Refusal is the body of every answer but 200: why the report was not accepted. A
// sidecar needs the HTTP status only; this is for its log.
type Refusal struct {
	// Reason is a word of the collector's closed list.
	Reason string `json:"reason"`
	// Message is for people.
	Message string `json:"message,omitempty"`
}

// EncodeRefusal returns the JSON of a refusal.
func EncodeRefusal(r Refusal) ([]byte, error) { return json.Marshal(r) }

// DecodeRefusal reads a refusal as far as it can be read: whatever stands in the way may
// have answered instead of the collector.
func DecodeRefusal(data []byte) Refusal {
	var r Refusal
	if len(data) > MaxAnswerBytes || json.Unmarshal(data, &r) != nil {
		return Refusal{}
	}
	return r
}
