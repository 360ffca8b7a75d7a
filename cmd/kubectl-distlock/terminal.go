//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the terminal on run's standard input. When run is in its foreground
// the command's process group is put there instead: so it may read, and Ctrl-C,
// Ctrl-\ and Ctrl-Z reach it from the terminal, once, and not run. All methods do
// nothing on a nil terminal.
type terminal struct {
	fd  int
	own int // process group of run
}

// openTerminal is nil where the standard input is no terminal of this session.
func openTerminal() *terminal {
	t := &terminal{fd: int(os.Stdin.Fd()), own: unix.Getpgrp()}
	if _, err := t.foreground(); err != nil {
		return nil
	}
	return t
}

func (t *terminal) foreground() (int, error) { return unix.IoctlGetInt(t.fd, unix.TIOCGPGRP) }

// inForeground has a process start in the foreground, if run is there.
func (t *terminal) inForeground(attr *syscall.SysProcAttr) {
	if t == nil {
		return
	}
	if now, err := t.foreground(); err == nil && now == t.own {
		attr.Foreground, attr.Ctty = true, t.fd
	}
}

// give puts a group into the foreground, if run is there.
func (t *terminal) give(group int) {
	if t != nil {
		t.hand(t.own, group)
	}
}

// take puts run back into the foreground, if a group is there. It reports whether
// it was.
func (t *terminal) take(group int) bool { return t != nil && t.hand(group, t.own) }

func (t *terminal) hand(from, to int) bool {
	if now, err := t.foreground(); err != nil || now != from {
		return false
	}
	signal.Ignore(syscall.SIGTTOU) // which is what one in the background gets for it
	defer signal.Reset(syscall.SIGTTOU)
	return unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, to) == nil
}

// suspend stops run, and what else is in its process group, after the command was
// stopped from the terminal, as the terminal would have done if all were one group.
// It reports whether that was so. Where nobody could continue run the kernel does
// not stop it.
func (t *terminal) suspend(group int, by syscall.Signal) bool {
	if t == nil || by != syscall.SIGTSTP && by != syscall.SIGTTIN && by != syscall.SIGTTOU {
		return false
	}
	t.take(group)
	_ = syscall.Kill(0, syscall.SIGTSTP)
	return true
}
