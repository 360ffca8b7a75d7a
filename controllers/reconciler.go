// Package controllers is the one controller of DistLock: a reconciler keyed by
// lock. It gathers what the cluster shows of a lock, its Jobs and its claims,
// lets internal/protocol decide, writes the lock's status once, and only then
// applies what follows to Jobs and claims and tells about it.
package controllers

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// Reconciler brings a lock to where its holders, waiters and clocks say it
// should be. Safe for concurrent use, for different locks.
type Reconciler struct {
	// Client reads from a cache that has this process's own writes, and writes.
	Client client.Client
	// Live reads at the API server.
	Live client.Reader
	// Clock gives the wall clock that is written down, and with its monotonic
	// reading measures what this process observes.
	Clock clock.PassiveClock
	// Events tells people.
	Events events.EventRecorder

	askers  *askers
	seen    *observations
	pods    *podEnds
	told    *told
	metrics *metrics
	sweep   *sweeper // nil without WatchPolicies
}

// +kubebuilder:rbac:groups=distlock.dev,resources=distlocks,verbs=get;list;watch
// +kubebuilder:rbac:groups=distlock.dev,resources=distlocks/status,verbs=update
// +kubebuilder:rbac:groups=distlock.dev,resources=lockclaims,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=distlock.dev,resources=lockclaims/status,verbs=update
// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=list;create;patch

// Reconcile gathers, decides, writes once, applies and tells. It comes back when
// the next deadline is due; everything else wakes it by a watch.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var (
		locks   client.Reader = r.Client
		g       gathered
		effects protocol.Effects
	)
	if err := r.sweep.await(ctx); err != nil {
		return ctrl.Result{}, err
	}
	err := retry.RetryOnConflict(afterConflict, func() (err error) {
		if g, err = r.gather(ctx, locks, req.NamespacedName); err != nil || g.lock == nil {
			return err
		}
		locks = r.Live // after a conflict the cache may lag
		var next protocol.State
		next, effects = protocol.Decide(g.state, g.observed, r.Clock.Now())
		r.metrics.announce(g, effects)
		return r.metrics.conflicted(r.write(ctx, &g, next))
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	if g.lock == nil {
		return r.withoutLock(ctx, g)
	}
	r.tell(ctx, g, effects)
	r.metrics.count(g, effects)
	r.followPods(&g, effects) //nolint:contextcheck // the watches outlive this reconcile
	retryAfter, err := r.apply(ctx, g, effects)
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: soonest(effects.Next, g.due, retryAfter)}, nil
}

// afterConflict are the pauses before a lock that somebody else wrote is read and
// decided again. Where it goes from hand to hand every few milliseconds, a write gets
// through in one of several tries at any time, and must before the stored queue, which
// it is to fill up, runs empty.
var afterConflict = wait.Backoff{Steps: 10, Duration: 2 * time.Millisecond, Factor: 1.5, Jitter: 0.5}

// write stores the decided status, guarded by the resourceVersion it was decided
// from, unless it is the status that is stored already. From then on g.lock is
// what was stored.
func (r *Reconciler) write(ctx context.Context, g *gathered, next protocol.State) error {
	if !next.Differs(g.state) {
		return nil
	}
	lock := g.lock.DeepCopy()
	lock.Status = next.Status
	if err := r.Client.Status().Update(ctx, lock); err != nil {
		if apierrors.IsConflict(err) {
			return err // as it is, for the retry
		}
		return fmt.Errorf("writing the status of DistLock %s: %w", g.key, err)
	}
	g.lock, g.written = lock, true
	return nil
}

// soonest is the shortest of some durations, where zero stands for never.
func soonest(ds ...time.Duration) time.Duration {
	var first time.Duration
	for _, d := range ds {
		if d > 0 && (first == 0 || d < first) {
			first = d
		}
	}
	return first
}

// holdsUnrevoked reports whether an owner has the hold with that token, and nobody
// asked it to stop.
func holdsUnrevoked(lock *v1alpha1.DistLock, owner string, token int64) bool {
	for _, h := range lock.Status.Holders {
		if h.Owner == owner && h.FencingToken == token && h.RevokeTime == nil {
			return true
		}
	}
	return false
}
