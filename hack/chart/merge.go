package main

import "strings"

// line is a line of text, and the variants that have it.
type line struct {
	text string
	in   variants
}

// merge adds the text of one variant to what others have: the longest sequence of lines that both
// have stays one, so that the lines of each variant are its text, in order.
func merge(have []line, text []string, v variant) []line {
	// longest[i][j] is the length of it for what follows have[i] and text[j].
	longest := make([][]int, len(have)+1)
	for i := range longest {
		longest[i] = make([]int, len(text)+1)
	}
	for i := len(have) - 1; i >= 0; i-- {
		for j := len(text) - 1; j >= 0; j-- {
			if have[i].text == text[j] {
				longest[i][j] = longest[i+1][j+1] + 1
			} else {
				longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			}
		}
	}
	var out []line
	i, j := 0, 0
	for i < len(have) || j < len(text) {
		switch {
		case i < len(have) && j < len(text) && have[i].text == text[j]:
			out = append(out, line{have[i].text, have[i].in | 1<<v})
			i, j = i+1, j+1
		case j == len(text) || i < len(have) && longest[i+1][j] >= longest[i][j+1]:
			out = append(out, have[i])
			i++
		default:
			out = append(out, line{text[j], 1 << v})
			j++
		}
	}
	return out
}

// conditional writes lines down, and conditions where not all variants of the object have them.
func conditional(lines []line, object variants) (string, error) {
	var out strings.Builder
	open := object
	for _, l := range lines {
		if l.in != open {
			if open != object {
				out.WriteString("{{- end }}\n")
			}
			if l.in != object {
				condition, err := l.in.condition()
				if err != nil {
					return "", err
				}
				out.WriteString("{{- if " + condition + " }}\n")
			}
			open = l.in
		}
		out.WriteString(l.text + "\n")
	}
	if open != object {
		out.WriteString("{{- end }}\n")
	}
	return out.String(), nil
}
