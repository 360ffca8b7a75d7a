//go:build unix

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// signals are those that run gets and passes on, and the terminal they may come
// from.
type signals struct {
	caught   chan os.Signal
	terminal *terminal
	ctrlC    bool // the command died of SIGINT while it had the terminal
}

// catchSignals catches them from now on, but for those that run was started with
// ignored (nohup): so they are by the command.
func catchSignals() *signals {
	s := &signals{caught: make(chan os.Signal, 64), terminal: openTerminal()}
	for _, sig := range []os.Signal{
		syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT,
	} {
		if !signal.Ignored(sig) {
			signal.Notify(s.caught, sig)
		}
	}
	return s
}

func (s *signals) stop() { signal.Stop(s.caught) }

// cancelOne cancels with the first signal that ends a program, until done is
// closed.
func (s *signals) cancelOne(cancel context.CancelCauseFunc, done <-chan struct{}) {
	for {
		select {
		case sig := <-s.caught:
			switch sig {
			case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT:
				cancel(signalError{sig.(syscall.Signal)})
				return
			}
		case <-done:
			return
		}
	}
}

// raise ends run, and the script it is in, by SIGINT, if Ctrl-C ended the command:
// the terminal sent it to the command alone.
func (s *signals) raise() {
	if s.ctrlC {
		signal.Reset(syscall.SIGINT)
		_ = syscall.Kill(0, syscall.SIGINT)
	}
}
