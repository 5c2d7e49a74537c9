package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// without asks for every capability but CAP_SYS_RESOURCE, and then becomes runc. The engine
// calls it in place of runc.
//
//go:embed without-sys-resource.sh
var without []byte

const (
	bridge     = "belay0"
	bridgeAddr = "172.29.0.1/24"
	addresses  = "base=172.30.0.0/16,size=24"
	// runDir has the engine's socket, whose path has at most 107 characters, and its pid.
	runDir = "/run/belay-kind"
	// runtimeName is what the engine calls the runtime of without.
	runtimeName = "without-sys-resource"
	// The bits of CAP_NET_ADMIN, CAP_SYS_ADMIN and CAP_SYS_RESOURCE, see capability.h.
	netAdmin, sysAdmin, sysResource = 12, 21, 24
)

// state is what down has to undo.
type state struct {
	// Host is DOCKER_HOST of the engine that was started here; empty for another one.
	Host string `json:"host,omitempty"`
	// Sysctls are as they were before.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Image is the node image in use.
	Image string `json:"image,omitempty"`
}

func (k *kind) stateFile() string { return filepath.Join(k.cache, "state.json") }

func (k *kind) load() error {
	content, err := os.ReadFile(k.stateFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, &k.state); err != nil {
		return fmt.Errorf("reading %s (remove it if nothing runs): %w", k.stateFile(), err)
	}
	return nil
}

func (k *kind) save() error {
	content, err := json.MarshalIndent(k.state, "", "  ")
	if err != nil {
		return err
	}
	tmp := k.stateFile() + ".tmp"
	if err := os.WriteFile(tmp, append(content, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, k.stateFile())
}

func (k *kind) engineDir() string { return filepath.Join(k.cache, "engine") }

// useEngine has the commands talk to the engine that was started here, if it answers.
func (k *kind) useEngine(ctx context.Context) bool {
	if k.state.Host != "" {
		own := *k.tools
		own.env = append(own.env, "DOCKER_HOST="+k.state.Host)
		own.path = "/usr/bin:/usr/sbin"
		if answers(ctx, &own) == nil {
			*k.tools = own
			return true
		}
	}
	return false
}

func answers(ctx context.Context, t *tools) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return t.run(ctx, call{name: "docker", args: []string{"version", "--format", "{{.Server.Version}}"}})
}

// A noEngineError says that this machine has no container engine and can have none. One that could
// be had, and was not to be installed or did not start, is an error like any other.
type noEngineError struct{ error }

// engine finds an engine that can run nodes, or starts one.
func (k *kind) engine(ctx context.Context) error {
	if k.useEngine(ctx) {
		return nil
	}
	short, err := lacksSysResource()
	if err != nil {
		return err
	}
	why := answers(ctx, k.tools)
	if why == nil {
		if !short {
			k.say("container engine: the one that docker reaches")
			return nil
		}
		why = errors.New("this machine has no CAP_SYS_RESOURCE, and the engine that answers would ask for it")
	}
	if os.Geteuid() != 0 {
		return noEngineError{fmt.Errorf("no container engine (%w); start docker, or run this as root, so that it can start one", why)}
	}
	for _, needed := range []struct {
		bit  uint
		name string
	}{{netAdmin, "CAP_NET_ADMIN"}, {sysAdmin, "CAP_SYS_ADMIN"}} {
		lacks, err := lacksCapability(needed.bit)
		if err != nil {
			return err
		}
		if lacks {
			return noEngineError{fmt.Errorf("no container engine (%w), and none can be started without %s", why, needed.name)}
		}
	}
	if err := k.install(ctx, "dockerd", "docker.io", "iptables"); err != nil {
		err := fmt.Errorf("no container engine (%w), and none was installed: %w", why, err)
		if _, none := k.tools.look("apt-get"); none != nil {
			return noEngineError{err}
		}
		return err
	}
	return k.tools.step("starting a container engine", func() error { return k.startEngine(ctx, short) })
}

// install makes sure of a command that a Debian package has.
func (k *kind) install(ctx context.Context, command string, packages ...string) error {
	if _, err := k.tools.look(command); err == nil {
		return nil
	}
	if _, err := k.tools.look("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("%s is missing; install %s", command, strings.Join(packages, ", "))
	}
	return k.tools.step("installing "+strings.Join(packages, ", "), func() error {
		env := []string{"DEBIAN_FRONTEND=noninteractive"}
		if err := k.tools.run(ctx, call{name: "apt-get", args: []string{"update", "-qq"}, env: env}); err != nil {
			return err
		}
		return k.tools.run(ctx, call{name: "apt-get", args: append([]string{"install", "-y", "-qq", "--no-install-recommends"}, packages...), env: env})
	})
}

// lacksSysResource reports whether no process here can have CAP_SYS_RESOURCE.
func lacksSysResource() (bool, error) { return lacksCapability(sysResource) }

// lacksCapability reports whether no process here can have a capability.
func lacksCapability(bit uint) (bool, error) {
	status, err := os.ReadFile("/proc/self/status")
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // not Linux: the engine is in a virtual machine
	}
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(status)) {
		hex, found := strings.CutPrefix(line, "CapBnd:")
		if !found {
			continue
		}
		bits, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		if err != nil {
			return false, fmt.Errorf("reading CapBnd of /proc/self/status: %w", err)
		}
		return bits>>bit&1 == 0, nil
	}
	return false, nil
}

func (k *kind) startEngine(ctx context.Context, short bool) error {
	dir := k.engineDir()
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	if err := os.MkdirAll(runDir, 0o711); err != nil {
		return err
	}
	// A bridge of the engine's own making would be docker0, which another engine may have.
	if !exists("/sys/class/net/" + bridge) {
		for _, args := range [][]string{{"link", "add", bridge, "type", "bridge"}, {"addr", "add", bridgeAddr, "dev", bridge}, {"link", "set", bridge, "up"}} {
			if err := k.tools.run(ctx, call{name: "ip", args: args}); err != nil {
				return err
			}
		}
	}
	host := "unix://" + runDir + "/docker.sock"
	args := []string{
		"--data-root", filepath.Join(dir, "data"), "--exec-root", runDir + "/exec", "--pidfile", runDir + "/docker.pid", "--host", host,
		"--iptables=false", "--ip6tables=false", "--bridge=" + bridge, "--default-address-pool", addresses,
	}
	if short {
		runc, err := k.tools.look("runc")
		if err != nil {
			return err
		}
		wrapper := filepath.Join(dir, runtimeName)
		script := strings.ReplaceAll(string(without), "@RUNC@", runc)
		if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil {
			return err
		}
		args = append(args, "--add-runtime", runtimeName+"="+wrapper, "--default-runtime", runtimeName)
	}
	dockerd, err := k.tools.look("dockerd")
	if err != nil {
		return err
	}
	logFile := filepath.Join(dir, "dockerd.log")
	log, err := os.Create(logFile)
	if err != nil {
		return err
	}
	defer log.Close()
	// It outlives this process, and does not hear its Ctrl-C.
	cmd := exec.Command(dockerd, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	k.state.Host = host
	if err := k.save(); err != nil {
		return err
	}
	if err := inheritNothing(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return eventually(ctx, time.Minute, func() error {
		select {
		case err := <-ended:
			ended <- err
			return fmt.Errorf("dockerd ended (%w); see %s", err, logFile)
		default:
		}
		if !k.useEngine(ctx) {
			return fmt.Errorf("dockerd does not answer; see %s", logFile)
		}
		return nil
	})
}

// inheritNothing keeps from the commands that are started what this process was given beside its
// standard streams: "flock FILE make kind-up" would hold the lock for as long as the engine lives.
func inheritNothing() error {
	given, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, entry := range given {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return nil
}

// stopEngine ends the engine that was started here, if one was.
func (k *kind) stopEngine(ctx context.Context) error {
	if k.state.Host == "" {
		return nil
	}
	pid, err := os.ReadFile(runDir + "/docker.pid")
	if err == nil {
		n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
		if err != nil {
			return fmt.Errorf("reading %s: %w", runDir+"/docker.pid", err)
		}
		// A pid may be somebody else's by now.
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", n)); err == nil && strings.TrimSpace(string(name)) == "dockerd" {
			if err := syscall.Kill(n, syscall.SIGTERM); err != nil {
				return fmt.Errorf("stopping dockerd: %w", err)
			}
			if err := eventually(ctx, time.Minute, func() error {
				if exists(fmt.Sprintf("/proc/%d/exe", n)) {
					return errors.New("dockerd still runs")
				}
				return nil
			}); err != nil {
				return err
			}
		}
	}
	if exists("/sys/class/net/" + bridge) {
		if err := k.tools.run(ctx, call{name: "ip", args: []string{"link", "del", bridge}}); err != nil {
			return err
		}
	}
	k.state.Host = ""
	return errors.Join(os.RemoveAll(runDir), k.save())
}
