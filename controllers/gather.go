package controllers

import (
	"context"
	"errors"
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
	if err := r.gatherAskers(ctx, &g); err != nil {
		return g, err
	}
	if err := r.gatherLock(ctx, locks, &g); err != nil || g.lock == nil {
		return g, err
	}
	if err := r.gatherHolds(ctx, &g); err != nil {
		return g, err
	}
	if err := r.gatherWaiters(ctx, &g); err != nil {
		return g, err
	}
	if err := r.gatherRequests(ctx, &g); err != nil {
		return g, err
	}
	return g, nil
}

// gatherAskers lists the Jobs and claims that name the lock.
func (r *Reconciler) gatherAskers(ctx context.Context, g *gathered) error {
	var jobs batchv1.JobList
	if err := r.list(ctx, &jobs, g.key, client.MatchingLabels{v1alpha1.GatedLabel: "true"}); err != nil {
		return fmt.Errorf("listing the Jobs of DistLock %s: %w", g.key, err)
	}
	for i := range jobs.Items {
		if lockAnnotation(&jobs.Items[i]) == g.key.Name {
			g.jobs[jobs.Items[i].UID] = &jobs.Items[i]
		}
	}
	var claims v1alpha1.LockClaimList
	if err := r.list(ctx, &claims, g.key, client.MatchingFields{"spec.lockName": g.key.Name}); err != nil {
		return fmt.Errorf("listing the LockClaims of DistLock %s: %w", g.key, err)
	}
	for i := range claims.Items {
		g.claims[claims.Items[i].UID] = &claims.Items[i]
	}
	return nil
}

// list lists those that name a lock from the cache, once it shows this process's
// own writes. Where a watch is stuck it may not for long; then it lists what is
// narrow at the API server.
func (r *Reconciler) list(ctx context.Context, list client.ObjectList, lock types.NamespacedName, narrow client.ListOption) error {
	cached, cancel := context.WithTimeout(ctx, cacheLag)
	defer cancel()
	err := r.Client.List(cached, list, client.InNamespace(lock.Namespace), client.MatchingFields{lockIndex: lock.Name})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = r.Live.List(ctx, list, client.InNamespace(lock.Namespace), narrow)
	}
	return err
}

func (r *Reconciler) gatherLock(ctx context.Context, locks client.Reader, g *gathered) (err error) {
	lock := &v1alpha1.DistLock{}
	cached, cancel := context.WithTimeout(ctx, cacheLag)
	defer cancel()
	err = locks.Get(cached, g.key, lock)
	if apierrors.IsNotFound(err) || (errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil) {
		err = r.Live.Get(ctx, g.key, lock)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading DistLock %s: %w", g.key, err)
	}
	r.seen.lock(lock)
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
		grace := graceBeforeStart
		if r.seen.started(h.Ref.UID) {
			grace = graceAfterStart
		}
		if left := grace - r.seen.goneFor(h.Ref.UID); left > 0 {
			g.due = soonest(g.due, left)
			return facts, nil
		}
		facts.Ended, err = r.podsEnded(ctx, g, h.Ref.UID)
		return facts, err
	}
	if f.finished || f.yielded(h) {
		facts.Ended, err = r.podsEnded(ctx, g, h.Ref.UID)
		return facts, err
	}
	facts.MustStop = f.strays(h)
	return facts, nil
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

// gatherWaiters looks live for stored waiters that the cache does not show: one
// that is still there goes on waiting.
func (r *Reconciler) gatherWaiters(ctx context.Context, g *gathered) (err error) {
	for _, w := range g.lock.Status.Queue {
		switch refKind(w.Ref) {
		case kindJob:
			_, err = r.findJob(ctx, g, w.Ref)
		case kindClaim:
			_, err = r.findClaim(ctx, g, w.Ref)
		case kindOther:
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// gatherRequests makes requests of the Jobs and claims that wait.
func (r *Reconciler) gatherRequests(ctx context.Context, g *gathered) error {
	for uid, job := range g.jobs {
		f := factsOf(job)
		if !f.waits() || f.lock != g.key.Name {
			continue
		}
		running := false
		if _, holds := g.state.Hold(jobOwner(job)); !holds && (f.mayRun() || r.seen.strayed(uid)) {
			var err error
			if job, running, err = r.confirmIntruder(ctx, g, job); err != nil {
				return err
			}
			if job == nil {
				continue
			}
			g.jobs[uid], f = job, factsOf(job)
		}
		request, err := jobRequest(job, f, g.lock.Spec, r.seen.place(uid), running)
		if err != nil {
			g.bad = append(g.bad, badRequest{job, err})
			if !running {
				continue
			}
			request = protocol.Request{Waiter: protocol.NewWaiter(g.lock.Spec, jobOwner(job), new(v1alpha1.Exclusive), nil, nil, jobRef(job)), Running: true}
		}
		g.observed.Requests = append(g.observed.Requests, request)
	}
	for uid, claim := range g.claims {
		if claim.Spec.LeaseDurationSeconds != nil && r.seen.heldOnce(uid) {
			continue // its status does not say so: its holder released, and deletes it now
		}
		if request, waits := claimRequest(claim, g.lock.Spec, r.seen.place(uid)); waits {
			g.observed.Requests = append(g.observed.Requests, request)
		}
	}
	return nil
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
	if factsOf(live).stopped {
		ended, err := r.podsEnded(ctx, g, live.UID)
		if ended {
			r.seen.setStrayed(live.UID, false)
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
	r.seen.setStrayed(live.UID, true)
	return live, true, nil
}

// refKinds are the kinds of objects behind a hold that the controller follows.
type refKinds int

const (
	kindOther refKinds = iota
	kindJob
	kindClaim
)

func refKind(ref *v1alpha1.ObjectRef) refKinds {
	switch {
	case ref == nil:
		return kindOther
	case ref.Kind == "Job" && ref.APIVersion == "batch/v1":
		return kindJob
	case ref.Kind == "LockClaim" && ref.APIVersion == v1alpha1.GroupVersion.String():
		return kindClaim
	}
	return kindOther
}
