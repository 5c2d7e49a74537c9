module github.com/belay-dev/belay/hack/controlplane

go 1.26.0
