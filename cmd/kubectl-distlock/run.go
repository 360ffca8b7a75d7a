package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

// closeTime is how long a release, and the removal of a claim, may take in the end.
const closeTime = 20 * time.Second

type runOptions struct {
	*plugin
	waitFlags
	modeFlags
	lease time.Duration
	grace time.Duration
}

func (p *plugin) runCommand() *cobra.Command {
	o := &runOptions{plugin: p}
	cmd := &cobra.Command{
		Use:   "run NAME -- COMMAND [ARG...]",
		Short: "Run a command while holding a lock",
		Long: fmt.Sprintf(`Run a command while holding a lock: wait for its turn, run it, release the lock, and end with the command's exit code, or
%d and the signal's number if a signal ended it. The command finds DISTLOCK_NAME and DISTLOCK_FENCING_TOKEN in its
environment.

The command runs in a process group of its own and gets the signals that run gets. What it leaves running in that group
is stopped before the lock is released. When the hold is lost or revoked, or cannot be renewed in time, the whole group
gets SIGTERM, and SIGKILL before the lease ends. A process that leaves the group (a daemon) is beyond its reach, and
nothing can stop the command while run itself is stopped (SIGSTOP, a frozen machine): that is what the token is for.

It does as the entry point of a container, also as process 1, where it reaps orphans.

Exit codes: those of the command; %d usage, %d no such lock, %d held (--no-wait), %d not granted in time (--wait), %d the
hold was lost or revoked and the command stopped, %d run failed before the command was started, %d the command cannot be
started, %d it was not found.`, exitSignal, exitUsage, exitNoLock, exitHeld, exitTimedOut, exitLost, exitRunFailed, exitCannotRun, exitNotFound),
		Example: examples(`
			# Wait for the turn, however long that takes
			kubectl distlock run ledger -- ./migrate.sh --all
			# Only if it is free; five minutes at most
			kubectl distlock run ledger --no-wait -- ./nightly.sh
			kubectl distlock run ledger --wait 5m -- ./nightly.sh
			# Two permits of a semaphore
			kubectl distlock run builders --permits 2 -- make release`),
		Args:              runArgs,
		ValidArgsFunction: p.completeLocks(1),
		RunE: p.verb(func(ctx context.Context, args []string) error {
			return o.run(ctx, args[0], args[1:])
		}),
	}
	o.waitFlags.add(cmd)
	o.modeFlags.add(cmd)
	cmd.Flags().DurationVar(&o.lease, "lease", 0, "Lease of the hold, 3s to 1h in whole seconds; by default the lock's spec.leaseDurationSeconds.")
	cmd.Flags().DurationVar(&o.grace, "grace", 30*time.Second, "Time between SIGTERM and SIGKILL; less where the lease ends sooner.")
	return cmd
}

func runArgs(cmd *cobra.Command, args []string) error {
	switch at := cmd.ArgsLenAtDash(); {
	case at < 0:
		return errors.New("COMMAND: missing; put it behind --")
	case at != 1:
		return fmt.Errorf("NAME: want one lock in front of --, not %d arguments", at)
	case len(args) < 2:
		return errors.New("COMMAND: missing behind --")
	}
	return nil
}

func (o *runOptions) run(ctx context.Context, name string, argv []string) error {
	path, err := lookUp(argv[0])
	if err != nil {
		return err
	}
	options, err := o.options()
	if err != nil {
		return err
	}
	signals := catchSignals()
	defer signals.stop()
	c, err := o.connect()
	if err != nil {
		return runFailed(err)
	}
	locks, err := lock.NewClient(c.config, lock.Namespace(c.namespace))
	if err != nil {
		return runFailed(err)
	}
	err = o.hold(ctx, c, locks, name, options, signals, command{path, argv})
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	if closed := locks.Close(closing); closed != nil {
		o.say("the claim of this run may be left, and the lock's lease runs out: %v", closed)
	}
	signals.raise()
	return err
}

func runFailed(err error) error { return exitError{exitRunFailed, err} }

// lookUp finds a command as a shell does.
func lookUp(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "", exitWith(exitCannotRun, "COMMAND: %w", err)
	case err != nil:
		return "", exitWith(exitNotFound, "COMMAND: %w", err)
	}
	return path, nil
}

// options are what the flags mean to the lock.
func (o *runOptions) options() (all []lock.Option, err error) {
	if o.lease != 0 {
		if o.lease < 3*time.Second || o.lease > time.Hour || o.lease%time.Second != 0 {
			return nil, usageError("--lease: %s: must be whole seconds, from 3s to 1h", o.lease)
		}
		all = append(all, lock.Lease(o.lease))
	}
	if o.grace < 0 {
		return nil, usageError("--grace: must not be negative")
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	switch {
	case o.permits < 0:
		return nil, usageError("--permits: must be at least 1")
	case o.exclusive:
		all = append(all, lock.Exclusive())
	case o.permits > 0:
		all = append(all, lock.Permits(int(o.permits)))
	case o.shared:
		all = append(all, lock.Shared())
	}
	return all, nil
}

// hold acquires the lock, runs the command under it and releases it.
func (o *runOptions) hold(ctx context.Context, c *cluster, locks *lock.Client, name string, options []lock.Option, signals *signals, cmd command) error {
	h, err := o.acquire(ctx, locks, name, options, signals)
	if err != nil {
		return o.whyNot(err, c, name)
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go watchHold(watching, c, h)
	environment := append(os.Environ(), v1alpha1.LockNameEnv+"="+name, v1alpha1.TokenEnv+"="+strconv.FormatInt(h.Token(), 10))
	result, lost := supervise(h, cmd, environment, o.IOStreams, signals, o.grace, o.say) //nolint:contextcheck // the hold's is what counts
	if err := h.Release(ctx); errors.Is(err, lock.ErrNotHeld) && lost == nil {
		lost = err
	} else if err != nil && lost == nil {
		o.say("%v: the hold ends with its lease", err)
	}
	if lost != nil {
		return exitError{exitLost, lost}
	}
	return result
}

// watchHold has the hold looked at as soon as the lock does not show it as it was:
// by itself it learns of a revocation with its next renewal only, which of a long
// lease is far off. Where the lock cannot be watched that must do.
func watchHold(ctx context.Context, c *cluster, h *lock.Hold) {
	_ = versions(ctx, c, &v1alpha1.DistLockList{}, func(s state) error {
		l, ok := s.object.(*v1alpha1.DistLock)
		if !ok || !s.gone && slices.ContainsFunc(l.Status.Holders, func(there v1alpha1.Hold) bool {
			return there.Owner == h.Owner() && there.FencingToken == h.Token() && there.RevokeTime == nil
		}) {
			return nil
		}
		if err := h.Check(ctx); err == nil {
			return nil // what was seen was older than the hold
		}
		return errDone
	}, client.InNamespace(c.namespace), client.MatchingFields{"metadata.name": h.Name()})
}

// acquire waits for the lock as the flags say. A signal ends it, with itself as
// the cause.
func (o *runOptions) acquire(ctx context.Context, locks *lock.Client, name string, options []lock.Option, signals *signals) (*lock.Hold, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var pump sync.WaitGroup
	acquired := make(chan struct{})
	pump.Go(func() { signals.cancelOne(cancel, acquired) })
	h, err := o.tryThenWait(ctx, locks, name, options)
	close(acquired)
	pump.Wait()
	if cause := context.Cause(ctx); cause != nil {
		if h != nil {
			_ = h.Release(ctx) // Close tries again, and says so
		}
		return nil, cause
	}
	return h, err
}

func (o *runOptions) tryThenWait(ctx context.Context, locks *lock.Client, name string, options []lock.Option) (*lock.Hold, error) {
	h, err := locks.TryAcquire(ctx, name, options...)
	if o.noWait || !errors.Is(err, lock.ErrHeld) {
		return h, err
	}
	o.say("waiting: %v", err)
	if o.limit > 0 {
		options = append(options, lock.Wait(o.limit))
	}
	return locks.Acquire(ctx, name, options...)
}

// whyNot is the error of run where it did not get the lock.
func (o *runOptions) whyNot(err error, c *cluster, name string) error {
	var i signalError
	switch {
	case errors.As(err, &i):
		return exitError{exitSignal + int(i.signal), i}
	case errors.Is(err, lock.ErrNoLock):
		return c.noLock(name)
	case errors.Is(err, lock.ErrHeld) && o.noWait:
		return exitError{exitHeld, err}
	case errors.Is(err, lock.ErrHeld):
		return exitWith(exitTimedOut, "not granted within %s: %w", o.limit, err)
	}
	return runFailed(err)
}

// command is what run runs: the file, and its arguments with its own name in front.
type command struct {
	path string
	argv []string
}

// ended is how a command that ended by itself, or by a signal, ends run.
func ended(code int, by syscall.Signal) error {
	switch {
	case by != 0:
		return exitError{code: exitSignal + int(by)}
	case code != 0:
		return exitError{code: code}
	}
	return nil
}
