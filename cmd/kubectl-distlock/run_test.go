//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// running is a run that was started as a process.
type running struct {
	*exec.Cmd
	*lineReader
	errs *bytes.Buffer
	in   io.Closer // its standard input, from which nothing comes
}

func start(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	// A pipe of its own: Wait would close the one of the Cmd while it is still read.
	r, w, err := os.Pipe()
	must(t, err)
	cmd.Stdout = w
	in, err := cmd.StdinPipe()
	must(t, err)
	run := &running{Cmd: cmd, lineReader: newLineReader(r), errs: cmd.Stderr.(*bytes.Buffer), in: in}
	cmd.WaitDelay = patience
	must(t, cmd.Start())
	must(t, w.Close())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = r.Close()
		if t.Failed() {
			t.Logf("printed:\n%s\nerror:\n%s", strings.Join(run.seen, "\n"), run.errs)
		}
	})
	return run
}

// startRun starts kubectl distlock run of a shell script.
func startRun(t *testing.T, ns string, script string, flags ...string) *running {
	t.Helper()
	args := append([]string{"run", "ledger"}, flags...)
	return start(t, process(t, ns, append(args, "--", "sh", "-c", script)...))
}

// exits fails unless it ends with a code, and returns what it printed.
func (r *running) exits(t *testing.T, code int) string {
	t.Helper()
	err := r.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := r.ProcessState.ExitCode(); got != code {
		t.Fatalf("ended with %d (%v), want %d:\n%s", got, err, code, r.errs)
	}
	for line := range r.lines {
		r.seen = append(r.seen, line)
	}
	return strings.Join(r.seen, "\n")
}

// group is the process group of a script that prints `echo "group $$"`.
func (r *running) group(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimPrefix(r.until(t, "group "), "group "))
	must(t, err)
	return n
}

// printGroup is the beginning of a script whose group is asked for.
const printGroup = `echo "group $$"; `

// stubborn is a script whose processes, a grandchild among them, ignore SIGTERM.
const stubborn = `trap '' TERM; sh -c 'while :; do sleep 0.1; done' & ` + printGroup + `while :; do sleep 0.1; done`

func untilHeld(t *testing.T, ns string) *v1alpha1.DistLock {
	t.Helper()
	return untilLock(t, ns, "ledger", "held", func(l *v1alpha1.DistLock) bool { return len(l.Status.Holders) == 1 })
}

func unheld(l *v1alpha1.DistLock) bool { return len(l.Status.Holders) == 0 }

// wantNothingRuns fails if a process group is there, but for zombies.
func wantNothingRuns(t *testing.T, group int, when string) {
	t.Helper()
	if groupRuns(group) {
		t.Errorf("%s the process group of the command still runs", when)
	}
}

func ledger(t *testing.T) string {
	t.Helper()
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	return ns
}

// freeAgain fails unless nothing of a run is left.
func freeAgain(t *testing.T, ns string) {
	t.Helper()
	untilLock(t, ns, "ledger", "free", isFree)
	noClaims(t, ns)
}

func TestRunGivesTheCommandItsTokenAndEndsAsItDoes(t *testing.T) {
	ns := ledger(t)
	t.Setenv("DISTLOCK_FENCING_TOKEN", "stale")
	r := startRun(t, ns, `echo "$DISTLOCK_NAME $DISTLOCK_FENCING_TOKEN"; read go; exit 7`)
	h := untilHeld(t, ns).Status.Holders[0]
	must(t, r.in.Close())
	if out := r.exits(t, 7); out != "ledger "+tokenText(h) {
		t.Errorf("the command finds %q, want ledger %d", out, h.FencingToken)
	}
	freeAgain(t, ns)
}

func TestRunUsesItsStreams(t *testing.T) {
	ns := ledger(t)
	r := distlock(t, ns, "run", "ledger", "--", "sh", "-c", "echo out; echo err >&2; kill -TERM $$").ends(t, exitSignal+int(syscall.SIGTERM))
	if r.out != "out\n" || r.err != "err\n" {
		t.Errorf("prints %q and %q", r.out, r.err)
	}
	freeAgain(t, ns)
}

func TestRunHasAnExitCodeForEachReasonNotToRun(t *testing.T) {
	ns := ledger(t)
	script := t.TempDir() + "/script"
	must(t, os.WriteFile(script, []byte("#!/no/such/shell\n"), 0o755))
	for line, want := range map[string]int{
		"run none-such -- true":                   exitNoLock,
		"run ledger -- no-such-command-anywhere":  exitNotFound,
		"run ledger -- /etc/passwd":               exitCannotRun,
		"run ledger -- " + script:                 exitCannotRun,
		"run ledger":                              exitUsage,
		"run ledger true":                         exitUsage,
		"run ledger --":                           exitUsage,
		"run -- true":                             exitUsage,
		"run a b -- true":                         exitUsage,
		"run ledger --lease 1s -- true":           exitUsage,
		"run ledger --permits -1 -- true":         exitUsage,
		"run ledger --no-wait --wait 1s -- true":  exitUsage,
		"--server https://127.0.0.1:1 run a -- w": exitRunFailed,
	} {
		if r := distlock(t, ns, strings.Split(line, " ")...); r.code != want || !strings.HasPrefix(r.err, "error: ") {
			t.Errorf("%s: ended with %d, want %d: %s", line, r.code, want, r.err)
		}
	}
	claimOn(t, ns, "first", "ledger")
	untilClaim(t, ns, "first", v1alpha1.ReasonGranted)
	distlock(t, ns, "run", "ledger", "--no-wait", "--", "true").ends(t, exitHeld, "held by claim/")
	distlock(t, ns, "run", "ledger", "--wait", "1s", "--", "true").ends(t, exitTimedOut, "within 1s", "held by claim/")
	must(t, admin.Delete(t.Context(), &v1alpha1.LockClaim{ObjectMeta: metaName(ns, "first")}))
	freeAgain(t, ns)
}

func TestRunsTakeTurns(t *testing.T) {
	ns := ledger(t)
	first := startRun(t, ns, `echo runs; while :; do sleep 0.1; done`)
	first.until(t, "runs")
	second := startRun(t, ns, `echo runs`)
	untilLock(t, ns, "ledger", "waited for", waiting(1))
	select {
	case line := <-second.lines:
		t.Fatalf("beside the first the second printed %q", line)
	default:
	}
	must(t, first.Process.Signal(syscall.SIGTERM))
	first.exits(t, exitSignal+int(syscall.SIGTERM))
	second.exits(t, 0)
	freeAgain(t, ns)
}

func TestAWaitingRunThatIsInterruptedLeavesNothing(t *testing.T) {
	ns := ledger(t)
	first := claimOn(t, ns, "first", "ledger")
	untilClaim(t, ns, "first", v1alpha1.ReasonGranted)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		r := startRun(t, ns, "echo runs")
		untilLock(t, ns, "ledger", "waited for", waiting(1))
		must(t, r.Process.Signal(syscall.SIGUSR1)) // means nothing yet
		must(t, r.Process.Signal(sig))
		if out := r.exits(t, exitSignal+int(sig)); out != "" {
			t.Errorf("after %s it printed %q", sig, out)
		}
		untilLock(t, ns, "ledger", "no more waited for", waiting(0))
	}
	must(t, admin.Delete(t.Context(), first))
	freeAgain(t, ns)
}

func TestSignalsReachTheCommandOnce(t *testing.T) {
	ns := ledger(t)
	names := map[string]syscall.Signal{
		"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT,
		"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "WINCH": syscall.SIGWINCH,
	}
	var script strings.Builder
	for name := range names {
		fmt.Fprintf(&script, "trap 'echo got %s' %s\n", name, name)
	}
	script.WriteString("trap 'exit 9' ALRM\n" + printGroup + "while :; do sleep 0.1; done")
	r := startRun(t, ns, script.String())
	group := r.group(t)
	for name, sig := range names {
		must(t, r.Process.Signal(sig))
		r.until(t, "got "+name)
	}
	must(t, syscall.Kill(group, syscall.SIGALRM))
	out := r.exits(t, 9)
	for name := range names {
		if n := strings.Count(out, "got "+name); n != 1 {
			t.Errorf("%s reached it %d times", name, n)
		}
	}
	freeAgain(t, ns)
}

func TestWhatWasIgnoredStaysIgnored(t *testing.T) {
	ns := ledger(t)
	cmd := process(t, ns, "run", "ledger", "--", "sh", "-c", printGroup+`read go; echo still here; exit 3`)
	cmd.Args = append([]string{"sh", "-c", `trap '' HUP; exec "$@"`, "sh"}, append([]string{cmd.Path}, cmd.Args[1:]...)...)
	cmd.Path = "/bin/sh"
	r := start(t, cmd)
	r.group(t)
	must(t, r.Process.Signal(syscall.SIGHUP))
	must(t, r.in.Close())
	if out := r.exits(t, 3); !strings.Contains(out, "still here") {
		t.Errorf("printed %q", out)
	}
}

// Revoked, a command has the time that its lease has left.
func TestARevokedCommandMayEndByItself(t *testing.T) {
	ns := ledger(t)
	r := startRun(t, ns, `trap 'echo asked; sleep 1; echo ready; exit 0' TERM; `+printGroup+`while :; do sleep 0.1; done`)
	group := r.group(t)
	distlock(t, ns, "revoke", "ledger").ends(t, 0, "lease is over")
	untilLock(t, ns, "ledger", "no more held", unheld)
	wantNothingRuns(t, group, "after the hold")
	if out := r.exits(t, exitLost); !strings.HasSuffix(out, "asked\nready") {
		t.Errorf("printed %q", out)
	}
	if !strings.Contains(r.errs.String(), "revoked") {
		t.Errorf("says %q", r.errs)
	}
	freeAgain(t, ns)
}

// The hold is there until nothing of the group runs any more, and that is before
// the lease ends by itself.
func TestARevokedCommandThatIgnoresSIGTERMIsKilledBeforeItsLeaseEnds(t *testing.T) {
	ns := ledger(t)
	r := startRun(t, ns, stubborn, "--lease", "4s")
	group := r.group(t)
	distlock(t, ns, "revoke", "ledger").ok(t)
	l := untilLock(t, ns, "ledger", "no more held", unheld)
	wantNothingRuns(t, group, "after the hold")
	r.exits(t, exitLost)
	if l.Status.ClosedSeconds != 0 {
		t.Error("the lease had to expire")
	}
	freeAgain(t, ns)
}

func TestGraceBoundsHowLongARevokedCommandMayTake(t *testing.T) {
	ns := ledger(t)
	r := startRun(t, ns, stubborn, "--lease", "1h", "--grace", "1s")
	group := r.group(t)
	distlock(t, ns, "revoke", "ledger").ok(t)
	r.exits(t, exitLost)
	wantNothingRuns(t, group, "after run")
	freeAgain(t, ns)
}

// Somebody takes the hold away; another one may have it at once.
func TestACommandWhoseHoldIsTakenAwayIsStopped(t *testing.T) {
	ns := ledger(t)
	r := startRun(t, ns, stubborn, "--lease", "3s")
	group := r.group(t)
	for {
		l := untilHeld(t, ns)
		l.Status.Holders = nil
		if err := admin.Status().Update(t.Context(), l); err == nil {
			break
		}
	}
	r.exits(t, exitLost)
	wantNothingRuns(t, group, "after run")
	freeAgain(t, ns)
}

// No packet of run reaches the API server any more. When the controller says that
// the lease is over, nothing of the command runs.
func TestACommandIsStoppedBeforeALeaseThatCannotBeRenewedEnds(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger", func(l *v1alpha1.DistLock) { l.Spec.LockDelaySeconds = 3600 })
	p := newProxy(t, testEnv.Config().Host)
	r := startRun(t, ns, stubborn, "--lease", "5s", "--server", p.url)
	group := r.group(t)
	p.cut()
	l := untilLock(t, ns, "ledger", "no more held", unheld)
	wantNothingRuns(t, group, "after its lease")
	if l.Status.ClosedSeconds != 3600 {
		t.Errorf("the hold did not expire: closed for %d s", l.Status.ClosedSeconds)
	}
	r.exits(t, exitLost)
	if !strings.Contains(r.errs.String(), errNotRenewed.Error()) {
		t.Errorf("says %q", r.errs)
	}
	noClaims(t, ns)
}

// Fault 13, for run: the command runs on while run stands still, which nothing can
// help, and is stopped at the first step of run afterwards.
func TestACommandIsStoppedWhenRunStoodStillPastItsLease(t *testing.T) {
	ns := ledger(t)
	r := startRun(t, ns, stubborn, "--lease", "3s")
	group := r.group(t)
	must(t, r.Process.Signal(syscall.SIGSTOP))
	untilLock(t, ns, "ledger", "no more held", unheld)
	must(t, r.Process.Signal(syscall.SIGCONT))
	r.exits(t, exitLost)
	wantNothingRuns(t, group, "after run")
	freeAgain(t, ns)
}

func TestWhatACommandLeavesRunningIsStoppedBeforeTheRelease(t *testing.T) {
	ns := ledger(t)
	r := startRun(t, ns, `trap '' TERM; sh -c 'while :; do sleep 0.1; done' & `+printGroup+`exit 5`, "--grace", "1s")
	group := r.group(t)
	untilLock(t, ns, "ledger", "granted and no more held", func(l *v1alpha1.DistLock) bool { return l.Status.FencingToken > 0 && unheld(l) })
	wantNothingRuns(t, group, "after the hold")
	r.exits(t, 5)
	freeAgain(t, ns)
}

// A claim of one that is killed stays until its lease is over: of that the
// controller takes care.
func TestTheCommandDoesNotOutliveARunThatIsKilled(t *testing.T) {
	if unix.Prctl(unix.PR_GET_PDEATHSIG, 0, 0, 0, 0) == unix.ENOSYS {
		t.Skip("this kernel does not end children with their parent")
	}
	ns := ledger(t)
	r := startRun(t, ns, printGroup+`exec sleep 3600`, "--lease", "3s")
	group := r.group(t)
	must(t, r.Process.Kill())
	untilLock(t, ns, "ledger", "no more held", unheld)
	wantNothingRuns(t, group, "after run was killed")
	_ = r.Wait()
	freeAgain(t, ns)
}

func TestSharedRunsRunTogether(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger", withCapacity(3))
	one := startRun(t, ns, printGroup+"read go", "--permits", "2")
	one.group(t)
	distlock(t, ns, "run", "ledger", "--no-wait", "--permits", "2", "--", "true").ends(t, exitHeld)
	distlock(t, ns, "run", "ledger", "--no-wait", "--exclusive", "--", "true").ends(t, exitHeld)
	distlock(t, ns, "run", "ledger", "--no-wait", "--shared", "--", "true").ok(t)
	must(t, one.in.Close())
	one.exits(t, 1)
	freeAgain(t, ns)
}
