package controllers

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// findJob is the Job of a ref, from the cache where it is there, else live; nil
// where there is none with that uid.
func (r *Reconciler) findJob(ctx context.Context, g *gathered, ref *v1alpha1.ObjectRef) (*batchv1.Job, error) {
	if job := g.jobs[ref.UID]; job != nil {
		return job, nil
	}
	job, err := r.liveJob(ctx, ref, g.key.Namespace)
	if job != nil {
		g.jobs[job.UID] = job
	}
	return job, err
}

func (r *Reconciler) liveJob(ctx context.Context, ref *v1alpha1.ObjectRef, namespace string) (*batchv1.Job, error) {
	job := &batchv1.Job{}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, job)
	if apierrors.IsNotFound(err) || (err == nil && job.UID != ref.UID) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading Job %s/%s: %w", namespace, ref.Name, err)
	}
	return job, nil
}

// findClaim is the claim of a ref, from the cache where it is there, else live;
// nil where there is none with that uid.
func (r *Reconciler) findClaim(ctx context.Context, g *gathered, ref *v1alpha1.ObjectRef) (*v1alpha1.LockClaim, error) {
	if claim := g.claims[ref.UID]; claim != nil {
		return claim, nil
	}
	claim := &v1alpha1.LockClaim{}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: g.key.Namespace, Name: ref.Name}, claim)
	if apierrors.IsNotFound(err) || (err == nil && claim.UID != ref.UID) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading LockClaim %s/%s: %w", g.key.Namespace, ref.Name, err)
	}
	g.claims[claim.UID] = claim
	return claim, nil
}

// podsEnded reports, by a live LIST, that no pod of a Job may still run: a pod
// that is being deleted counts until its phase is terminal. Where pods are left,
// the watch on them says when to look again; those without the gate's label are
// not watched, so there the clock does.
func (r *Reconciler) podsEnded(ctx context.Context, g *gathered, job types.UID) (bool, error) {
	var pods corev1.PodList
	err := r.Live.List(ctx, &pods, client.InNamespace(g.key.Namespace), client.Limit(1),
		client.MatchingLabels{batchv1.ControllerUidLabel: string(job)},
		client.MatchingFieldsSelector{Selector: fields.AndSelectors(
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)))})
	if err != nil {
		return false, fmt.Errorf("listing the pods of the Job with uid %s: %w", job, err)
	}
	if len(pods.Items) == 0 {
		return true, nil
	}
	if pods.Items[0].Labels[v1alpha1.GatedLabel] == "" {
		g.due = soonest(g.due, graceAfterStart)
	}
	return false, nil
}
