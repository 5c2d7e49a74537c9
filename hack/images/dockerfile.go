package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// A dockerfile is what this command understands of one. Whatever it does not
// understand is an error: an image that silently lacks an instruction is worse
// than none.
type dockerfile struct {
	args   map[string]string // before the first FROM
	stages []stage
}

type stage struct {
	name  string
	base  string // of another stage, "scratch", or an image
	steps []step
}

// A step is one instruction, with continued lines joined.
type step struct {
	line int
	verb string // in upper case
	rest string
}

func (s step) errorf(format string, args ...any) error {
	return fmt.Errorf("line %d, %s: "+format, append([]any{s.line, s.verb}, args...)...)
}

// understood are the instructions that parse and recipe do something with.
var understood = []string{"ARG", "COPY", "ENTRYPOINT", "ENV", "FROM", "LABEL", "RUN", "USER", "WORKDIR"}

// parse reads a Dockerfile; given is what --build-arg gives.
func parse(content string, given map[string]string) (dockerfile, error) {
	file := dockerfile{args: map[string]string{}}
	for _, s := range steps(content) {
		if !slices.Contains(understood, s.verb) {
			return file, s.errorf("hack/images does not know this instruction; teach it in hack/images/dockerfile.go")
		}
		if s.verb == "FROM" {
			words, err := split(s.rest, file.args)
			if err != nil {
				return file, s.errorf("%w", err)
			}
			if strings.HasPrefix(words[0], "--platform=") {
				words = words[1:]
			}
			if len(words) != 3 || !strings.EqualFold(words[1], "as") {
				return file, s.errorf("want FROM image AS name")
			}
			file.stages = append(file.stages, stage{name: words[2], base: words[0]})
			continue
		}
		if len(file.stages) == 0 {
			if s.verb != "ARG" {
				return file, s.errorf("it is before the first FROM")
			}
			if err := declare(s, file.args, given); err != nil {
				return file, err
			}
			continue
		}
		last := &file.stages[len(file.stages)-1]
		last.steps = append(last.steps, s)
	}
	if len(file.stages) == 0 {
		return file, errors.New("it has no FROM")
	}
	return file, nil
}

// steps joins continued lines and leaves comments out.
func steps(content string) []step {
	var found []step
	continued := false
	for i, line := range strings.Split(content, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue // also within a continued instruction
		}
		text, more := strings.CutSuffix(line, "\\")
		if continued {
			found[len(found)-1].rest += " " + strings.TrimSpace(text)
		} else {
			verb, rest, _ := strings.Cut(text, " ")
			found = append(found, step{line: i + 1, verb: strings.ToUpper(verb), rest: strings.TrimSpace(rest)})
		}
		continued = more
	}
	return found
}

// targets are the stages that are images to run, in the order of their names.
func (d dockerfile) targets() []string {
	var names []string
	for _, s := range d.stages {
		if slices.ContainsFunc(s.steps, func(s step) bool { return s.verb == "ENTRYPOINT" }) {
			names = append(names, s.name)
		}
	}
	slices.Sort(names)
	return names
}

// images are the images that the stages start from and that have to be had.
func (d dockerfile) images() []string {
	var names []string
	for _, s := range d.stages {
		if _, own := d.stage(s.base); !own && s.base != "scratch" && !slices.Contains(names, s.base) {
			names = append(names, s.base)
		}
	}
	return names
}

func (d dockerfile) stage(name string) (stage, bool) {
	i := slices.IndexFunc(d.stages, func(s stage) bool { return s.name == name })
	if i < 0 {
		return stage{}, false
	}
	return d.stages[i], true
}

// chain returns the steps of a stage and of those it is based on, the deepest
// first, and the image below all of them.
func (d dockerfile) chain(name string) ([][]step, string, error) {
	s, ok := d.stage(name)
	if !ok {
		return nil, "", fmt.Errorf("it has no stage %q", name)
	}
	if _, own := d.stage(s.base); !own {
		return [][]step{s.steps}, s.base, nil
	}
	below, base, err := d.chain(s.base)
	return append(below, s.steps), base, err
}

// A recipe is what an image is made of.
type recipe struct {
	user       string
	entrypoint []string
	labels     map[string]string
	env        []string
	workingDir string
	binaries   []binary
}

// A binary is one result of "go build".
type binary struct {
	path string   // in the image
	env  []string // of the go command: NAME=value
	args []string // of "go build", without -o
}

// recipe works out what the image of a target holds. The args are what
// --build-arg gives, and TARGETOS and TARGETARCH.
func (d dockerfile) recipe(target string, args map[string]string) (recipe, error) {
	layers, base, err := d.chain(target)
	if err != nil {
		return recipe{}, err
	}
	if base != "scratch" {
		return recipe{}, fmt.Errorf("the stage %q is based on %s; without an engine only scratch can be", target, base)
	}
	// What engines start from when nothing is below.
	r := recipe{labels: map[string]string{}, env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, workingDir: "/"}
	for _, steps := range layers {
		vars := map[string]string{}
		for _, s := range steps {
			if err := r.add(s, d, vars, args); err != nil {
				return recipe{}, err
			}
		}
	}
	if len(r.entrypoint) == 0 {
		return recipe{}, fmt.Errorf("the stage %q has no ENTRYPOINT", target)
	}
	return r, nil
}

// add does one instruction of an image's stage.
func (r *recipe) add(s step, d dockerfile, vars, args map[string]string) error {
	switch s.verb {
	case "ARG":
		return declare(s, vars, args)
	case "USER":
		r.user = s.rest
	case "WORKDIR":
		r.workingDir = s.rest
	case "LABEL", "ENV":
		words, err := split(s.rest, vars)
		if err != nil {
			return s.errorf("%w", err)
		}
		for _, word := range words {
			name, value, ok := strings.Cut(word, "=")
			if !ok {
				return s.errorf("want name=value, have %q", word)
			}
			if s.verb == "LABEL" {
				r.labels[name] = value
			} else {
				r.env = append(r.env, word)
			}
		}
	case "ENTRYPOINT":
		if err := json.Unmarshal([]byte(s.rest), &r.entrypoint); err != nil {
			return s.errorf("want a JSON list: %w", err)
		}
	case "COPY":
		words, err := split(s.rest, vars)
		if err != nil {
			return s.errorf("%w", err)
		}
		from, ok := strings.CutPrefix(words[0], "--from=")
		if !ok || len(words) != 3 || !path.IsAbs(words[2]) || strings.HasSuffix(words[2], "/") {
			return s.errorf("want COPY --from=stage /source /target")
		}
		b, err := d.build(from, words[1], args)
		if err != nil {
			return s.errorf("%w", err)
		}
		b.path = words[2]
		r.binaries = append(r.binaries, b)
	default:
		return s.errorf("an image's stage cannot have it without an engine")
	}
	return nil
}

// build finds the "go build" that makes file in a stage.
func (d dockerfile) build(stage, file string, args map[string]string) (binary, error) {
	layers, _, err := d.chain(stage)
	if err != nil {
		return binary{}, err
	}
	var env []string
	var found []binary
	for _, steps := range layers {
		vars := map[string]string{}
		for _, s := range steps {
			switch s.verb {
			case "ARG":
				if err := declare(s, vars, args); err != nil {
					return binary{}, err
				}
			case "ENV":
				words, err := split(s.rest, vars)
				if err != nil {
					return binary{}, s.errorf("%w", err)
				}
				env = append(env, words...)
			case "RUN":
				words, err := split(s.rest, vars)
				if err != nil {
					return binary{}, s.errorf("%w", err)
				}
				b, output, err := goCommand(words)
				if err != nil {
					return binary{}, s.errorf("%w", err)
				}
				if output == file {
					b.env = append(slices.Clone(env), b.env...)
					found = append(found, b)
				}
			}
		}
	}
	if len(found) != 1 {
		return binary{}, fmt.Errorf("the stage %q has %d commands with -o %s, want one", stage, len(found), file)
	}
	return found[0], nil
}

// goCommand takes the words of a RUN apart: mounts, variables, "go build". The
// other command that is known, "go mod download", has no output.
func goCommand(words []string) (binary, string, error) {
	var b binary
	for len(words) > 0 && strings.HasPrefix(words[0], "--mount=type=cache,") {
		words = words[1:]
	}
	for len(words) > 0 && words[0] != "go" {
		if name, _, ok := strings.Cut(words[0], "="); !ok || strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" {
			return b, "", fmt.Errorf("hack/images does not know the command %q, only go", words[0])
		}
		b.env = append(b.env, words[0])
		words = words[1:]
	}
	if slices.Equal(words, []string{"go", "mod", "download"}) {
		return b, "", nil
	}
	if len(words) < 2 || words[1] != "build" {
		return b, "", errors.New(`hack/images knows "go build" and "go mod download" only`)
	}
	words = slices.Clone(words[2:])
	i := slices.Index(words, "-o")
	if i < 0 || i+1 == len(words) {
		return b, "", errors.New(`"go build" has no -o`)
	}
	output := words[i+1]
	b.args = slices.Delete(words, i, i+2)
	return b, output, nil
}

// declare does an ARG: what was given wins over the default, and without either
// the variable is not set.
func declare(s step, vars, given map[string]string) error {
	words, err := split(s.rest, vars)
	if err != nil {
		return s.errorf("%w", err)
	}
	for _, word := range words {
		name, value, ok := strings.Cut(word, "=")
		if g, isGiven := given[name]; isGiven {
			value, ok = g, true
		}
		if ok {
			vars[name] = value
		}
	}
	return nil
}

// split parts words as a shell does, with double quotes and variables. What
// else a shell understands is refused. A variable that is not set is an error:
// the engine would go on with nothing.
func split(text string, vars map[string]string) ([]string, error) {
	var words []string
	var word strings.Builder
	quoted, begun := false, false
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '"':
			quoted, begun = !quoted, true
		case (c == ' ' || c == '\t') && !quoted:
			if begun {
				words = append(words, word.String())
				word.Reset()
				begun = false
			}
		case c == '$':
			name, length, err := variable(text[i:])
			if err != nil {
				return nil, err
			}
			value, ok := vars[name]
			if !ok && name != "BUILDPLATFORM" {
				return nil, fmt.Errorf("the variable %q has no value here", name)
			}
			word.WriteString(value)
			begun = true
			i += length - 1
		case strings.IndexByte("'`\\", c) >= 0, strings.IndexByte(";&|<>()*?", c) >= 0 && !quoted:
			return nil, fmt.Errorf("hack/images does not know what %q means", c)
		default:
			word.WriteByte(c)
			begun = true
		}
	}
	if quoted {
		return nil, errors.New("a quotation mark is missing")
	}
	if begun {
		words = append(words, word.String())
	}
	if len(words) == 0 {
		return nil, errors.New("it is empty")
	}
	return words, nil
}

// variable reads $NAME or ${NAME} at the start of text.
func variable(text string) (name string, length int, err error) {
	if inner, ok := strings.CutPrefix(text, "${"); ok {
		name, _, ok = strings.Cut(inner, "}")
		if ok && name != "" && nameEnd(name) == len(name) {
			return name, len(name) + len("${}"), nil
		}
	} else if end := nameEnd(text[1:]); end > 0 {
		return text[1 : 1+end], 1 + end, nil
	}
	return "", 0, fmt.Errorf("hack/images does not know what %q means", text)
}

func nameEnd(text string) int {
	isNot := func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}
	if i := strings.IndexFunc(text, isNot); i >= 0 {
		return i
	}
	return len(text)
}
