// Package fact says how much is known of something: the words that whoever gathers
// facts and whoever decides on them have in common.
package fact

// State says how much is known of a fact.
type State int

// States of a fact. Unknown is the zero value: it was not, or could not be, found out.
const (
	Unknown State = iota
	Absent
	Known
)

// Cause says why a fact is unknown.
type Cause string

// Causes of an unknown fact: a closed list, since it labels metrics.
const (
	CauseNotAsked  Cause = ""
	CauseTimeout   Cause = "Timeout"
	CauseForbidden Cause = "Forbidden"
	CauseNoKind    Cause = "NoSuchKind"
	CauseServer    Cause = "ServerError"
)

// Words says a cause in a message.
func (c Cause) Words() string {
	switch c {
	case CauseTimeout:
		return "the API server did not answer in time"
	case CauseForbidden:
		return "belay has no right to read it"
	case CauseNoKind:
		return "no such kind"
	case CauseServer:
		return "the API server had an error"
	default:
		return "it was not looked up"
	}
}
