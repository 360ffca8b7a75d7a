package process

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// parent turns the test binary into a process that has a child, for the test that
// kills it.
const parent = "DISTLOCK_TEST_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(parent) != "" {
		child, err := Start(exec.Command("sleep", "600"))
		if err != nil {
			panic(err)
		}
		fmt.Println(child.PID())
		<-child.Done()
		return
	}
	os.Exit(m.Run())
}

func TestAChildDiesWithAKilledParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux can")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), parent+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := eventually(t, func() bool { return !running(child) }); err != nil {
		t.Errorf("the child lives on: %v", err)
	}
}

func TestExitCodesAreTheShells(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 3": 3, "kill -TERM $$": 143, "kill -KILL $$": 137} {
		p := start(t, script)
		if got := p.ExitCode(); got != want {
			t.Errorf("%s: got %d, want %d", script, got, want)
		}
		if !p.Exited() {
			t.Errorf("%s: has not exited", script)
		}
		if err := p.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("%s: a signal afterwards: %v", script, err)
		}
	}
}

func TestOnlyTheChildIsAskedToStop(t *testing.T) {
	dir := t.TempDir()
	inner := filepath.Join(dir, "inner")
	script := "trap ': > " + dir + "/asked' TERM; while :; do : > " + dir + "/turn; sleep 0.02; done"
	if err := os.WriteFile(inner, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "trap 'exit 5' TERM; sh "+inner+" & wait")
	turns := func() { // the child's child has taken in every signal that was sent before
		for range 2 {
			_ = os.Remove(filepath.Join(dir, "turn"))
			if err := eventually(t, func() bool { return exists(filepath.Join(dir, "turn")) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	turns()
	if err := p.Terminate(); err != nil {
		t.Fatal(err)
	}
	if got := p.ExitCode(); got != 5 {
		t.Errorf("exit code %d, want that of its trap", got)
	}
	turns()
	if exists(filepath.Join(dir, "asked")) {
		t.Error("its child was asked too")
	}
}

func TestStopReachesTheWholeGroup(t *testing.T) {
	p := start(t, "sleep 600 & sleep 600; true")
	if !p.Stop(time.Minute) {
		t.Error("not in time")
	}
	if err := eventually(t, func() bool { return syscall.Kill(-p.PID(), 0) != nil }); err != nil {
		t.Errorf("the group lives on: %v", err)
	}
}

func TestStopKillsWhatIgnoresSIGTERM(t *testing.T) {
	trapped := filepath.Join(t.TempDir(), "trapped")
	p := start(t, "trap '' TERM; : > "+trapped+"; while :; do sleep 1; done")
	if err := eventually(t, func() bool { return exists(trapped) }); err != nil {
		t.Fatal(err)
	}
	if p.Stop(50 * time.Millisecond) {
		t.Error("ended by SIGTERM")
	}
	if got := p.ExitCode(); got != 137 {
		t.Errorf("exit code %d, want 137", got)
	}
}

func TestStopEndsAPausedChild(t *testing.T) {
	p := start(t, "sleep 600")
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if !p.Stop(time.Minute) {
		t.Error("not in time")
	}
}

func TestAMissingProgramIsAnError(t *testing.T) {
	if _, err := Start(exec.Command("/no/such/program")); err == nil {
		t.Error("no error")
	}
}

func start(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(exec.Command("sh", "-c", script))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// eventually waits until holds does.
func eventually(t *testing.T, holds func() bool) error {
	t.Helper()
	return wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return holds(), nil })
}

// running says whether pid is a process that has not ended; nobody may have
// waited for one that has.
func running(pid int) bool {
	stat, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && !strings.HasPrefix(string(stat), "Z")
}
