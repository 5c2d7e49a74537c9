// Command workload stands in for the programs that the upstreams run in their Pods. What it does
// is its first argument, which its images have as their entrypoint; the rest is the upstream's.
//
//	otf-job            reads its token, works for a moment, exits 0
//	restore            works for a moment; exits 1 if --ref is "broken"
//	sandbox            serves until it is told to crash: GET /crash
//	sleep              waits for SIGTERM
//
// Each serves on :8080 unless it is done before: / says hello, /ready is 200 after READY_AFTER.
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
	if home := os.Getenv("CRASH_FILE"); home != "" {
		if _, err := os.Stat(home); err == nil {
			fmt.Println("crashing again, as", home, "says")
			return 1
		}
	}
	switch what {
	case "otf-job":
		if os.Getenv("OTF_JOB_TOKEN") == "" {
			fmt.Println("no OTF_JOB_TOKEN")
			return 1
		}
		return pause(ctx, work)
	case "restore":
		fmt.Println("restoring", args)
		for i, arg := range args {
			if arg == "--ref" && i+1 < len(args) && args[i+1] == "slow" {
				return pause(ctx, time.Hour)
			}
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
	mux.HandleFunc("GET /crash", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		if name := os.Getenv("CRASH_FILE"); name != "" && r.URL.Query().Has("again") {
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				fmt.Println(err)
			}
		}
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
