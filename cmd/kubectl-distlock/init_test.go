//go:build linux

package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// asProcessOne makes a command process 1 of a PID namespace with a /proc of its
// own, as in a container.
func asProcessOne(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	flags := []string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if os.Getuid() != 0 {
		flags = append(flags, "--user", "--map-root-user")
	}
	path, err := exec.LookPath("unshare")
	if err != nil {
		t.Skipf("no PID namespace to be had: %v", err)
	}
	if out, err := exec.CommandContext(t.Context(), path, append(flags[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("no PID namespace to be had: %v: %s", err, out)
	}
	cmd.Args = append(append(flags, cmd.Path), cmd.Args[1:]...)
	cmd.Path = path
	return cmd
}

// processOne is the process in the namespace that a command began.
func processOne(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	pid := strconv.Itoa(cmd.Process.Pid)
	children, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	must(t, err)
	one, err := strconv.Atoi(strings.TrimSpace(string(children)))
	must(t, err)
	return one
}

// zombies is a script that counts the zombies that it sees, until there is none.
const zombies = `while n=$(cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '); [ "$n" -gt 0 ]; do echo "zombies $n"; sleep 0.1; done; echo none`

func TestAsProcessOneItReapsOrphans(t *testing.T) {
	ns := ledger(t)
	orphans := `for i in 1 2 3 4 5; do sh -c 'sleep 0.2 &'; done; sleep 0.5; ` + zombies
	r := start(t, asProcessOne(t, process(t, ns, "run", "ledger", "--", "sh", "-c", "echo parent $PPID; "+orphans+"; exit 6")))
	if out := r.exits(t, 6); !strings.HasSuffix(out, "none") || strings.Contains(out, "parent 1\n") {
		t.Errorf("printed %q", out)
	}
	freeAgain(t, ns)
}

func TestAsProcessOneItPassesSignalsOnAndReleases(t *testing.T) {
	ns := ledger(t)
	r := start(t, asProcessOne(t, process(t, ns, "run", "ledger", "--", "sh", "-c",
		`trap 'echo got TERM; exit 4' TERM; echo ready; while :; do sleep 0.1; done`)))
	r.until(t, "ready")
	must(t, syscall.Kill(processOne(t, r.Cmd), syscall.SIGTERM))
	if out := r.exits(t, 4); strings.Count(out, "got TERM") != 1 {
		t.Errorf("printed %q", out)
	}
	freeAgain(t, ns)
}
