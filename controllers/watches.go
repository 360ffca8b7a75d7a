package controllers

import (
	"context"
	"math"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// The watches feed what this process knows, in the order of their events, and
// wake the reconciler of a lock only after that: what woke it is there for it to
// see. They run on a standby too, so its observations are as old as the leader's.

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// watchOf calls show with each object that a watch shows and its version before
// (the zero value: none), and drop with each that is gone. A list that is read anew
// shows one that was made anew under its name as a change of the one before.
func watchOf[T client.Object](show func(q queue, before, now T), drop func(q queue, last T)) handler.EventHandler {
	var none T
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { show(q, none, e.Object.(T)) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			before := e.ObjectOld.(T)
			if before.GetUID() != e.ObjectNew.GetUID() {
				drop(q, before)
				before = none
			}
			show(q, before, e.ObjectNew.(T))
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { drop(q, e.Object.(T)) },
	}
}

func wake(q queue, lock types.NamespacedName) { q.Add(reconcile.Request{NamespacedName: lock}) }

func (r *Reconciler) onLocks() handler.EventHandler {
	return watchOf(func(q queue, _, now *v1alpha1.DistLock) {
		r.observe(now)
		wake(q, client.ObjectKeyFromObject(now))
	}, func(q queue, last *v1alpha1.DistLock) {
		r.seen.forgetLock(last.UID)
		wake(q, client.ObjectKeyFromObject(last))
	})
}

// observe takes in a version of a lock.
func (r *Reconciler) observe(l *v1alpha1.DistLock) {
	for _, uid := range r.seen.lock(l) {
		r.askers.holdEnded(client.ObjectKeyFromObject(l), uid)
	}
}

// takeIn is what the caches do with each object before they hold it: they keep
// what the controller reads of it, and those that ask for a lock are put in line.
func (r *Reconciler) takeIn(obj any) (any, error) {
	switch o := obj.(type) {
	case *batchv1.Job:
		stripJob(o)
		if f := factsOf(o); f.lock != "" {
			r.askers.put(lockOfJob(o), askerOfJob(o, f))
		}
	case *v1alpha1.LockClaim:
		o.ManagedFields = nil
		r.askers.put(lockOfClaim(o), askerOfClaim(o))
	case *corev1.Pod:
		stripPod(o)
	}
	return obj, nil
}

func (r *Reconciler) onClaims() handler.EventHandler {
	return watchOf(func(q queue, _, now *v1alpha1.LockClaim) {
		wake(q, lockOfClaim(now))
	}, func(q queue, last *v1alpha1.LockClaim) {
		r.askers.remove(lockOfClaim(last), last.UID)
		r.told.forget(last.UID)
		wake(q, lockOfClaim(last))
	})
}

func lockOfClaim(c *v1alpha1.LockClaim) types.NamespacedName {
	return types.NamespacedName{Namespace: c.Namespace, Name: c.Spec.LockName}
}

func askerOfClaim(c *v1alpha1.LockClaim) asker {
	return asker{
		kind: kindClaim, uid: c.UID, name: c.Name, since: c.CreationTimestamp.Time, version: versionOf(c),
		leased:  c.Spec.LeaseDurationSeconds != nil,
		waits:   claimWaits(c),
		watched: c.Status.FencingToken != 0 && claimReason(c) != v1alpha1.ReasonLost,
	}
}

// versionOf is an object's resourceVersion; what is not a number comes last.
func versionOf(o client.Object) int64 {
	v, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return math.MaxInt64
	}
	return v
}

func (r *Reconciler) onJobs() handler.EventHandler {
	return watchOf(func(q queue, before, now *batchv1.Job) {
		f := factsOf(now)
		if before != nil {
			was := factsOf(before)
			if f == was {
				return // a change of anything else wakes nobody
			}
			if was.lock != f.lock {
				r.askers.remove(lockOfJob(before), before.UID)
				wakeOf(q, before)
			}
		}
		r.seen.job(now.UID, f)
		wakeOf(q, now)
	}, func(q queue, last *batchv1.Job) {
		r.seen.jobGone(last.UID, r.askers.gone(lockOfJob(last), last.UID))
		r.told.forget(last.UID)
		wakeOf(q, last)
	})
}

// wakeOf wakes the lock that a Job or pod names, if it does.
func wakeOf(q queue, o client.Object) {
	if lock := lockAnnotation(o); lock != "" {
		wake(q, types.NamespacedName{Namespace: o.GetNamespace(), Name: lock})
	}
}

func lockOfJob(job *batchv1.Job) types.NamespacedName {
	return types.NamespacedName{Namespace: job.Namespace, Name: lockAnnotation(job)}
}

func askerOfJob(job *batchv1.Job, f jobFacts) asker {
	return asker{
		kind: kindJob, uid: job.UID, name: job.Name, since: queuedSince(job, f), version: versionOf(job),
		waits:     f.waits(),
		watched:   f.mayRun(),
		suspended: f.suspended,
		underway:  !f.finished && !f.stopped,
	}
}

// onPods wakes a lock when a pod of it has ended: it may be seen first when it has.
func (r *Reconciler) onPods() handler.EventHandler {
	return watchOf(func(q queue, before, now *corev1.Pod) {
		if terminal(now) && (before == nil || !terminal(before)) {
			wakeOf(q, now)
		}
	}, func(q queue, last *corev1.Pod) { wakeOf(q, last) })
}

func lockAnnotation(o client.Object) string { return o.GetAnnotations()[v1alpha1.LockAnnotation] }

func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// succeededPodOf is the uid of the Job of a pod that succeeded. A pod of somebody
// else's that bears the Job's uid as a label does not complete it.
func succeededPodOf(o client.Object) []string {
	pod, ok := o.(*corev1.Pod)
	if !ok || pod.Status.Phase != corev1.PodSucceeded {
		return nil
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return []string{string(owner.UID)}
	}
	return nil
}
