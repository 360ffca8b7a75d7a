package controllers

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// withoutLock answers those that name a lock that does not exist: they wait, and
// a Job that runs all the same is suspended.
func (r *Reconciler) withoutLock(ctx context.Context, g gathered) (ctrl.Result, error) {
	r.pods.follow(g.key, nil) //nolint:contextcheck // it starts nothing
	all := r.askers.all(g.key)
	if len(all) == 0 {
		return ctrl.Result{}, nil
	}
	if uninstalled, err := r.uninstalled(ctx); err != nil || uninstalled {
		return ctrl.Result{}, err
	}
	var errs []error
	for _, a := range all {
		switch a.kind {
		case kindJob:
			errs = append(errs, r.jobWithoutLock(ctx, &g, a))
		case kindClaim:
			errs = append(errs, r.claimWithoutLock(ctx, &g, a))
		case kindOther:
		}
	}
	again, err := splitChanged(errs)
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: soonest(again, g.due)}, nil
}

func (r *Reconciler) jobWithoutLock(ctx context.Context, g *gathered, a asker) error {
	job, err := r.findJob(ctx, g, a.ref())
	if err == nil && job == nil {
		if a.mayHavePods() {
			_, err = r.strayEnded(ctx, g, a)
		}
		r.askers.gone(g.key, a.uid)
	}
	if err != nil || job == nil {
		return err
	}
	f := factsOf(job)
	if !f.waits() || a.ended || f.lock != g.key.Name {
		return nil
	}
	r.recall(ctx, g.key.Namespace)
	if r.told.news(job.UID, eventLockNotFound) {
		r.Events.Eventf(job, nil, corev1.EventTypeWarning, eventLockNotFound, "Wait",
			"Waits for DistLock %s, which does not exist in this namespace: create it", g.key.Name)
		r.settle(*g, job.UID, false)
	}
	if f.mayRun() {
		return r.stopLockless(ctx, job)
	}
	return nil
}

func (r *Reconciler) claimWithoutLock(ctx context.Context, g *gathered, a asker) error {
	claim, err := r.findClaim(ctx, g, a.ref())
	if err != nil || claim == nil {
		return err
	}
	r.settle(*g, claim.UID, false)
	return r.refuseClaim(ctx, claim, v1alpha1.ReasonLockNotFound, fmt.Sprintf("there is no DistLock %s in this namespace: create it", g.key.Name))
}

// stopLockless suspends a Job that runs although its lock does not exist, if it
// still does.
func (r *Reconciler) stopLockless(ctx context.Context, job *batchv1.Job) error {
	live, err := r.liveJob(ctx, jobRef(job), job.Namespace)
	if err != nil || live == nil || !factsOf(live).mayRun() {
		return err
	}
	r.metrics.countIntruder(live.UID)
	return r.stopIntruder(ctx, live)
}

// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=distlocks.distlock.dev,verbs=get

// uninstalled reports whether there are no locks at all any more. Whoever deletes
// the CRD, perhaps with everything else and while this still runs, deletes the locks
// past every guard, and does not mean to stop the Jobs that run. The locks go only
// after the CRD's deletionTimestamp was set, so whoever missed one sees it here.
func (r *Reconciler) uninstalled(ctx context.Context) (bool, error) {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	err := r.Live.Get(ctx, types.NamespacedName{Name: "distlocks." + v1alpha1.GroupVersion.Group}, crd)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the CRD of DistLock: %w", err)
	}
	return crd.DeletionTimestamp != nil, nil
}
