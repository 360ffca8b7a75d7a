package controllers

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// maxBackoff is the longest pause between two tries, and so the longest that a
// lock sleeps on after the API server has come back.
const maxBackoff = 10 * time.Second

// succeededIndex finds the cached pods that succeeded by the uid of their Job.
const succeededIndex = "distlock-succeeded"

// New returns a Reconciler that has seen nothing yet.
func New(clk clock.PassiveClock) *Reconciler {
	return &Reconciler{Clock: clk, askers: newAskers(), seen: newObservations(clk), told: newTold(), metrics: newMetrics(clk)}
}

// CacheOptions are for the manager that the Reconciler is set up with, and no
// other. They keep of the cluster's Jobs and pods only those that the gate marked,
// and of those only what the controller reads.
func (r *Reconciler) CacheOptions() cache.Options {
	gated := labels.SelectorFromSet(labels.Set{v1alpha1.GatedLabel: "true"})
	byObject := policyCaches()
	byObject[&batchv1.Job{}] = cache.ByObject{Label: gated, Transform: r.takeIn}
	byObject[&corev1.Pod{}] = cache.ByObject{Label: gated, Transform: r.takeIn}
	byObject[&v1alpha1.LockClaim{}] = cache.ByObject{Transform: r.takeIn}
	return cache.Options{DefaultTransform: cache.TransformStripManagedFields(), ByObject: byObject}
}

// ClientOptions make cached reads wait for this process's own writes.
func ClientOptions() client.Options {
	return client.Options{Cache: &client.CacheOptions{EnableReadYourWritesConsistency: new(true)}}
}

func stripJob(job *batchv1.Job) {
	job.ManagedFields = nil
	template := job.Spec.Template.ObjectMeta
	job.Spec = batchv1.JobSpec{
		Suspend: job.Spec.Suspend, Completions: job.Spec.Completions,
		CompletionMode: job.Spec.CompletionMode, SuccessPolicy: job.Spec.SuccessPolicy,
	}
	job.Spec.Template.ObjectMeta = template
}

func stripPod(pod *corev1.Pod) {
	pod.ManagedFields = nil
	pod.Spec = corev1.PodSpec{}
	pod.Status = corev1.PodStatus{Phase: pod.Status.Phase}
}

// SetupWithManager adds the controller to a manager made with its CacheOptions and
// with ClientOptions. On a replica that is not the leader its watches run too, so
// that its observations are as old as the leader's.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	pods, err := kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return err
	}
	r.Client, r.Live, r.Events = mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder(v1alpha1.ControllerServiceAccount)
	r.pods = newPodEnds(ctx, pods)
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, succeededIndex, succeededPodOf); err != nil {
		return fmt.Errorf("indexing pods: %w", err)
	}
	if err := r.metrics.watch(ctx, mgr); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("distlock").
		Watches(&v1alpha1.DistLock{}, r.onLocks()).
		Watches(&v1alpha1.LockClaim{}, r.onClaims()).
		Watches(&batchv1.Job{}, r.onJobs()).
		Watches(&corev1.Pod{}, r.onPods()).
		WatchesRawSource(source.Channel(r.pods.woken, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 4,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, maxBackoff),
			EnableWarmup:            new(true),
			ReconciliationTimeout:   time.Minute, // a request that hangs must not take a worker for ever
		}).
		Complete(r)
}
