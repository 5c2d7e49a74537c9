package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseProcesses(t *testing.T) {
	t.Parallel()
	want := []processID{{4711, "123456"}, {4712, "123457"}}
	for name, content := range map[string]string{
		"records":                              "4711 123456\n4712 123457\n",
		"a record that was cut off is skipped": "4711 123456\n4712 123457\n4713 12",
		"a record without time is skipped":     "4711 123456\n4713\n4713 \n4712 123457\n",
		"pids that mean many are skipped":      "0 1\n-1 1\n1 1\n4711 123456\n4712 123457\n",
		"other lines are skipped":              "\nx y\n4711 123456\n4712 123457\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := parseProcesses(content); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	stat := func(name, state string) string {
		// Fields 4 to 21 are numbers that do not matter, 22 is the start time.
		return "42 (" + name + ") " + state + strings.Repeat(" 7", 18) + " 998877 1 2 3\n"
	}
	for name, tc := range map[string]struct{ stat, want string }{
		"a plain name":                   {stat("etcd", "S"), "998877"},
		"a name with blanks and a paren": {stat("a) S 1 (b", "R"), "998877"},
		"a stopped process is alive":     {stat("etcd", "T"), "998877"},
		"a zombie has ended":             {stat("etcd", "Z"), ""},
		"nothing at all":                 {"", ""},
		"too few fields":                 {"42 (etcd) S 1 2", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseStat(tc.stat)
			if got != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("parseStat = %q, %v; want %q", got, err, tc.want)
			}
		})
	}
}

func TestRecordedProcessIsAlive(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pids")
	if err := recordProcess(file); err == nil {
		t.Fatal("a process recorded itself in a directory that was cleaned up")
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := recordProcess(file); err != nil {
		t.Fatal(err)
	}
	got, err := readProcesses(file)
	if err != nil || len(got) != 1 || got[0].pid != os.Getpid() {
		t.Fatalf("readProcesses = %v, %v; want this process", got, err)
	}
	if !got[0].alive() {
		t.Error("this process is not alive")
	}
	reused := got[0]
	reused.started += "0"
	if reused.alive() {
		t.Error("a process with another start time is taken for the recorded one")
	}
}

func TestCleanupKillsOnlyTheRecordedProcess(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	recorded, reused := startSleep(t), startSleep(t)
	started, err := startTime(recorded.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	content := formatProcess(processID{recorded.Process.Pid, started}) +
		formatProcess(processID{reused.Process.Pid, "1"})
	if err := os.WriteFile(filepath.Join(dir, "pids"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cleanup(dir); err != nil {
		t.Fatal(err)
	}
	if err := recorded.Wait(); err == nil {
		t.Error("the recorded process ended by itself")
	}
	if _, err := startTime(reused.Process.Pid); err != nil {
		t.Errorf("a process that only has the pid of a recorded one is gone: %v", err)
	}
	if exists(dir) {
		t.Error("the directory is still there")
	}
	if err := cleanup(dir); err != nil {
		t.Errorf("cleaning up twice: %v", err)
	}
}

func startSleep(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = groupOfItsOwn()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails when it was killed before
		_ = cmd.Wait()
	})
	return cmd
}
