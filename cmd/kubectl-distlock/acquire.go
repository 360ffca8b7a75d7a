package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// answerTime is how long --no-wait waits for the controller to say whether the
// lock is free.
const answerTime = 15 * time.Second

// Causes of the end of a wait.
var (
	errTimedOut = errors.New("the time to wait is over")
	errNoAnswer = errors.New("no answer")
)

// waitFlags say how long to wait for a lock.
type waitFlags struct {
	limit  time.Duration // zero: for ever
	noWait bool
}

func (f *waitFlags) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.limit, "wait", 0, fmt.Sprintf("Wait so long at most, such as 5m, and end with code %d then; 0 waits for ever.", exitTimedOut))
	cmd.Flags().BoolVar(&f.noWait, "no-wait", false, fmt.Sprintf("Do not wait: end with code %d if the lock is not free.", exitHeld))
	cmd.MarkFlagsMutuallyExclusive("wait", "no-wait")
}

func (f *waitFlags) check() error {
	if f.limit < 0 {
		return usageError("--wait: must not be negative")
	}
	return nil
}

// modeFlags say in which mode to hold a lock.
type modeFlags struct {
	shared, exclusive bool
	permits           int32
}

func (f *modeFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.shared, "shared", false, "Share the lock with other Shared holders. The default on a lock with a capacity.")
	cmd.Flags().BoolVar(&f.exclusive, "exclusive", false, "Hold the lock alone. The default on a lock without a capacity.")
	cmd.Flags().Int32Var(&f.permits, "permits", 0, "Take so many permits of the lock's capacity; implies --shared.")
	cmd.MarkFlagsMutuallyExclusive("shared", "exclusive")
	cmd.MarkFlagsMutuallyExclusive("permits", "exclusive")
}

// mode is nil where the lock decides.
func (f *modeFlags) mode() *v1alpha1.Mode {
	switch {
	case f.exclusive:
		return ptr.To(v1alpha1.Exclusive)
	case f.shared, f.permits > 0:
		return ptr.To(v1alpha1.Shared)
	}
	return nil
}

// fits refuses what the lock can never grant.
func (f *modeFlags) fits(l *v1alpha1.DistLock) error {
	if f.permits < 0 {
		return usageError("--permits: must be at least 1")
	}
	if l.Spec.Capacity != nil && f.permits > *l.Spec.Capacity {
		return usageError("--permits: DistLock %q has a capacity of %d: ask for fewer, or raise spec.capacity", l.Name, *l.Spec.Capacity)
	}
	return nil
}

type acquireOptions struct {
	*plugin
	waitFlags
	modeFlags
	claim  string
	format string
}

func (p *plugin) acquireCommand() *cobra.Command {
	o := &acquireOptions{plugin: p}
	cmd := &cobra.Command{
		Use:   "acquire NAME",
		Short: "Take a lock for a script, by a LockClaim, and print its token",
		Long: fmt.Sprintf(`Take a lock for a script: create a LockClaim, wait until it is granted, and print it for the shell's eval, which then has
DISTLOCK_CLAIM (for release), DISTLOCK_NAME and DISTLOCK_FENCING_TOKEN.

The lock is held until the claim is released, however long that is and whatever becomes of the script: so release it in
a trap, and where you can use run instead, which ends with its command. If acquire is interrupted, or does not get the
lock in time, its claim is removed. On a failure eval gets a command that fails with the same code.

Exit codes: %d no such lock, %d held (--no-wait), %d not granted in time (--wait), %d the claim was revoked or deleted while
it waited, %d and the signal's number when interrupted.`, exitNoLock, exitHeld, exitTimedOut, exitLost, exitSignal),
		Example: examples(`
			# In a script: take the lock, and give it back however the script ends
			lock=$(kubectl distlock acquire ledger) || exit
			eval "$lock"
			trap 'kubectl distlock release "$DISTLOCK_CLAIM"' EXIT
			# Ten minutes at most; two permits of a semaphore
			kubectl distlock acquire builders --wait 10m --permits 2
			# Only if it is free
			kubectl distlock acquire ledger --no-wait -o json`),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: p.completeLocks(1),
		RunE:              p.verb(func(ctx context.Context, args []string) error { return o.run(ctx, args[0]) }),
	}
	o.waitFlags.add(cmd)
	o.modeFlags.add(cmd)
	cmd.Flags().StringVar(&o.claim, "claim", "", "Name of the LockClaim; by default the lock's and something random.")
	cmd.Flags().StringVarP(&o.format, "output", "o", "sh", "Output: sh, for eval, or json, yaml or name.")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"sh", "json", "yaml", "name"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o *acquireOptions) run(ctx context.Context, name string) error {
	show, err := o.printer()
	if err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	err = withSignalCode(o.acquire(ctx, name, show))
	if err != nil && o.format == "sh" {
		_ = lines(o.Out, fmt.Sprintf("(exit %d)", exitCode(err))) // so that eval fails too
	}
	return err
}

// acquire leaves no claim behind unless it has printed it.
func (o *acquireOptions) acquire(ctx context.Context, name string, show func(*v1alpha1.LockClaim) error) error {
	ctx, stop := interruptible(ctx)
	defer stop()
	c, err := o.connect()
	if err != nil {
		return err
	}
	l, err := c.lock(ctx, name)
	if err != nil {
		return err
	}
	if err := o.fits(l); err != nil {
		return err
	}
	claim, err := c.createClaim(ctx, o.newClaim(c, name))
	if err != nil {
		return err
	}
	granted, err := o.await(ctx, c, claim)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = show(granted)
	}
	if err != nil {
		return errors.Join(err, c.deleteClaim(ctx, claim))
	}
	return nil
}

func (o *acquireOptions) newClaim(c *cluster, lock string) *v1alpha1.LockClaim {
	name := o.claim
	if name == "" {
		name = lock[:min(len(lock), 200)] + "-" + rand.String(8)
	}
	claim := &v1alpha1.LockClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: name},
		Spec:       v1alpha1.LockClaimSpec{LockName: lock, Mode: o.mode()},
	}
	if o.permits > 0 {
		claim.Spec.Permits = &o.permits
	}
	return claim
}

// await returns the claim when it is granted.
func (o *acquireOptions) await(ctx context.Context, c *cluster, claim *v1alpha1.LockClaim) (granted *v1alpha1.LockClaim, err error) {
	ctx, cancel := o.bound(ctx)
	defer cancel()
	last := "the controller has not answered yet"
	err = versions(ctx, c, &v1alpha1.LockClaimList{}, func(s state) error {
		now, ok := s.object.(*v1alpha1.LockClaim)
		if s.gone || s.listed && s.count == 0 {
			return exitWith(exitLost, "LockClaim %q was deleted by somebody else while it waited", claim.Name)
		}
		if !ok {
			return nil
		}
		granted = now
		if condition := grantedCondition(now); condition != nil {
			if condition.Message != last && condition.Reason == v1alpha1.ReasonWaiting && !o.noWait {
				o.say("%s", condition.Message)
			}
			last = condition.Message
		}
		return o.judge(now)
	}, client.InNamespace(claim.Namespace), client.MatchingFields{"metadata.name": claim.Name})
	switch {
	case errors.Is(err, errTimedOut):
		err = exitWith(exitTimedOut, "DistLock %q was not granted within %s: %s", claim.Spec.LockName, o.limit, last)
	case errors.Is(err, errNoAnswer):
		err = exitWith(exitFailed, "the controller of DistLock did not say within %s whether DistLock %q is free: see whether it runs", answerTime, claim.Spec.LockName)
	}
	return granted, err
}

// bound ends ctx when it was waited long enough.
func (o *acquireOptions) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	switch {
	case o.noWait:
		return context.WithTimeoutCause(ctx, answerTime, errNoAnswer)
	case o.limit > 0:
		return context.WithTimeoutCause(ctx, o.limit, errTimedOut)
	}
	return context.WithCancel(ctx)
}

// judge is errDone for a claim that is granted, nil for one that must wait on.
func (o *acquireOptions) judge(claim *v1alpha1.LockClaim) error {
	condition := grantedCondition(claim)
	if condition == nil {
		return nil
	}
	if condition.Status == metav1.ConditionTrue {
		return errDone
	}
	switch condition.Reason {
	case v1alpha1.ReasonWaiting:
		if o.noWait {
			return exitWith(exitHeld, "%s", condition.Message)
		}
		return nil
	case v1alpha1.ReasonLockNotFound:
		return exitWith(exitNoLock, "DistLock %q was deleted while LockClaim %q waited for it", claim.Spec.LockName, claim.Name)
	case v1alpha1.ReasonTooManyPermits:
		return usageError("--permits: %s: ask for fewer, or raise spec.capacity", condition.Message)
	}
	return exitWith(exitLost, "LockClaim %q: %s", claim.Name, condition.Message)
}

// printer prints a claim as -o says.
func (o *acquireOptions) printer() (func(*v1alpha1.LockClaim) error, error) {
	if o.format == "sh" {
		return func(claim *v1alpha1.LockClaim) error {
			return lines(o.Out,
				"export DISTLOCK_CLAIM="+handle(claim),
				"export "+v1alpha1.LockNameEnv+"="+claim.Spec.LockName,
				fmt.Sprintf("export %s=%d", v1alpha1.TokenEnv, claim.Status.FencingToken))
		}, nil
	}
	out := newOutput()
	*out.flags.OutputFormat = o.format
	p, err := out.printer()
	if err != nil {
		return nil, err
	}
	return func(claim *v1alpha1.LockClaim) error { return p.PrintObj(claim, o.Out) }, nil
}
