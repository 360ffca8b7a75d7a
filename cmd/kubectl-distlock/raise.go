package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// defaultMargin is more writes than a cluster makes between two backups.
const defaultMargin = 1_000_000_000

type raiseOptions struct {
	*plugin
	to            int64
	margin        int64
	all           bool
	allNamespaces bool
}

func (p *plugin) raiseCommand() *cobra.Command {
	o := &raiseOptions{plugin: p}
	cmd := &cobra.Command{
		Use:   "raise NAME... | --all",
		Short: "Raise the fencing token of locks, after a restore or a move to another cluster",
		Long: fmt.Sprintf(`Raise the fencing token of locks, so that every token granted from now on is greater than any that was granted before a
restore from a backup or a move to another cluster. Do it before the controller and whatever else takes locks start again:
docs/operations.md has the whole procedure.

The token becomes the greatest of three, and --margin more: --to, the greatest token that may have been seen; without --to
the lock's own; and the cluster's resourceVersion, up to which tokens are granted anyway. It is never lowered: where the
lock's token is as high already, nothing is done, and the exit code is 1. Those that hold a lock keep their tokens.

The margin stands for the tokens that were granted after the backup was made, of which nobody knows. One thousand million
is more than a cluster makes writes between two backups, and can be added millions of times: tokens end at %d.

Exit codes: %d no such lock.`, int64(v1alpha1.MaxToken), exitNoLock),
		Example: examples(`
			# After a restore, all locks of the cluster
			kubectl distlock raise --all -A
			# A lock that was made after the backup, and is made again
			kubectl distlock raise ledger --to 1000012345`),
		ValidArgsFunction: p.completeLocks(-1),
		RunE:              p.verb(o.run),
	}
	cmd.Flags().Int64Var(&o.to, "to", 0, "The greatest token that may have been seen; by default the lock's own.")
	cmd.Flags().Int64Var(&o.margin, "margin", defaultMargin, "How much to go above it.")
	cmd.Flags().BoolVar(&o.all, "all", false, "Raise all locks of the namespace.")
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "With --all: of all namespaces.")
	return cmd
}

func (o *raiseOptions) run(ctx context.Context, names []string) error {
	if err := o.check(names); err != nil {
		return err
	}
	c, err := o.connect()
	if err != nil {
		return err
	}
	locks := &v1alpha1.DistLockList{}
	for _, name := range names {
		l, err := c.lock(ctx, name)
		if err != nil {
			return err
		}
		locks.Items = append(locks.Items, *l)
	}
	if o.all {
		if err := c.List(ctx, locks, c.in(o.allNamespaces)); err != nil {
			return err
		}
	}
	for i := range locks.Items {
		if err := o.raise(ctx, c, &locks.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

func (o *raiseOptions) check(names []string) error {
	switch {
	case o.all == (len(names) > 0):
		return usageError("NAME: name the locks to raise, or give --all")
	case o.allNamespaces && !o.all:
		return usageError("--all-namespaces: goes with --all; of single locks name the namespace with -n")
	case o.to < 0 || o.to > v1alpha1.MaxToken:
		return usageError("--to: must be from 1 to %d", int64(v1alpha1.MaxToken))
	case o.margin < 1 || o.margin > v1alpha1.MaxToken:
		return usageError("--margin: must be from 1 to %d", int64(v1alpha1.MaxToken))
	}
	return nil
}

func (o *raiseOptions) raise(ctx context.Context, c *cluster, l *v1alpha1.DistLock) error {
	in := &cluster{WithWatch: c, namespace: l.Namespace}
	var before, raised int64
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		version, err := in.resourceVersion(ctx)
		if err != nil {
			return err
		}
		live, err := in.lock(ctx, l.Name)
		if err != nil {
			return err
		}
		before = live.Status.FencingToken
		if raised, err = o.target(live, version); err != nil {
			return err
		}
		live.Status.FencingToken = raised
		return c.Status().Update(ctx, live) // guarded by the version that was read
	})
	if err != nil {
		return err
	}
	return lines(o.Out, fmt.Sprintf("distlock.distlock.dev/%s (namespace %s): fencing token raised from %d to %d", l.Name, l.Namespace, before, raised))
}

// target is the token to raise a lock to: above all that were seen, and above the
// resourceVersion that the cluster has come to.
func (o *raiseOptions) target(l *v1alpha1.DistLock, version int64) (int64, error) {
	seen, now := o.to, l.Status.FencingToken
	if seen == 0 {
		seen = now
	}
	target := max(seen, version) + o.margin
	switch {
	case target > v1alpha1.MaxToken:
		return 0, exitWith(exitFailed, "--to, --margin: DistLock %q would be raised to %d, and tokens end at %d: give less", l.Name, target, int64(v1alpha1.MaxToken))
	case target <= now:
		return 0, exitWith(exitFailed, "--to: the fencing token of DistLock %q is %d already, and is never lowered (to %d): give --to %d or more, or leave it out to raise it once more",
			l.Name, now, target, now)
	}
	return target, nil
}

// resourceVersion is the one that the cluster has come to, by a live LIST.
func (c *cluster) resourceVersion(ctx context.Context) (int64, error) {
	list := &v1alpha1.DistLockList{}
	if err := c.List(ctx, list, client.InNamespace(c.namespace), client.Limit(1)); err != nil {
		return 0, err
	}
	version, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the cluster's resourceVersion is not an integer; Kubernetes 1.36 or newer is required: %w", err)
	}
	return version, nil
}
