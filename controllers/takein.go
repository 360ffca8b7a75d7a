package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// chunk is how many objects' metadata a sweep reads at once.
const chunk = 500

// +kubebuilder:rbac:groups=batch,resources=cronjobs,verbs=list;patch

// takeInAll takes in the annotated CronJobs and Jobs that the policies missed, and
// returns how many it found. The CronJobs come first: the Jobs that they create
// from then on are gated.
func (r *Reconciler) takeInAll(ctx context.Context) (found int, err error) {
	err = r.eachAnnotated(ctx, "CronJobList", func(m *metav1.PartialObjectMetadata) error {
		n, err := r.takeInCronJob(ctx, m)
		found += n
		return err
	})
	if err != nil {
		return found, err
	}
	jobs, err := r.ungatedJobs(ctx)
	if err != nil {
		return found, err
	}
	for _, job := range jobs {
		n, err := r.takeInJob(ctx, job)
		found += n
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

// eachAnnotated calls f for the metadata of all objects of a kind that name a
// lock. It reads at the API server and in chunks: a cache of all Jobs would cost
// memory for each that wants no lock.
func (r *Reconciler) eachAnnotated(ctx context.Context, listKind string, f func(*metav1.PartialObjectMetadata) error) error {
	for next := ""; ; {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(batchv1.SchemeGroupVersion.WithKind(listKind))
		if err := r.Live.List(ctx, list, client.Limit(chunk), client.Continue(next)); err != nil {
			return fmt.Errorf("listing all of %s: %w", listKind, err)
		}
		for i := range list.Items {
			if m := &list.Items[i]; m.DeletionTimestamp == nil && lockAnnotation(m) != "" {
				if err := f(m); err != nil {
					return err
				}
			}
		}
		if next = list.Continue; next == "" {
			return nil
		}
	}
}

// takeInCronJob writes to a CronJob without changing anything: distlock-gate-cronjobs
// then hands its annotations down, as it does when a user applies it, and the
// checks refuse what they refuse then. Where the annotations are in place already,
// the API server stores nothing.
func (r *Reconciler) takeInCronJob(ctx context.Context, m *metav1.PartialObjectMetadata) (found int, err error) {
	cron := &batchv1.CronJob{ObjectMeta: m.ObjectMeta}
	err = r.Client.Patch(ctx, cron, client.RawPatch(types.MergePatchType, []byte("{}")), client.DisableReadYourWritesConsistency)
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case apierrors.IsInvalid(err) || apierrors.IsForbidden(err):
		r.tellNotTakenIn(&batchv1.CronJob{ObjectMeta: m.ObjectMeta}, err)
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("taking in CronJob %s/%s: %w", m.Namespace, m.Name, err)
	}
	if lockAnnotation(cron) != cron.Spec.JobTemplate.Annotations[v1alpha1.LockAnnotation] {
		return 1, nil // the policy is not in effect yet
	}
	if cron.Generation == m.Generation {
		return 0, nil
	}
	r.Events.Eventf(cron, nil, corev1.EventTypeWarning, eventTakenIn, "Gate",
		"Was annotated while DistLock's policies were not in effect; from now on its Jobs take DistLock %s", lockAnnotation(cron))
	return 1, nil
}

// ungatedJobs are the annotated Jobs that the gate missed and that are not
// finished. Those that may have pods come first: a Job that waits is granted the
// lock as soon as it is known, and by then those in its way must be known too.
func (r *Reconciler) ungatedJobs(ctx context.Context) ([]*batchv1.Job, error) {
	var jobs []*batchv1.Job
	err := r.eachAnnotated(ctx, "JobList", func(m *metav1.PartialObjectMetadata) error {
		if m.Labels[v1alpha1.GatedLabel] == "true" {
			return nil
		}
		job, err := r.liveJob(ctx, &v1alpha1.ObjectRef{Name: m.Name, UID: m.UID}, m.Namespace)
		if err == nil && job != nil && factsOf(job).waits() && factsOf(job).lock != "" {
			jobs = append(jobs, job)
		}
		return err
	})
	rank := func(job *batchv1.Job) int {
		if factsOf(job).mayRun() {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(jobs, func(a, b *batchv1.Job) int { return cmp.Compare(rank(a), rank(b)) })
	return jobs, err
}

// takeInJob puts a Job behind its lock: with the label it comes into the cache, and
// is queued; if it runs, it is suspended when it has started, and until its pods
// have ended nobody is granted the lock (see confirmIntruder). Suspending it here
// could be before it has started, and then nothing would say later that no pod is
// under way. What the gate does to the pod template can no longer be done.
func (r *Reconciler) takeInJob(ctx context.Context, job *batchv1.Job) (found int, err error) {
	if err := refusedByCheck(job); err != nil {
		r.tellNotTakenIn(job, err)
		return 0, nil
	}
	ops := jobPatch{
		{"test", "/metadata/uid", job.UID},
		{"test", "/metadata/annotations", job.Annotations},
		{"add", "/spec/podReplacementPolicy", batchv1.Failed},
	}
	taken := job.DeepCopy()
	if taken.Labels == nil {
		taken.Labels = map[string]string{}
		ops = append(ops, patchOp{"add", "/metadata/labels", taken.Labels})
	}
	taken.Labels[v1alpha1.GatedLabel] = "true"
	ops = append(ops, patchOp{"add", "/metadata/labels/" + pointerEscape.Replace(v1alpha1.GatedLabel), "true"})
	err = r.patchJob(ctx, taken, ops)
	switch {
	case errors.Is(err, errChanged):
		return 1, nil // the next sweep sees how
	case apierrors.IsInvalid(err) || apierrors.IsForbidden(err):
		r.tellNotTakenIn(job, err)
		return 0, nil
	case err != nil:
		return 0, err
	}
	// Before Reconcile goes on; the watch may lag.
	r.askers.put(lockOfJob(job), askerOfJob(taken, factsOf(taken)))
	r.Events.Eventf(job, nil, corev1.EventTypeWarning, eventTakenIn, "Gate",
		"Was created while DistLock's policies were not in effect. From now on it is behind DistLock %s: if it runs, it is suspended and waits its turn. Its pods have no %s and no %s: to give them a token, delete the Job and create it anew",
		lockAnnotation(job), v1alpha1.LockNameEnv, v1alpha1.TokenEnv)
	return 1, nil
}

func (r *Reconciler) tellNotTakenIn(o client.Object, why error) {
	r.Events.Eventf(o, nil, corev1.EventTypeWarning, eventNotTakenIn, "Gate", "%s",
		shorten(fmt.Sprintf("Names DistLock %s, but is not behind it: %v", lockAnnotation(o), why)))
}

// refusedByCheck is why distlock-check-request would have refused a Job that it
// has not seen. Marks of DistLock's own are not looked at: they may be in order.
func refusedByCheck(job *batchv1.Job) error {
	const wayOut = "it runs without the lock; delete it and create it anew without"
	if ptr.Deref(job.Spec.ManualSelector, false) {
		return fmt.Errorf("%s spec.manualSelector, because its pods are found by the selector that is generated", wayOut)
	}
	if by := ptr.Deref(job.Spec.ManagedBy, batchv1.JobControllerName); by != batchv1.JobControllerName {
		return fmt.Errorf("%s spec.managedBy: %s is not known to start no pod of a suspended Job", wayOut, by)
	}
	for _, owner := range []string{"kueue.x-k8s.io/queue-name", "jobset.sigs.k8s.io/jobset-name"} {
		if _, ok := job.Labels[owner]; ok {
			return fmt.Errorf("%s the label %s: both would start and suspend it", wayOut, owner)
		}
	}
	if bad := validation.IsDNS1123Subdomain(lockAnnotation(job)); len(bad) > 0 {
		return fmt.Errorf("%s: %s", v1alpha1.LockAnnotation, strings.Join(bad, ", "))
	}
	_, err := jobRequest(job, factsOf(job), v1alpha1.DistLockSpec{}, 0, false)
	return err
}
