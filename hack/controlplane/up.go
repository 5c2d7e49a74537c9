package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const upUsage = `
Starts etcd, kube-apiserver and kube-controller-manager on 127.0.0.1, building
them when needed, prints one line of JSON on stdout and runs until it gets
SIGINT or SIGTERM (with --until-eof also until stdin ends). Then it stops the
three and removes their data; even a SIGKILL leaves nothing behind.

  {"version":"v1.37.2","kubeconfig":"...","server":"https://127.0.0.1:20001",
   "etcd":"127.0.0.1:20002","dir":"...","auditLog":"...","pid":4711,
   "startSeconds":6.1,"servers":[{"name":"kube-apiserver",
   "server":"https://127.0.0.1:20001","kubeconfig":"...","auditLog":"..."}]}

Logs are <dir>/etcd.log, <dir>/kube-apiserver.log and
<dir>/kube-controller-manager.log; auditLog is empty without --audit.

With --apiservers=2, or more, there are so many kube-apiservers on one etcd, as
in a cluster with several control plane nodes. They are called kube-apiserver-1,
kube-apiserver-2 and so on, and servers has each with a kubeconfig and an audit
log of its own. The kubeconfig on top goes through a front that gives each
connection to the next server that takes it, as a load balancer does; a paused
server takes them, too. The controller manager talks to kube-apiserver-1.

With --until-eof, lines on stdin are commands. NAME is etcd, kube-apiserver (or
one of several) or kube-controller-manager. Each is answered by one line on
stdout, {"ok":true} or {"error":"..."}:

  stop NAME               SIGTERM, and SIGKILL when that takes too long
  start NAME [flags]      on the same port with the same data, until healthy
  restart NAME [flags]    stop and start
  pause NAME              SIGSTOP
  resume NAME             SIGCONT
  kill NAME               SIGKILL

Flags of start and restart, separated by blanks, replace those of the same name
until the next start: restart kube-controller-manager --v=4

With --etcd-proxy, kube-apiserver reaches etcd through a proxy of the caller,
which can break connections. The proxy learns where etcd is from one more line
on stdout that comes before anything is started: {"etcd":"127.0.0.1:20002"}.
Given several times, the first is that of kube-apiserver-1 and so on, and the
last that of all others.`

// maxAPIServers is more than anybody has; each takes half a GiB.
const maxAPIServers = 9

// started is what up prints when the control plane is ready.
type started struct {
	Version      string  `json:"version"`
	Kubeconfig   string  `json:"kubeconfig"`
	Server       string  `json:"server"`
	Etcd         string  `json:"etcd"`
	Dir          string  `json:"dir"`
	AuditLog     string  `json:"auditLog"`
	PID          int     `json:"pid"`
	StartSeconds float64 `json:"startSeconds"`

	Servers []server `json:"servers"`
}

func runUp(ctx context.Context, args []string) error {
	fs := newFlags("up", upUsage)
	version := versionFlag(fs)
	var o options
	fs.BoolVar(&o.enforceOwnerReferences, "enforce-owner-references", false, "enable the admission plugin OwnerReferencesPermissionEnforcement")
	fs.BoolVar(&o.sharedControllerIdentity, "shared-controller-identity", false, "let all controllers act as the user "+controllerManagerUser+", with all their roles bound to it, instead of a service account each")
	fs.BoolVar(&o.audit, "audit", false, "log the metadata of every request to <dir>/audit.log")
	o.apiservers = 1
	fs.Func("apiservers", fmt.Sprintf("how many kube-apiservers to start, 1 to %d (default 1)", maxAPIServers), func(s string) (err error) {
		o.apiservers, err = strconv.Atoi(s)
		if err != nil || o.apiservers < 1 || o.apiservers > maxAPIServers {
			return fmt.Errorf("want a number from 1 to %d", maxAPIServers)
		}
		return nil
	})
	fs.Func("etcd-proxy", "`host:port` where kube-apiserver is to reach etcd, also after a restart; may be repeated", func(s string) error {
		_, _, err := net.SplitHostPort(s)
		o.etcdProxies = append(o.etcdProxies, s)
		return err
	})
	fs.Func("apiserver-flag", "a `flag` of kube-apiserver such as --v=4; replaces the default of the same name; may be repeated", func(s string) error {
		_, err := flagName(s)
		o.apiserverFlags = append(o.apiserverFlags, s)
		return err
	})
	copyTo := fs.String("kubeconfig", "", "write the kubeconfig to this `file` as well; it is removed at the end")
	untilEOF := fs.Bool("until-eof", false, "read commands from stdin and stop when it ends")
	if err := parse(fs, args); err != nil {
		return err
	}

	// A reader of stderr that goes away must not take the clean stop along.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)

	var commands <-chan string
	if *untilEOF {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		commands = readLines(ctx, os.Stdin, cancel)
	}

	b, err := newBuilder(os.Stderr)
	if err != nil {
		return err
	}
	bins, err := b.binaries(ctx, *version)
	if err != nil {
		return err
	}
	dir, err := newRunDir(ctx, filepath.Join(b.cache, "run"), o.apiservers, os.Stderr)
	if err != nil {
		return fmt.Errorf("creating a run directory: %w", err)
	}
	j, err := startJanitor(dir.path)
	if err != nil {
		return errors.Join(fmt.Errorf("starting the janitor: %w", err), cleanup(dir.path))
	}

	err = runPlane(ctx, planeRun{dir: dir, bins: bins, options: o, copyTo: *copyTo, commands: commands})
	if err := j.finish(); err != nil {
		fmt.Fprintf(os.Stderr, "the janitor failed: %v\n", err)
	}
	// The janitor has done it, unless somebody killed it.
	if err := cleanup(dir.path); err != nil {
		fmt.Fprintf(os.Stderr, "cleaning up %s: %v\n", dir.path, err)
	}
	dir.lock.Close()
	return err
}

type planeRun struct {
	dir      *runDir
	bins     binaries
	options  options
	copyTo   string
	commands <-chan string
}

// runPlane starts a control plane, obeys commands until ctx ends, and stops it.
func runPlane(ctx context.Context, r planeRun) (err error) {
	start := time.Now()
	p, err := newPlane(r.dir, r.bins, r.options, os.Stderr)
	if err != nil {
		return err
	}
	out := started{
		Version: r.bins.version, Kubeconfig: r.dir.file("kubeconfig"), Server: p.server, Etcd: p.etcd,
		Dir: r.dir.path, AuditLog: p.servers[0].AuditLog, PID: os.Getpid(), Servers: p.servers,
	}
	if r.copyTo != "" {
		if out.Kubeconfig, err = writeCopy(r.dir, r.copyTo, p.kubeconfig); err != nil {
			return fmt.Errorf("writing the kubeconfig: %w", err)
		}
	}
	answers := json.NewEncoder(os.Stdout)
	if len(r.options.etcdProxies) > 0 {
		// Before etcd is started, so that the proxy knows it when kube-apiserver comes.
		if err := answers.Encode(map[string]string{"etcd": p.etcd}); err != nil {
			return fmt.Errorf("writing to stdout: %w", err)
		}
	}
	if port := r.dir.ports.front; port != 0 {
		f, err := newFront(port, r.dir.ports.apiservers)
		if err != nil {
			return fmt.Errorf("starting the front of the kube-apiservers: %w", err)
		}
		defer f.close()
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	if err := p.start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // asked to stop meanwhile
		}
		return err
	}
	out.StartSeconds = math.Round(time.Since(start).Seconds()*10) / 10
	fmt.Fprintf(os.Stderr, "%s is ready after %.1f s: export KUBECONFIG=%s\n", out.Version, out.StartSeconds, out.Kubeconfig)
	if err := answers.Encode(out); err != nil {
		return fmt.Errorf("writing to stdout: %w", err)
	}

	for {
		select {
		case <-ctx.Done():
			fmt.Fprintln(os.Stderr, "stopping")
			return nil
		case line := <-r.commands:
			answer := map[string]any{"ok": true}
			if err := p.obey(ctx, line); err != nil {
				answer = map[string]any{"error": err.Error()}
			}
			if err := answers.Encode(answer); err != nil {
				return fmt.Errorf("writing to stdout: %w", err)
			}
		}
	}
}

// readLines sends the lines of in until ctx ends and calls eof after the last.
// A read can not be interrupted, so its goroutine may live as long as the
// program.
func readLines(ctx context.Context, in io.Reader, eof func()) <-chan string {
	lines := make(chan string)
	go func() {
		defer eof()
		for s := bufio.NewScanner(in); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return lines
}
