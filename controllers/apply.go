package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// retryChanged is how long until a change to a Job is tried again that the API
// server refused because the Job was not, or not yet, as it was read. The Job's
// own events come sooner; this is for one that was missed.
const retryChanged = time.Second

// errChanged: the Job is not, or not yet, as it was read.
var errChanged = errors.New("the Job changed meanwhile")

// apply makes the Jobs and claims follow the stored lock. One that fails does
// not keep the others from it. It returns how long until something that did not
// go through yet is due again.
func (r *Reconciler) apply(ctx context.Context, g gathered, effects protocol.Effects) (time.Duration, error) {
	var errs []error
	for _, h := range g.lock.Status.Holders {
		switch refKind(h.Ref) {
		case kindJob:
			errs = append(errs, r.applyToJob(ctx, &g, h))
		case kindClaim:
			errs = append(errs, r.applyToClaim(ctx, &g, h))
		case kindOther:
		}
	}
	errs = append(errs, r.stopIntruders(ctx, &g, effects.Waiting)...)
	errs = append(errs, r.answerClaims(ctx, &g, effects))
	for _, h := range effects.Finished {
		errs = append(errs, r.finishClaim(ctx, &g, h))
	}
	return splitChanged(errs)
}

// splitChanged takes the Jobs that changed meanwhile out of the errors.
func splitChanged(errs []error) (time.Duration, error) {
	var again time.Duration
	var others []error
	for _, err := range errs {
		if errors.Is(err, errChanged) {
			again = retryChanged
		} else {
			others = append(others, err)
		}
	}
	return again, errors.Join(others...)
}

// applyToJob resumes the Job of a hold, or takes it back for a revoked one.
func (r *Reconciler) applyToJob(ctx context.Context, g *gathered, h v1alpha1.Hold) error {
	job := g.jobs[h.Ref.UID]
	if job == nil {
		return nil
	}
	f := factsOf(job)
	switch {
	case f.canResume(h):
		if err := r.prove(ctx, g, h); err != nil {
			return err
		}
		return r.resume(ctx, job, h)
	case h.RevokeTime != nil && f.waits() && !f.gaveUp(h):
		return r.takeBack(ctx, g, job, f, h)
	}
	return nil
}

// prove establishes that the hold was there, and not revoked, after the Job or
// claim was read: by this reconcile's own write, or by a live read.
func (r *Reconciler) prove(ctx context.Context, g *gathered, h v1alpha1.Hold) error {
	if g.written && holdsUnrevoked(g.lock, h.Owner, h.FencingToken) {
		return nil
	}
	lock := &v1alpha1.DistLock{}
	if err := r.Live.Get(ctx, g.key, lock); err != nil {
		return fmt.Errorf("proving that %s holds DistLock %s: %w", h.Owner, g.key, err)
	}
	if lock.UID != g.lock.UID || !holdsUnrevoked(lock, h.Owner, h.FencingToken) {
		return errChanged
	}
	return nil
}

// resume starts the Job with its token, if it is still as it was when the hold
// was proven after it was read: a revocation changes its annotations before the
// hold ends, and so stops a resume that comes late.
func (r *Reconciler) resume(ctx context.Context, job *batchv1.Job, h v1alpha1.Hold) error {
	return r.patchJob(ctx, job, append(unchanged(job, true),
		setTemplateAnnotation(job, v1alpha1.TokenAnnotation, tokenText(h)),
		replace("/spec/suspend", false)))
}

// takeBack suspends the Job of a revoked hold and puts it at the end of the
// queue. A Job that was resumed must be seen started first: only then does its
// Suspended condition say later that no pod is under way.
func (r *Reconciler) takeBack(ctx context.Context, g *gathered, job *batchv1.Job, f jobFacts, h v1alpha1.Hold) error {
	if !f.suspended && !f.started {
		return nil // its next event comes when it has started
	}
	err := r.patchJob(ctx, job, append(unchanged(job, f.suspended),
		setAnnotation(v1alpha1.QueuedAtAnnotation, r.endOfLine(g.key).UTC().Format(metav1.RFC3339Micro)),
		setAnnotation(v1alpha1.RevokedTokenAnnotation, tokenText(h)),
		replace("/spec/suspend", true)))
	if err == nil {
		r.tellRevoked(*g, h)
	}
	return err
}

// endOfLine is when somebody joined who joins the queue of a lock now. The others
// were put in line by the API server's clock, which may be ahead of this one.
func (r *Reconciler) endOfLine(lock types.NamespacedName) time.Time {
	now, last := r.Clock.Now(), r.askers.last(lock)
	if now.Unix() <= last.Unix() {
		return last.Add(time.Second) // by the second they are in order
	}
	return now
}

// stopIntruders suspends Jobs that run without the lock; until their pods are
// gone they stand first in its queue, and nobody gets past them.
func (r *Reconciler) stopIntruders(ctx context.Context, g *gathered, waiting []protocol.Request) []error {
	var errs []error
	for _, w := range waiting {
		if !w.Running {
			break // they come first
		}
		if job := g.jobs[w.Ref.UID]; job != nil && factsOf(job).waits() {
			errs = append(errs, r.stopIntruder(ctx, job))
		}
	}
	return errs
}

func (r *Reconciler) stopIntruder(ctx context.Context, job *batchv1.Job) error {
	if !factsOf(job).started {
		return nil // its next event comes when it has started
	}
	return r.patchJob(ctx, job, append(unchanged(job, false), replace("/spec/suspend", true)))
}

// patchJob sends a JSON Patch; errChanged when the Job is not as it was read, or
// gone. Whoever else refuses the change is named in an event.
func (r *Reconciler) patchJob(ctx context.Context, job *batchv1.Job, ops jobPatch) error {
	var opts []client.PatchOption
	if job.Labels[v1alpha1.GatedLabel] != "true" {
		opts = append(opts, client.DisableReadYourWritesConsistency) // the cache will never show it
	}
	err := r.Client.Patch(ctx, job.DeepCopy(), ops, opts...)
	if apierrors.IsInvalid(err) {
		// A failed test, or a refusal: policies of others answer the same.
		live, readErr := r.liveJob(ctx, jobRef(job), job.Namespace)
		if readErr != nil || live == nil || !sameForPatch(live, job) {
			return fmt.Errorf("%w: %w", errChanged, err)
		}
	}
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %w", errChanged, err)
	}
	if err != nil {
		refused := apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
		if refused {
			r.metrics.refused.Inc()
		}
		if refused && r.told.news(job.UID, eventRefused) {
			r.Events.Eventf(job, nil, corev1.EventTypeWarning, eventRefused, "Update", "Cannot be started or suspended: %s", shorten(err.Error()))
		}
		return fmt.Errorf("changing Job %s/%s: %w", job.Namespace, job.Name, err)
	}
	return nil
}

// sameForPatch reports whether a patch's tests hold for a Job as for another.
func sameForPatch(a, b *batchv1.Job) bool {
	return factsOf(a) == factsOf(b) && maps.Equal(a.Annotations, b.Annotations) &&
		maps.Equal(a.Spec.Template.Annotations, b.Spec.Template.Annotations)
}

// shorten keeps a text within what an event's note may have: 1024 bytes.
func shorten(s string) string {
	if len(s) > 900 {
		return s[:900] + "…"
	}
	return s
}

// applyToClaim tells the claim of a bound hold that it is granted, or revoked.
func (r *Reconciler) applyToClaim(ctx context.Context, g *gathered, h v1alpha1.Hold) error {
	claim := g.claims[h.Ref.UID]
	if claim == nil || h.LeaseDurationSeconds != nil || claim.Spec.LeaseDurationSeconds != nil {
		return nil
	}
	if h.RevokeTime != nil && claimReason(claim) == v1alpha1.ReasonRevoked {
		return nil
	}
	if h.RevokeTime != nil {
		if err := r.refuseClaim(ctx, claim, v1alpha1.ReasonRevoked, "the hold was revoked: stop, then delete this LockClaim"); err != nil {
			return err
		}
		r.tellRevoked(*g, h)
		return nil
	}
	if claimIsGranted(claim, h.FencingToken) {
		return nil
	}
	if err := r.prove(ctx, g, h); err != nil {
		return err
	}
	return r.grantClaim(ctx, claim, h)
}

// answerClaims tells bound claims that wait that they do, and those whose hold
// is no more that they lost it.
func (r *Reconciler) answerClaims(ctx context.Context, g *gathered, effects protocol.Effects) error {
	var errs []error
	answer := func(requests []protocol.Request, reason, message string) {
		for _, w := range requests {
			if c := g.claims[w.Ref.UID]; c != nil {
				err := r.refuseClaim(ctx, c, reason, message)
				r.settle(*g, c.UID, err == nil && reason == v1alpha1.ReasonWaiting)
				errs = append(errs, err)
			}
		}
	}
	answer(effects.Waiting, v1alpha1.ReasonWaiting, "waits in the queue of DistLock "+g.key.Name+": "+whyWaiting(g.lock, effects.Why))
	answer(effects.Impossible, v1alpha1.ReasonTooManyPermits, "asks for more permits than the capacity of DistLock "+g.key.Name)
	for _, c := range g.claims {
		if claimIsLost(c, g.lock) {
			errs = append(errs, r.refuseClaim(ctx, c, v1alpha1.ReasonLost, "the hold ended: stop, then delete this LockClaim"))
		}
	}
	return errors.Join(errs...)
}
