//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/distlock-dev/distlock/lock"
)

// How much of the longest time that the hold had left, while it was renewed, is
// kept for stopping the command: a fifth when it is asked to (SIGTERM), a
// twentieth when it is made to (SIGKILL). What the hold has left ends a margin
// before the lease.
const (
	askReserve  = 5
	killReserve = 20
)

// How long until the clocks, and the process group of a command that has ended,
// are looked at again.
const (
	lookAgain = time.Second
	lookSoon  = 20 * time.Millisecond
)

var (
	errNotRenewed = errors.New("the lease could not be renewed in time")
	errLeftOver   = errors.New("the command has ended and left others running")
)

// held is what of a lock.Hold the supervisor needs.
type held interface {
	Context() context.Context
	ValidUntil() time.Time
}

// supervisor runs a command under a hold: from its start until nothing of its
// process group runs any more.
type supervisor struct {
	*child
	hold    held
	signals *signals
	grace   time.Duration
	say     func(string, ...any)

	longest  time.Duration       // that the hold had left
	why      error               // why the group is being stopped; nil: it is not
	killAt   time.Time           // when it is made to, at the latest
	killed   bool                // it was
	status   *syscall.WaitStatus // of the command, once it has ended
	resumeAt time.Time           // when a stopped command goes on, if run was not stopped with it
}

// supervise starts a command and returns when it and all of its process group have
// ended: how the command ended, and why the hold was lost, if it was.
func supervise(h held, cmd command, env []string, streams genericiooptions.IOStreams, signals *signals,
	grace time.Duration, say func(string, ...any)) (result, lost error) {
	s := &supervisor{hold: h, signals: signals, grace: grace, say: say}
	if err := h.Context().Err(); err != nil || time.Until(h.ValidUntil()) <= 0 {
		return nil, fmt.Errorf("the command was not started: %w", lossOf(h))
	}
	var err error
	if s.child, err = startChild(cmd, env, streams, signals.terminal); err != nil {
		return exitWith(exitCannotRun, "COMMAND: %w", err), nil
	}
	s.longest = s.left()
	s.run()
	hadTerminal := signals.terminal.take(s.pid)
	s.finish()
	if s.why == nil && time.Until(h.ValidUntil()) <= 0 || errors.Is(s.why, errLeftOver) && h.Context().Err() != nil {
		s.why = lossOf(h)
	}
	if s.why != nil && !errors.Is(s.why, errLeftOver) {
		return nil, fmt.Errorf("the command was stopped: %w", s.why)
	}
	if s.status.Signaled() {
		signals.ctrlC = hadTerminal && s.status.Signal() == syscall.SIGINT
		return ended(0, s.status.Signal()), nil
	}
	return ended(s.status.ExitStatus(), 0), nil
}

func lossOf(h held) error {
	if cause := context.Cause(h.Context()); cause != nil {
		return cause
	}
	return lock.ErrLost
}

func (s *supervisor) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	over := s.hold.Context().Done()
	for {
		select {
		case sig := <-s.signals.caught:
			s.pass(sig.(syscall.Signal))
		case e := <-s.events:
			s.note(e)
		case <-over:
			over = nil
			s.stop(lossOf(s.hold))
		case <-timer.C:
		}
		s.act()
		if s.status != nil && !groupRuns(s.pid) {
			return
		}
		timer.Reset(s.next())
	}
}

// left is how long the command may go on if no renewal succeeds, by the clock that
// says less.
func (s *supervisor) left() time.Duration { return time.Until(s.hold.ValidUntil()) }

// pass passes a signal on: those that end a program to the whole group, as a
// terminal does, the others to the command alone, which knows what they mean.
func (s *supervisor) pass(sig syscall.Signal) {
	switch sig {
	case syscall.SIGCONT:
		s.resume()
	case syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH:
		if s.status == nil {
			_ = syscall.Kill(s.pid, sig)
		}
	default:
		s.signalGroup(sig)
	}
}

// note takes in what became of the command. Where it was stopped from the terminal
// run is stopped with it, so that the shell gets the terminal back.
func (s *supervisor) note(e childEvent) {
	if e.ended != nil {
		s.status = e.ended
		return
	}
	if s.signals.terminal.suspend(s.pid, e.stopped) {
		s.resumeAt = time.Now().Add(lookSoon * 5) // it was not, if this machine gets there
	}
}

// resume goes on with a command that was stopped, unless the hold ended meanwhile.
func (s *supervisor) resume() {
	s.resumeAt = time.Time{}
	if s.left() <= s.longest/killReserve {
		return // act kills it as it is
	}
	s.signals.terminal.give(s.pid)
	s.signalGroup(syscall.SIGCONT)
}

// stop asks the group to end. A reason that gives it less time comes over one that
// gives it more.
func (s *supervisor) stop(why error) {
	grace := s.grace
	switch {
	case s.why != nil && !errors.Is(s.why, errLeftOver):
		return
	case errors.Is(why, lock.ErrLost):
		grace = min(grace, s.longest/killReserve) // another one may hold the lock by now
	}
	s.why = why
	s.say("%v: stopping the process group of the command", why)
	if at := time.Now().Add(grace); s.killAt.IsZero() || at.Before(s.killAt) {
		s.killAt = at
	}
	s.signalGroup(syscall.SIGTERM)
	if s.left() > s.longest/killReserve {
		s.signalGroup(syscall.SIGCONT) // a stopped process sees no SIGTERM
	}
}

// act does what is due.
func (s *supervisor) act() {
	left := s.left()
	s.longest = max(s.longest, left)
	switch {
	case s.why == nil && left <= s.longest/askReserve:
		s.stop(errNotRenewed)
	case s.why == nil && s.status != nil && groupRuns(s.pid):
		s.stop(errLeftOver)
	}
	if s.why != nil && !s.killed && (left <= s.longest/killReserve || !time.Now().Before(s.killAt)) {
		s.killed = true
		s.signalGroup(syscall.SIGKILL)
	}
	if !s.resumeAt.IsZero() && !time.Now().Before(s.resumeAt) {
		s.resume()
	}
}

// next is how long until something may be due.
func (s *supervisor) next() time.Duration {
	next := lookAgain
	if s.status != nil || s.killed || !s.resumeAt.IsZero() {
		next = lookSoon
	}
	if s.why != nil && !s.killed {
		next = min(next, time.Until(s.killAt), s.left()-s.longest/killReserve)
	} else if s.why == nil {
		next = min(next, s.left()-s.longest/askReserve)
	}
	return max(next, time.Millisecond)
}

func (s *supervisor) signalGroup(sig syscall.Signal) { _ = syscall.Kill(-s.pid, sig) }
