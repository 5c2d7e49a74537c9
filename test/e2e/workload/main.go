// Command workload stands in for the programs that the upstreams run in their Pods. What it does
// is its first argument, which its images have as their entrypoint; the rest is the upstream's.
//
//	otf-job            reads its token, works for a moment, exits 0
//	restore            works for a moment; exits 1 if --ref is "broken", and takes an hour if "slow"
//	sandbox            serves until it is told to crash: GET /crash
//	exit               works for a second, exits 0
//	sleep              waits for SIGTERM
//
// A sandbox serves on :8080: / says hello, /ready is 200 after READY_AFTER.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// work is how long a Job works: long enough to be seen running.
const work = 2 * time.Second

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	what := "sandbox"
	if len(args) > 0 {
		what, args = args[0], args[1:]
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	switch what {
	case "otf-job":
		if os.Getenv("OTF_JOB_TOKEN") == "" {
			fmt.Println("no OTF_JOB_TOKEN")
			return 1
		}
		return pause(ctx, work)
	case "restore":
		fmt.Println("restoring", args)
		if slices.Contains(args, "slow") {
			return pause(ctx, time.Hour)
		}
		code := pause(ctx, work)
		if slices.Contains(args, "broken") {
			fmt.Println("the archive is broken")
			return 1
		}
		return code
	case "exit":
		return pause(ctx, time.Second)
	case "sleep":
		<-ctx.Done()
		return 0
	case "sandbox":
		return serve(ctx)
	}
	fmt.Println("no such work:", what)
	return 2
}

func pause(ctx context.Context, d time.Duration) int {
	select {
	case <-ctx.Done():
		return 1
	case <-time.After(d):
		return 0
	}
}

func serve(ctx context.Context) int {
	after, _ := time.ParseDuration(os.Getenv("READY_AFTER")) // nothing is at once
	start := time.Now()
	fmt.Println("ready at", start.Add(after).UnixMilli())
	crash := make(chan int, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "hello") })
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if time.Since(start) < after {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /crash", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		select {
		case crash <- 1:
		default:
		}
	})
	server := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case <-ctx.Done():
		return 0
	case err := <-failed:
		if !errors.Is(err, http.ErrServerClosed) {
			fmt.Println(err)
		}
		return 1
	case code := <-crash:
		// Whoever asked gets the answer first.
		pause(ctx, 100*time.Millisecond)
		return code
	}
}
