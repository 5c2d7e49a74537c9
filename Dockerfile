# One target per image:
#
#   docker build --target webhook --build-arg VERSION=v0.1.0 -t belay-webhook:v0.1.0 .
#
# Each is one static binary and nothing else: no shell, no package manager, no certificates (the
# API server's CA comes with the service account), and so no advisories but the binary's own.
#
# hack/images reads this file and makes equal images where golang cannot be pulled. It knows the
# instructions that are used here, and says so where it does not.

ARG GO_VERSION=1.26

# The builder runs on the machine's own platform and cross-compiles: Go needs no emulation for that.
FROM --platform=$BUILDPLATFORM golang:${GO_VERSION} AS builder
WORKDIR /src
ENV CGO_ENABLED=0
# The modules come first, so that a change of the code does not fetch them again.
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .

FROM builder AS build-webhook
ARG TARGETOS TARGETARCH VERSION=devel
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags="-s -w -X github.com/belay-dev/belay/webhook/app.version=$VERSION" -o /belay-webhook ./cmd/belay-webhook

FROM builder AS build-controller
ARG TARGETOS TARGETARCH VERSION=devel
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags="-s -w -X github.com/belay-dev/belay/webhook/app.version=$VERSION" -o /belay-controller ./cmd/belay-controller

FROM builder AS build-sidecar
ARG TARGETOS TARGETARCH VERSION=devel
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags="-s -w -X github.com/belay-dev/belay/sidecar/app.version=$VERSION" -o /belay-sidecar ./cmd/belay-sidecar

# 65532 is what others call "nonroot"; as a number it also satisfies runAsNonRoot.
FROM scratch AS base
ARG VERSION=devel
LABEL org.opencontainers.image.title="belay" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/belay-dev/belay"
USER 65532:65532

FROM base AS controller
COPY --from=build-controller /belay-controller /belay-controller
ENTRYPOINT ["/belay-controller"]

FROM base AS sidecar
COPY --from=build-sidecar /belay-sidecar /belay-sidecar
ENTRYPOINT ["/belay-sidecar"]

FROM base AS webhook
COPY --from=build-webhook /belay-webhook /belay-webhook
ENTRYPOINT ["/belay-webhook"]
