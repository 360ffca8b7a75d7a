package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

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

// read reads from the cache, once it shows this process's own writes of that
// object. Where a watch is stuck it may not for long; from then on this reconcile
// reads at the API server.
func (r *Reconciler) read(ctx context.Context, g *gathered, key types.NamespacedName, o client.Object) error {
	if !g.lagging {
		cached, cancel := context.WithTimeout(ctx, cacheLag)
		defer cancel()
		err := r.Client.Get(cached, key, o)
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		g.lagging = true
	}
	return r.Live.Get(ctx, key, o)
}

// find reads an object, from the cache where it is there with that uid, else live;
// it reports whether there is one. Of one that the cache does not show no watch tells
// when it changes, or goes: the lock is then looked at again after a pause.
func (r *Reconciler) find(ctx context.Context, g *gathered, ref *v1alpha1.ObjectRef, o client.Object) (bool, error) {
	key := types.NamespacedName{Namespace: g.key.Namespace, Name: ref.Name}
	err := r.read(ctx, g, key, o)
	if apierrors.IsNotFound(err) || (err == nil && o.GetUID() != ref.UID) {
		found, err := r.findLive(ctx, g.key.Namespace, ref, o)
		if found {
			g.due = soonest(g.due, unwatchedPause)
		}
		return found, err
	}
	if err != nil {
		return false, fmt.Errorf("reading %s %s: %w", ref.Kind, key, err)
	}
	return true, nil
}

// findLive reads an object at the API server, and reports whether there is one
// with that uid.
func (r *Reconciler) findLive(ctx context.Context, namespace string, ref *v1alpha1.ObjectRef, o client.Object) (bool, error) {
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, o)
	if apierrors.IsNotFound(err) || (err == nil && o.GetUID() != ref.UID) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading %s %s/%s: %w", ref.Kind, namespace, ref.Name, err)
	}
	return true, nil
}

// findJob is the Job of a ref; nil where there is none with that uid.
func (r *Reconciler) findJob(ctx context.Context, g *gathered, ref *v1alpha1.ObjectRef) (*batchv1.Job, error) {
	if job := g.jobs[ref.UID]; job != nil {
		return job, nil
	}
	job := &batchv1.Job{}
	found, err := r.find(ctx, g, ref, job)
	if err != nil || !found {
		return nil, err
	}
	g.jobs[job.UID] = job
	return job, nil
}

func (r *Reconciler) liveJob(ctx context.Context, ref *v1alpha1.ObjectRef, namespace string) (*batchv1.Job, error) {
	job := &batchv1.Job{}
	found, err := r.findLive(ctx, namespace, ref, job)
	if err != nil || !found {
		return nil, err
	}
	return job, nil
}

// findClaim is the claim of a ref; nil where there is none with that uid.
func (r *Reconciler) findClaim(ctx context.Context, g *gathered, ref *v1alpha1.ObjectRef) (*v1alpha1.LockClaim, error) {
	if claim := g.claims[ref.UID]; claim != nil {
		return claim, nil
	}
	claim := &v1alpha1.LockClaim{}
	found, err := r.find(ctx, g, ref, claim)
	if err != nil || !found {
		return nil, err
	}
	g.claims[claim.UID] = claim
	return claim, nil
}

// hasSucceeded reports whether a Job that one pod's success completes has had it.
// The Job controller says Complete up to a second later. Not so once the Job is
// suspended: it does not count the pods that it then deletes, however they end.
func (r *Reconciler) hasSucceeded(ctx context.Context, job *batchv1.Job, f jobFacts) (bool, error) {
	if !f.single || f.succeeded || f.suspended || f.token == "" {
		return f.single && f.succeeded, nil
	}
	var pods corev1.PodList
	err := r.Client.List(ctx, &pods, client.InNamespace(job.Namespace), client.MatchingFields{succeededIndex: string(job.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return false, fmt.Errorf("listing the pods of Job %s/%s: %w", job.Namespace, job.Name, err)
	}
	return len(pods.Items) > 0, nil
}

// hasSucceededLive is hasSucceeded by a LIST at the API server.
func (r *Reconciler) hasSucceededLive(ctx context.Context, job *batchv1.Job) (bool, error) {
	if f := factsOf(job); !f.single || f.succeeded || f.suspended {
		return f.single && f.succeeded, nil
	}
	pods, err := r.podsOf(ctx, job.Namespace, job.UID, fields.OneTermEqualSelector("status.phase", string(corev1.PodSucceeded)), 0)
	return slices.ContainsFunc(pods, func(p corev1.Pod) bool { return metav1.IsControlledBy(&p, job) }), err
}

// podsEnded reports, by a live LIST, that no pod of a Job may still run: a pod
// that is being deleted counts until its phase is terminal. Where pods are left,
// the watch on them says when to look again; those without the gate's label are
// not watched, so there the clock does.
func (r *Reconciler) podsEnded(ctx context.Context, g *gathered, job types.UID) (bool, error) {
	pods, err := r.podsOf(ctx, g.key.Namespace, job, fields.AndSelectors(
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed))), 1)
	if err != nil || len(pods) == 0 {
		return err == nil, err
	}
	if pods[0].Labels[v1alpha1.GatedLabel] == "" {
		g.due = soonest(g.due, unwatchedPause)
	}
	return false, nil
}

// podsOf lists, live, the first pods with a Job's uid of those that a selector finds;
// all where limit is zero.
func (r *Reconciler) podsOf(ctx context.Context, namespace string, job types.UID, which fields.Selector, limit int64) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := r.Live.List(ctx, &pods, client.InNamespace(namespace), client.Limit(limit),
		client.MatchingLabels{batchv1.ControllerUidLabel: string(job)}, client.MatchingFieldsSelector{Selector: which})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of the Job with uid %s: %w", job, err)
	}
	return pods.Items, nil
}
