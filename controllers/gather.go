package controllers

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// After a Job's deletion the Job controller may still create pods that were under
// way, and a deleted Job acknowledges nothing. Where it was seen started, its
// first pods are there and a LIST finds them; where it was not, their creation
// may still wait in the Job controller's own rate limiter.
const (
	graceAfterStart  = 5 * time.Second
	graceBeforeStart = time.Minute
)

// unwatchedPause is how long until a lock is looked at again on which something
// depends that no watch shows.
const unwatchedPause = 5 * time.Second

// cacheLag is how long the cache may take to show this process's own writes
// before it is read around.
const cacheLag = 3 * time.Second

// gathered is what one reconcile has read. Jobs and claims were read before
// anything is written, so what is written later proves something about them.
type gathered struct {
	key      types.NamespacedName
	lock     *v1alpha1.DistLock // nil: there is none, by a live read
	state    protocol.State
	jobs     map[types.UID]*batchv1.Job
	claims   map[types.UID]*v1alpha1.LockClaim
	observed protocol.Observed
	bad      []badRequest
	due      time.Duration // when gathering again may find more; zero: not known
	lagging  bool          // the cache does not show this process's own writes in time
	written  bool          // this reconcile stored lock
}

// badRequest is a Job that asks for something that cannot be.
type badRequest struct {
	job *batchv1.Job
	err error
}

// gather reads the lock from locks, and all else that the decision needs. What
// the cache does not show is looked for at the API server before it counts as
// gone.
func (r *Reconciler) gather(ctx context.Context, locks client.Reader, key types.NamespacedName) (gathered, error) {
	g := gathered{key: key, jobs: map[types.UID]*batchv1.Job{}, claims: map[types.UID]*v1alpha1.LockClaim{}}
	if err := r.gatherLock(ctx, locks, &g); err != nil || g.lock == nil {
		return g, err
	}
	if err := r.gatherHolds(ctx, &g); err != nil {
		return g, err
	}
	err := r.gatherRequests(ctx, &g)
	return g, err
}

func (r *Reconciler) gatherLock(ctx context.Context, locks client.Reader, g *gathered) (err error) {
	lock := &v1alpha1.DistLock{}
	if locks == r.Client {
		err = r.read(ctx, g, g.key, lock)
	} else {
		err = locks.Get(ctx, g.key, lock)
	}
	// What a cache that lags shows again would be taken for a change of what was seen.
	if apierrors.IsNotFound(err) || (err == nil && r.seen.isOld(lock)) {
		err = r.Live.Get(ctx, g.key, lock)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading DistLock %s: %w", g.key, err)
	}
	r.observe(lock)
	g.lock = lock
	g.state, err = protocol.StateOf(lock)
	return err
}

// gatherHolds establishes the facts about each hold.
func (r *Reconciler) gatherHolds(ctx context.Context, g *gathered) error {
	g.observed.ClosedFor = r.seen.closedFor(g.lock.UID)
	g.observed.Holds = make(map[string]protocol.HoldFacts, len(g.lock.Status.Holders))
	for _, h := range g.lock.Status.Holders {
		var facts protocol.HoldFacts
		var err error
		switch refKind(h.Ref) {
		case kindJob:
			facts, err = r.jobHold(ctx, g, h)
		case kindClaim:
			facts, err = r.claimHold(ctx, g, h)
		case kindOther:
		}
		if err != nil {
			return err
		}
		facts.Ended = facts.Ended || r.pods.hasEnded(g.key, h)
		facts.Unchanged, facts.Held = r.seen.hold(g.lock.UID, h.Owner)
		g.observed.Holds[h.Owner] = facts
	}
	return nil
}

// jobHold is what the hold's Job says of it: it has ended when the Job has come
// to its end, or gave the hold up, and a live LIST shows no pod of it that may
// still run (L5).
func (r *Reconciler) jobHold(ctx context.Context, g *gathered, h v1alpha1.Hold) (facts protocol.HoldFacts, err error) {
	job, err := r.findJob(ctx, g, h.Ref)
	if err != nil {
		return facts, err
	}
	var f jobFacts
	if job != nil {
		f = factsOf(job)
	}
	if job == nil || (f.deleted && !f.finished) {
		if f.yielded(h) || r.seen.yielded(h) {
			facts.Ended, err = r.podsEnded(ctx, g, h.Ref.UID)
		} else {
			facts.Ended, err = r.deletedJobEnded(ctx, g, h.Ref.UID)
		}
		return facts, err
	}
	r.seen.isThere(job.UID)
	succeeded, err := r.hasSucceeded(ctx, job, f)
	if err != nil {
		return facts, err
	}
	if f.lock != g.key.Name {
		g.due = soonest(g.due, unwatchedPause) // its changes wake another lock, or none
	}
	if succeeded || f.finished || f.yielded(h) {
		facts.Ended, err = r.podsEnded(ctx, g, h.Ref.UID)
		if succeeded && facts.Ended {
			r.askers.note(g.key, h.Ref.UID, func(a *asker) { a.ended = true })
		}
		return facts, err
	}
	facts.MustStop = f.strays(h)
	return facts, nil
}

// deletedJobEnded reports whether a Job that is deleted, or being deleted, has no
// pods any more and gets none.
func (r *Reconciler) deletedJobEnded(ctx context.Context, g *gathered, job types.UID) (bool, error) {
	grace := graceBeforeStart
	if r.seen.started(job) {
		grace = graceAfterStart
	}
	if left := grace - r.seen.goneFor(job); left > 0 {
		g.due = soonest(g.due, left)
		return false, nil
	}
	ended, err := r.podsEnded(ctx, g, job)
	if ended {
		r.askers.note(g.key, job, func(a *asker) { a.ended = true })
	}
	return ended, err
}

// strayEnded is deletedJobEnded of a Job that has no hold.
func (r *Reconciler) strayEnded(ctx context.Context, g *gathered, a asker) (ended bool, err error) {
	if a.underway {
		ended, err = r.deletedJobEnded(ctx, g, a.uid)
	} else {
		ended, err = r.podsEnded(ctx, g, a.uid)
	}
	if ended {
		r.askers.note(g.key, a.uid, func(a *asker) { a.ended = true })
		r.seen.forgetGone(a.uid)
	}
	return ended, err
}

// claimHold is what the hold's claim says of it: a bound hold has ended when its
// claim is gone.
func (r *Reconciler) claimHold(ctx context.Context, g *gathered, h v1alpha1.Hold) (facts protocol.HoldFacts, err error) {
	claim, err := r.findClaim(ctx, g, h.Ref)
	if err != nil {
		return facts, err
	}
	facts.Claimed = claim != nil && claim.DeletionTimestamp == nil
	facts.Ended = claim == nil && h.LeaseDurationSeconds == nil
	return facts, nil
}

// confirmIntruder looks live at a Job that seems to run without the lock: the Job
// as it is now, nil where it waits no more, and whether it may have pods. Once
// it is stopped, a LIST says whether it still has any; its status may lag. The
// Job is read first and the lock after it, since a Job gets the lock before it
// runs; where the lock has changed since it was read, that is a conflict.
func (r *Reconciler) confirmIntruder(ctx context.Context, g *gathered, job *batchv1.Job) (*batchv1.Job, bool, error) {
	live, err := r.liveJob(ctx, jobRef(job), g.key.Namespace)
	if err != nil || live == nil || !factsOf(live).waits() {
		return nil, false, err
	}
	done, err := r.hasSucceededLive(ctx, live)
	if err != nil {
		return nil, false, err
	}
	if done {
		ended, err := r.podsEnded(ctx, g, live.UID)
		if err != nil {
			return nil, false, err
		}
		if ended {
			r.askers.note(g.key, live.UID, func(a *asker) { a.ended = true })
			return nil, false, nil
		}
	}
	if factsOf(live).stopped {
		ended, err := r.podsEnded(ctx, g, live.UID)
		if ended {
			r.askers.note(g.key, live.UID, func(a *asker) { a.strayed = false })
		}
		return live, !ended, err
	}
	lock := &v1alpha1.DistLock{}
	if err := r.Live.Get(ctx, g.key, lock); err != nil {
		return nil, false, fmt.Errorf("reading DistLock %s: %w", g.key, err)
	}
	if lock.ResourceVersion != g.lock.ResourceVersion {
		return nil, false, apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("distlocks").GroupResource(), g.key.Name,
			fmt.Errorf("it changed while Job %s was looked at", job.Name))
	}
	r.askers.note(g.key, live.UID, func(a *asker) { a.strayed = true })
	return live, true, nil
}
