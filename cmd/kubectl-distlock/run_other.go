//go:build !unix

package main

import (
	"context"
	"errors"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/distlock-dev/distlock/lock"
)

type signals struct{}

func catchSignals() *signals { return &signals{} }

func (*signals) stop() {}

func (*signals) raise() {}

func (*signals) cancelOne(_ context.CancelCauseFunc, done <-chan struct{}) { <-done }

// supervise needs process groups and signals.
func supervise(*lock.Hold, command, []string, genericiooptions.IOStreams, *signals, time.Duration, func(string, ...any)) (result, lost error) {
	return runFailed(errors.New("run works on Linux and macOS only: use acquire and release")), nil
}

func runAsInit() int { return exitRunFailed }
