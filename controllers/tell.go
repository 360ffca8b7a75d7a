package controllers

import (
	"context"
	"errors"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// Reasons of the events on Jobs and DistLocks.
const (
	eventGranted      = "LockGranted"
	eventWaiting      = "WaitingForLock"
	eventLockNotFound = "LockNotFound"
	eventClosed       = "LockClosed"
	eventImpossible   = "TooManyPermits"
	eventBadRequest   = "BadLockRequest"
	eventRevoked      = "LockRevoked"
	eventExpired      = "LeaseExpired"
	eventRefused      = "JobUpdateRefused"
	eventIntruder     = "RunningWithoutLock"
	eventTakenIn      = "TakenIn"
	eventNotTakenIn   = "NotTakenIn"
)

// tell says on Job and lock what was stored.
func (r *Reconciler) tell(ctx context.Context, g gathered, e protocol.Effects) {
	for _, h := range e.Granted {
		if h.Ref != nil {
			r.settle(g, h.Ref.UID, true)
		}
		if job := jobOf(g, h.Ref); job != nil && h.RevokeTime == nil && r.told.news(job.UID, eventGranted) {
			r.Events.Eventf(job, g.lock, corev1.EventTypeNormal, eventGranted, "Grant",
				"Holds DistLock %s with fencing token %d", g.key.Name, h.FencingToken)
		}
	}
	for _, h := range e.Revoked {
		r.tellRevoked(g, h)
	}
	for _, h := range e.Expired {
		r.tellBoth(g, h.Ref, eventExpired, "Expire", fmt.Sprintf("The lease of %s with fencing token %d was not renewed", h.Owner, h.FencingToken))
	}
	r.tellWaiting(ctx, g, e)
	for _, w := range e.Impossible {
		r.tellJob(g, w.Ref, eventImpossible, "Wait", "Asks for %d permits of DistLock %s, which has %d: raise spec.capacity, or delete the Job and create it with fewer in %s",
			w.Permits, g.key.Name, *g.lock.Spec.Capacity, v1alpha1.PermitsAnnotation)
	}
	for _, b := range g.bad {
		if r.told.news(b.job.UID, eventBadRequest) {
			r.Events.Eventf(b.job, g.lock, corev1.EventTypeWarning, eventBadRequest, "Wait", "Is not queued for DistLock %s: %v", g.key.Name, b.err)
		}
	}
}

// tellWaiting tells Jobs that wait why they do. It is not told anew when the
// holder or the place changes, and so costs no write for each handover.
func (r *Reconciler) tellWaiting(ctx context.Context, g gathered, e protocol.Effects) {
	for i, w := range e.Waiting {
		if w.Running {
			r.tellJob(g, w.Ref, eventIntruder, "Suspend", "Runs without holding DistLock %s and is suspended; nobody is granted the lock before its pods have ended", g.key.Name)
			continue
		}
		job := jobOf(g, w.Ref)
		if job == nil {
			continue
		}
		r.recall(ctx, g.key.Namespace)
		if r.told.news(job.UID, eventWaiting) {
			place, of := r.placeOf(g.lock, w)
			r.Events.Eventf(job, g.lock, corev1.EventTypeNormal, eventWaiting, "Wait",
				"Waits for DistLock %s: %s; place %d of %d", g.key.Name, whyWaiting(g.lock, e.Why), place, of)
		}
		if i == 0 && errors.Is(e.Why, protocol.ErrClosed) && r.told.news(job.UID, eventClosed) {
			r.Events.Eventf(job, g.lock, corev1.EventTypeNormal, eventClosed, "Wait",
				"Is the next to get DistLock %s, which is closed for up to %d seconds (minHoldSeconds, lockDelaySeconds)", g.key.Name, g.lock.Status.ClosedSeconds)
		}
		r.settle(g, job.UID, true)
	}
}

// settle notes that an asker knows why it waits, or has to be told.
func (r *Reconciler) settle(g gathered, uid types.UID, settled bool) {
	r.askers.note(g.key, uid, func(a *asker) { a.unsettled = !settled && !a.leased })
}

// placeOf is the place of a request among all that wait for a lock.
func (r *Reconciler) placeOf(lock *v1alpha1.DistLock, w protocol.Request) (place, of int) {
	key := client.ObjectKeyFromObject(lock)
	place, of = r.askers.place(key, w.Ref.UID)
	for _, h := range lock.Status.Holders {
		if h.Ref == nil {
			continue
		}
		if before, _ := r.askers.place(key, h.Ref.UID); before > 0 {
			of--
			if before < place {
				place--
			}
		}
	}
	return place, of
}

// tellRevoked tells of a revocation: when the controller decides it, or when it
// acts on an administrator's.
func (r *Reconciler) tellRevoked(g gathered, h v1alpha1.Hold) {
	if refKind(h.Ref) == kindOther || r.told.news(h.Ref.UID, eventRevoked) {
		r.tellBoth(g, h.Ref, eventRevoked, "Revoke", fmt.Sprintf("Revoked the hold of %s with fencing token %d", h.Owner, h.FencingToken))
	}
}

// tellBoth tells a warning on the lock and on the Job behind a hold.
func (r *Reconciler) tellBoth(g gathered, ref *v1alpha1.ObjectRef, reason, action, note string) {
	var related runtime.Object
	if job := jobOf(g, ref); job != nil {
		related = job
		r.settle(g, job.UID, false)
		r.Events.Eventf(job, g.lock, corev1.EventTypeWarning, reason, action, "%s", note)
	}
	r.Events.Eventf(g.lock, related, corev1.EventTypeWarning, reason, action, "%s", note)
}

// tellJob tells a warning on a Job, once for each reason.
func (r *Reconciler) tellJob(g gathered, ref *v1alpha1.ObjectRef, reason, action, note string, args ...any) {
	job := jobOf(g, ref)
	if job == nil || !r.told.news(job.UID, reason) {
		return
	}
	r.Events.Eventf(job, g.lock, corev1.EventTypeWarning, reason, action, note, args...)
}

// whyWaiting says who is in the way.
func whyWaiting(lock *v1alpha1.DistLock, why error) string {
	if !errors.Is(why, protocol.ErrHeld) || len(lock.Status.Holders) == 0 {
		return fmt.Sprint(why)
	}
	h := lock.Status.Holders[0]
	s := fmt.Sprintf("held by %s with fencing token %d since %s", holderName(h), h.FencingToken, h.AcquireTime.UTC().Format("2006-01-02T15:04:05Z"))
	if more := len(lock.Status.Holders) - 1; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

// holderName is the owner and, for a claim, which it names by uid alone, its name.
func holderName(h v1alpha1.Hold) string {
	if refKind(h.Ref) == kindClaim {
		return h.Owner + " (LockClaim " + h.Ref.Name + ")"
	}
	return h.Owner
}

func jobOf(g gathered, ref *v1alpha1.ObjectRef) *batchv1.Job {
	if ref == nil {
		return nil
	}
	return g.jobs[ref.UID]
}
