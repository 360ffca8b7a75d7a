package main

import (
	"errors"
	"fmt"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
)

// Exit codes, beside 0 and those of the command that run runs. A script may rely
// on them: docs/kubectl.md lists them.
const (
	exitFailed   = 1   // anything that has no code of its own
	exitUsage    = 64  // EX_USAGE of sysexits.h
	exitNoLock   = 66  // there is no such DistLock
	exitHeld     = 75  // EX_TEMPFAIL: others hold it or wait for it, and --no-wait was given
	exitLost     = 79  // the hold was lost or revoked
	exitTimedOut = 124 // --wait is over, as with timeout(1)

	// For run alone, as with timeout(1) and env(1).
	exitRunFailed = 125 // run itself failed, and the command did not run
	exitCannotRun = 126 // the command was found and cannot be started
	exitNotFound  = 127 // the command was not found
	exitSignal    = 128 // and the number of the signal
)

// exitError is an error with an exit code of its own. Without an err nothing is
// printed.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e exitError) Unwrap() error { return e.err }

// exitWith is an error that ends the program with a code.
func exitWith(code int, format string, args ...any) error {
	return exitError{code, fmt.Errorf(format, args...)}
}

func usageError(format string, args ...any) error { return exitWith(exitUsage, format, args...) }

// exitCode is what the program ends with for an error.
func exitCode(err error) int {
	if e, ok := errors.AsType[exitError](err); ok {
		return e.code
	}
	return exitFailed
}

// signalError is the cause of a context that a signal ended.
type signalError struct{ signal syscall.Signal }

func (i signalError) Error() string { return "interrupted by " + i.signal.String() }

// withSignalCode gives an error the exit code of a signal where that is its cause.
func withSignalCode(err error) error {
	if i, ok := errors.AsType[signalError](err); ok {
		return exitError{exitSignal + int(i.signal), err}
	}
	return err
}

// explain says what to do about an error of the API server that does not say so.
func explain(err error) error {
	switch {
	case meta.IsNoMatchError(err):
		return fmt.Errorf("DistLock is not installed in this cluster, or not in this version: %w", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w (docs/rbac.md says who may do what)", err)
	}
	return err
}
