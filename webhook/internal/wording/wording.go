// Package wording keeps other people's text fit for belay's messages.
package wording

import (
	"strings"
	"unicode"
)

// OneLine replaces control characters by blanks: CEL's errors draw a picture, and a
// message ends in a header, a log line, a condition. The API server drops a warning that
// holds any of Unicode's, without a word.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}

// Clip cuts a text to at most so many bytes, between two characters, and says so.
func Clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && s[most]&0xC0 == 0x80 {
		most--
	}
	return s[:most] + "…"
}
