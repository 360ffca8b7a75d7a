package controllers

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// maxBackoff is the longest pause between two tries, and so the longest that a
// lock sleeps on after the API server has come back.
const maxBackoff = 10 * time.Second

// lockIndex finds the cached Jobs and LockClaims that name a lock.
const lockIndex = "distlock"

// CacheOptions keep of the cluster's Jobs and pods only those that the gate
// marked, and of those only what the controller reads.
func CacheOptions() cache.Options {
	gated := labels.SelectorFromSet(labels.Set{v1alpha1.GatedLabel: "true"})
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&batchv1.Job{}: {Label: gated, Transform: stripJob},
			&corev1.Pod{}:  {Label: gated, Transform: stripPod},
		},
	}
}

// ClientOptions make cached reads wait for this process's own writes.
func ClientOptions() client.Options {
	return client.Options{Cache: &client.CacheOptions{EnableReadYourWritesConsistency: new(true)}}
}

func stripJob(obj any) (any, error) {
	if job, ok := obj.(*batchv1.Job); ok {
		job.ManagedFields = nil
		template := job.Spec.Template.ObjectMeta
		job.Spec = batchv1.JobSpec{Suspend: job.Spec.Suspend}
		job.Spec.Template.ObjectMeta = template
	}
	return obj, nil
}

func stripPod(obj any) (any, error) {
	if pod, ok := obj.(*corev1.Pod); ok {
		pod.ManagedFields = nil
		pod.Spec = corev1.PodSpec{}
		pod.Status = corev1.PodStatus{Phase: pod.Status.Phase}
	}
	return obj, nil
}

// SetupWithManager adds the controller to a manager made with CacheOptions and
// ClientOptions. On a replica that is not the leader its watches run too, so
// that its observations are as old as the leader's.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, clk clock.PassiveClock) (*Reconciler, error) {
	r := NewReconciler(mgr.GetClient(), mgr.GetAPIReader(), clk, mgr.GetEventRecorder(v1alpha1.ControllerServiceAccount))
	if err := r.index(ctx, mgr.GetFieldIndexer()); err != nil {
		return nil, err
	}
	if err := r.observe(ctx, mgr.GetCache()); err != nil {
		return nil, err
	}
	if err := r.metrics.watch(ctx, mgr); err != nil {
		return nil, err
	}
	return r, ctrl.NewControllerManagedBy(mgr).
		Named("distlock").
		For(&v1alpha1.DistLock{}).
		Watches(&v1alpha1.LockClaim{}, byLock(func(o client.Object) string { return o.(*v1alpha1.LockClaim).Spec.LockName })).
		Watches(&batchv1.Job{}, byLock(lockAnnotation), builder.WithPredicates(jobChanged)).
		Watches(&corev1.Pod{}, byLock(lockAnnotation), builder.WithPredicates(podEnded)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 4,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, maxBackoff),
			EnableWarmup:            new(true),
			ReconciliationTimeout:   time.Minute, // a request that hangs must not take a worker for ever
		}).
		Complete(r)
}

func (r *Reconciler) index(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, &batchv1.Job{}, lockIndex, func(o client.Object) []string { return []string{lockAnnotation(o)} })
	if err != nil {
		return fmt.Errorf("indexing Jobs by lock: %w", err)
	}
	err = indexer.IndexField(ctx, &v1alpha1.LockClaim{}, lockIndex, func(o client.Object) []string {
		return []string{o.(*v1alpha1.LockClaim).Spec.LockName}
	})
	if err != nil {
		return fmt.Errorf("indexing LockClaims by lock: %w", err)
	}
	return nil
}

// observe feeds the observations from the watches, in the order of their events.
func (r *Reconciler) observe(ctx context.Context, informers cache.Informers) error {
	arrivals := toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { r.seen.arrived(obj.(client.Object).GetUID()) },
		DeleteFunc: func(obj any) {
			if uid, ok := deletedUID(obj); ok {
				r.seen.forgetObject(uid)
				r.told.forget(uid)
			}
		},
	}
	jobs := arrivals
	jobs.AddFunc = func(obj any) {
		arrivals.AddFunc(obj)
		r.seen.job(obj.(*batchv1.Job).UID, factsOf(obj.(*batchv1.Job)))
	}
	jobs.UpdateFunc = func(_, obj any) { r.seen.job(obj.(*batchv1.Job).UID, factsOf(obj.(*batchv1.Job))) }
	locks := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { r.seen.lock(obj.(*v1alpha1.DistLock)) },
		UpdateFunc: func(_, obj any) { r.seen.lock(obj.(*v1alpha1.DistLock)) },
		DeleteFunc: func(obj any) {
			if uid, ok := deletedUID(obj); ok {
				r.seen.forgetLock(uid)
			}
		},
	}
	for _, w := range []struct {
		obj     client.Object
		handler toolscache.ResourceEventHandler
	}{{&v1alpha1.DistLock{}, locks}, {&v1alpha1.LockClaim{}, arrivals}, {&batchv1.Job{}, jobs}} {
		informer, err := informers.GetInformer(ctx, w.obj, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching %T: %w", w.obj, err)
		}
		if _, err := informer.AddEventHandler(w.handler); err != nil {
			return fmt.Errorf("watching %T: %w", w.obj, err)
		}
	}
	return nil
}

func deletedUID(obj any) (types.UID, bool) {
	if unknown, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	o, ok := obj.(client.Object)
	if !ok {
		return "", false
	}
	return o.GetUID(), true
}

func lockAnnotation(o client.Object) string { return o.GetAnnotations()[v1alpha1.LockAnnotation] }

// byLock wakes the reconciler of the lock that an object names.
func byLock(name func(client.Object) string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		if name(o) == "" {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name(o)}}}
	})
}

// jobChanged passes the changes of a Job that a decision can depend on.
var jobChanged = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		return factsOf(e.ObjectOld.(*batchv1.Job)) != factsOf(e.ObjectNew.(*batchv1.Job))
	},
}

// podEnded passes a pod's end.
var podEnded = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return !terminal(e.ObjectOld.(*corev1.Pod)) && terminal(e.ObjectNew.(*corev1.Pod))
	},
}

func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
