package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/retry"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

type revokeOptions struct {
	*plugin
	now bool
	all bool
}

func (p *plugin) revokeCommand() *cobra.Command {
	o := &revokeOptions{plugin: p}
	cmd := &cobra.Command{
		Use:   "revoke NAME [OWNER]",
		Short: "Ask a holder to stop and give the lock to the next",
		Long: `Ask a holder to stop and give the lock to the next. The hold is marked, cannot be renewed any more, and ends when its
holder has stopped:

  a Job          is suspended; its pods get SIGTERM and their grace period; when they have ended the next one gets the
                 lock, and the Job waits again at the end of the queue.
  a LockClaim    without a lease turns Granted=False, reason Revoked; the hold ends when the claim is deleted.
  a program      that renews its lease learns of it when it does (run: at once), and loses the hold when its lease is
                 over at the latest.

OWNER is the holder's owner, or as list and describe name it: Job/nightly. It may be left out where there is one holder.

--now shortens the waiting, never the order: when the Job is suspended, its pods are told to end within a second instead
of their grace period. They are never deleted by force: the lock goes on when their kubelets say that they have ended. A
pod on a node that does not answer stays, and so does the hold; docs/operations.md says what to do then. For holders
that are no Job, --now does nothing more: a lease is over soon, and only you can know whether whoever works under a
claim has stopped.

It is no error if the hold has ended meanwhile, or was revoked before.`,
		Example: examples(`
			kubectl distlock revoke ledger
			# One of several Shared holders
			kubectl distlock revoke builders Job/build-1234
			# Pods with a long grace period get a second
			kubectl distlock revoke ledger --now`),
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: p.completeOwners,
		RunE:              p.verb(o.run),
	}
	cmd.Flags().BoolVar(&o.now, "now", false, "End the pods of a Job within a second; never by force.")
	cmd.Flags().BoolVar(&o.all, "all", false, "Revoke the holds of all holders.")
	return cmd
}

func (o *revokeOptions) run(ctx context.Context, args []string) error {
	c, err := o.connect()
	if err != nil {
		return err
	}
	l, err := c.lock(ctx, args[0])
	if err != nil {
		return err
	}
	chosen, err := o.choose(l, args[1:])
	if err != nil {
		return err
	}
	for _, h := range chosen {
		if err := o.revoke(ctx, c, l, h); err != nil {
			return err
		}
	}
	return nil
}

// choose is the holds that the arguments name.
func (o *revokeOptions) choose(l *v1alpha1.DistLock, owner []string) ([]v1alpha1.Hold, error) {
	holds := l.Status.Holders
	switch {
	case o.all && len(owner) > 0:
		return nil, usageError("--all: not together with an OWNER: leave out one of the two")
	case len(owner) > 0:
		found := slices.DeleteFunc(slices.Clone(holds), func(h v1alpha1.Hold) bool {
			return h.Owner != owner[0] && !strings.EqualFold(behind(h.Owner, h.Ref), owner[0])
		})
		if len(found) == 0 {
			return nil, exitWith(exitFailed, "OWNER: %q does not hold DistLock %q; its holders are: %s", owner[0], l.Name, names(holds))
		}
		return found, nil
	case len(holds) > 1 && !o.all:
		return nil, usageError("OWNER: DistLock %q has %d holders: name one of %s, or give --all", l.Name, len(holds), names(holds))
	case len(holds) == 0:
		o.say("nobody holds DistLock %q: nothing to revoke", l.Name)
	}
	return holds, nil
}

func names(holds []v1alpha1.Hold) string {
	all := make([]string, 0, len(holds))
	for _, h := range holds {
		all = append(all, behind(h.Owner, h.Ref))
	}
	return orNone(strings.Join(all, ", "))
}

// revoke revokes this very hold, and no later one of the same owner.
func (o *revokeOptions) revoke(ctx context.Context, c *cluster, l *v1alpha1.DistLock, h v1alpha1.Hold) error {
	who := behind(h.Owner, h.Ref)
	done, err := c.setRevoked(ctx, l, h)
	if err != nil {
		return err
	}
	if !done {
		o.say("the hold of %s with token %d has ended already: nothing to revoke", who, h.FencingToken)
		return nil
	}
	if err := lines(o.Out, fmt.Sprintf("distlock.distlock.dev/%s: revoked the hold of %s with token %d", l.Name, who, h.FencingToken)); err != nil {
		return err
	}
	isJob := h.Ref != nil && h.Ref.Kind == "Job"
	switch {
	case isJob && o.now:
		return o.shortenPods(ctx, c, h)
	case isJob:
		o.say("%s is suspended, and the lock goes on when its pods have ended", who)
	case h.LeaseDurationSeconds != nil:
		o.say("the lock goes on when %s releases it, or its lease is over", who)
	case h.Ref != nil:
		o.say("the lock goes on when the claim is deleted: make sure that its work has stopped, then kubectl delete -n %s lockclaim %s", c.namespace, h.Ref.Name)
	}
	return nil
}

// setRevoked reports whether the hold is there, and so is revoked.
func (c *cluster) setRevoked(ctx context.Context, l *v1alpha1.DistLock, h v1alpha1.Hold) (bool, error) {
	done := false
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		live, err := c.lock(ctx, l.Name)
		if err != nil {
			return err
		}
		s, err := protocol.StateOf(live)
		if err != nil {
			return err
		}
		now, holds := s.Hold(h.Owner)
		if done = holds && live.UID == l.UID && now.FencingToken == h.FencingToken; !done {
			return nil
		}
		next, err := s.Revoke(h.Owner, time.Now())
		if err != nil || !next.Differs(s) {
			return err
		}
		live.Status = next.Status
		return c.Status().Update(ctx, live)
	})
	return done, err
}

func tokenText(h v1alpha1.Hold) string { return strconv.FormatInt(h.FencingToken, 10) }
