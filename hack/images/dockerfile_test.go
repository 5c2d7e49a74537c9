package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const small = `ARG GO=1
FROM --platform=$BUILDPLATFORM golang:${GO} AS go
ENV CGO_ENABLED=0 GOFLAGS="-a -b"
FROM go AS build
ARG TARGETARCH VERSION=devel
# A comment.
RUN --mount=type=cache,target=/x \
    # One in between.
    GOARCH=$TARGETARCH go build -ldflags="-X v=$VERSION" -o /out ./cmd

FROM scratch AS base
USER 7:7
FROM base AS image
COPY --from=build /out /bin/tool
LABEL a="b c" d=e
WORKDIR /w
ENV F=g
ENTRYPOINT ["/bin/tool", "run"]
`

func TestRecipe(t *testing.T) {
	t.Parallel()
	args := map[string]string{"TARGETARCH": "arm64", "VERSION": "v1"}
	file, err := parse(small, args)
	if err != nil {
		t.Fatal(err)
	}
	got, err := file.recipe("image", args)
	if err != nil {
		t.Fatal(err)
	}
	want := recipe{
		user:       "7:7",
		entrypoint: []string{"/bin/tool", "run"},
		labels:     map[string]string{"a": "b c", "d": "e"},
		env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "F=g"},
		workingDir: "/w",
		binaries: []binary{{
			path: "/bin/tool",
			env:  []string{"CGO_ENABLED=0", "GOFLAGS=-a -b", "GOARCH=arm64"},
			args: []string{"-ldflags=-X v=v1", "./cmd"},
		}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(recipe{}, binary{})); diff != "" {
		t.Errorf("recipe (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"golang:1"}, file.images()); diff != "" {
		t.Errorf("base images (-want +got):\n%s", diff)
	}
}

// What is not understood is refused, wherever it stands; nothing is left out
// in silence.
func TestNotUnderstood(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		from, to string // a change of small
		want     string
	}{
		"an instruction nobody knows":       {"USER 7:7", "EXPOSE 80", "line 12, EXPOSE"},
		"a command in an image's stage":     {"USER 7:7", "RUN chmod 4755 /x", "without an engine"},
		"a stage without a name":            {"FROM scratch AS base", "FROM scratch", "FROM image AS name"},
		"an instruction before FROM":        {"ARG GO=1", "USER 1", "before the first FROM"},
		"another base image":                {"FROM scratch AS base", "FROM debian AS base", "based on debian"},
		"another program than go":           {"go build", "make", `"make"`},
		"another command of go":             {"go build", "go install", "go build"},
		"two commands":                      {"./cmd", "./cmd && strip /out", "'&'"},
		"a variable without a value":        {"$VERSION", "$VERSIONS", `"VERSIONS" has no value`},
		"a variable with a default":         {"${GO}", "${GO:-1}", "${GO:-1}"},
		"a binary that nothing builds":      {"-o /out", "-o /else", "0 commands with -o /out"},
		"a binary from nowhere":             {"--from=build", "--from=nowhere", `no stage "nowhere"`},
		"a file that is copied":             {"COPY --from=build /out", "COPY LICENSE", "--from=stage"},
		"a copy into a folder":              {"/bin/tool\nLABEL", "/bin/\nLABEL", "--from=stage"},
		"a file with other permissions":     {"COPY --from=build", "COPY --chmod=4755 --from=build", "--from=stage"},
		"an entrypoint in a shell":          {`["/bin/tool", "run"]`, "/bin/tool run", "JSON"},
		"no entrypoint":                     {`ENTRYPOINT ["/bin/tool", "run"]`, "", "no ENTRYPOINT"},
		"a quotation mark without a second": {`"b c"`, `"b c`, "quotation mark"},
		"a build without -o":                {"-o /out", "", "no -o"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.Count(small, tc.from) != 1 {
				t.Fatalf("%q is in the example %d times", tc.from, strings.Count(small, tc.from))
			}
			args := map[string]string{"TARGETARCH": "arm64"}
			file, err := parse(strings.Replace(small, tc.from, tc.to, 1), args)
			if err == nil {
				_, err = file.recipe("image", args)
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want something with %q", err, tc.want)
			}
		})
	}
}
