//go:build linux

package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// onTerminal starts a shell script as the session leader of a terminal of its own,
// and returns what to type there, and what it prints.
func onTerminal(t *testing.T, cmd *exec.Cmd) (keyboard *os.File, screen *lineReader) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal to be had: %v", err)
	}
	must(t, unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	must(t, err)
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(t, cmd.Start())
	must(t, tty.Close())
	screen = newLineReader(keyboard)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = keyboard.Close()
		if t.Failed() {
			t.Logf("the screen:\n%s", strings.Join(screen.seen, "\n"))
		}
	})
	return keyboard, screen
}

// scripted is a shell script in which $plugin runs kubectl distlock.
func scripted(t *testing.T, ns, script string, flags ...string) *exec.Cmd {
	t.Helper()
	p := process(t, ns)
	script = `plugin="` + strings.Join(p.Args, " ") + `"
` + script
	cmd := exec.CommandContext(t.Context(), "sh", append(flags, "-c", script)...)
	cmd.Env = p.Env
	return cmd
}

func typed(t *testing.T, keyboard *os.File, s string) {
	t.Helper()
	_, err := keyboard.WriteString(s)
	must(t, err)
}

func TestTheCommandReadsFromTheTerminal(t *testing.T) {
	ns := ledger(t)
	keyboard, screen := onTerminal(t, scripted(t, ns, `$plugin run ledger -- sh -c 'echo ready; read x; echo "read <$x>"'; echo "code $?"`))
	screen.until(t, "ready")
	typed(t, keyboard, "hello\n")
	screen.until(t, "read <hello>")
	screen.until(t, "code 0")
	freeAgain(t, ns)
}

func TestCtrlCReachesTheCommandOnce(t *testing.T) {
	ns := ledger(t)
	keyboard, screen := onTerminal(t, scripted(t, ns,
		`$plugin run ledger -- sh -c 'trap "echo got INT" INT; trap "exit 8" QUIT; echo ready; while :; do sleep 0.1; done'; echo "code $?"`))
	screen.until(t, "ready")
	typed(t, keyboard, "\x03")
	screen.until(t, "got INT")
	typed(t, keyboard, "\x1c")
	screen.until(t, "code 8")
	if n := strings.Count(strings.Join(screen.seen, "\n"), "got INT"); n != 1 {
		t.Errorf("Ctrl-C reached it %d times", n)
	}
	freeAgain(t, ns)
}

// As without run: the script that the command is in ends, too.
func TestCtrlCEndsTheScriptThatTheCommandIsIn(t *testing.T) {
	ns := ledger(t)
	cmd := scripted(t, ns, `$plugin run ledger -- sh -c 'echo ready; exec sleep 3600'; echo "went on"`)
	keyboard, screen := onTerminal(t, cmd)
	screen.until(t, "ready")
	typed(t, keyboard, "\x03")
	freeAgain(t, ns)
	_ = cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGINT {
		t.Errorf("the script ended with %v", cmd.ProcessState)
	}
	if strings.Contains(strings.Join(screen.seen, "\n"), "went on") {
		t.Error("the script went on")
	}
}

// A shell with job control: Ctrl-Z gives it the terminal back, and fg goes on.
func TestCtrlZStopsRunAndFgGoesOn(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	keyboard, screen := onTerminal(t, scripted(t, ns,
		`$plugin run ledger --lease 10m -- sh -c 'echo ready; read x; echo "read <$x>"; exit 5'; echo "stopped $?"; fg; echo "code $?"`, "-m"))
	screen.until(t, "ready")
	typed(t, keyboard, "\x1a")
	screen.until(t, "stopped 148")
	typed(t, keyboard, "hello\n")
	screen.until(t, "read <hello>")
	screen.until(t, "code 5")
	freeAgain(t, ns)
}

// While run is stopped nobody renews. It must not go on after the lease.
func TestACommandThatWasStoppedPastItsLeaseDoesNotGoOn(t *testing.T) {
	ns := ledger(t)
	keyboard, screen := onTerminal(t, scripted(t, ns,
		`$plugin run ledger --lease 3s -- sh -c 'echo ready; exec sleep 3600'; echo "stopped $?"; read x; fg; echo "code $?"`, "-m"))
	screen.until(t, "ready")
	typed(t, keyboard, "\x1a")
	screen.until(t, "stopped 148")
	untilLock(t, ns, "ledger", "no more held", unheld)
	typed(t, keyboard, "\n")
	screen.until(t, "code "+strconv.Itoa(exitLost))
	freeAgain(t, ns)
}

// Where no shell could continue it, as in a container, Ctrl-Z does nothing.
func TestCtrlZDoesNotHangWhereNobodyCouldGoOn(t *testing.T) {
	ns := ledger(t)
	cmd := process(t, ns, "run", "ledger", "--", "sh", "-c", `trap "echo went on" CONT; echo ready; until read x; do :; done; echo "read <$x>"`)
	keyboard, screen := onTerminal(t, cmd)
	screen.until(t, "ready")
	typed(t, keyboard, "\x1a")
	screen.until(t, "went on")
	typed(t, keyboard, "hello\n")
	screen.until(t, "read <hello>")
	freeAgain(t, ns)
}
