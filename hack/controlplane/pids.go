package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// A processID names one process for good: a pid is given out again, a pid
// together with the time its process started is not.
type processID struct {
	pid     int
	started string // field 22 of /proc/<pid>/stat, or what ps prints
}

// recordProcess appends this process to the pids file, which has to exist.
func recordProcess(file string) error {
	started, err := startTime(os.Getpid())
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(formatProcess(processID{os.Getpid(), started}))
	return errors.Join(err, f.Close())
}

func formatProcess(p processID) string { return fmt.Sprintf("%d %s\n", p.pid, p.started) }

// parseProcesses reads a pids file and skips what is no record, such as a line
// that was cut off: half a number would be another process.
func parseProcesses(content string) []processID {
	var found []processID
	for line := range strings.Lines(content) {
		line, complete := strings.CutSuffix(line, "\n")
		pid, started, ok := strings.Cut(line, " ")
		n, err := strconv.Atoi(pid)
		if complete && ok && err == nil && n > 1 && started != "" {
			found = append(found, processID{n, started})
		}
	}
	return found
}

func readProcesses(file string) ([]processID, error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return parseProcesses(string(content)), err
}

// alive tells whether p still runs. A zombie does not.
func (p processID) alive() bool {
	started, err := startTime(p.pid)
	return err == nil && started == p.started
}

// startTime returns when the process started, in whatever unit the system
// uses, or an error when there is no such process or it is a zombie.
func startTime(pid int) (string, error) {
	if runtime.GOOS == "linux" {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return "", err
		}
		return parseStat(string(stat))
	}
	out, err := exec.Command("ps", "-o", "lstart=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return "", err
	}
	return strings.Join(strings.Fields(string(out)), "_"), nil
}

// parseStat returns the start time out of the content of /proc/<pid>/stat. The
// second field is the name in parentheses, which may hold anything.
func parseStat(stat string) (string, error) {
	// Fields 3 and 22 of proc_pid_stat(5), counted from 1; the pid and the name are cut off.
	const state, start = 0, 19
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	if len(fields) <= start {
		return "", fmt.Errorf("unreadable process state %q", stat)
	}
	if fields[state] == "Z" {
		return "", errors.New("the process has ended")
	}
	return fields[start], nil
}
