package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// chunk is how many objects a sweep reads at once.
const chunk = 500

// +kubebuilder:rbac:groups=batch,resources=cronjobs,verbs=list;patch

// takeInAll takes in the annotated Jobs and CronJobs that the policies missed, and
// returns how many it found. What cannot be written to keeps nothing else from it.
func (r *Reconciler) takeInAll(ctx context.Context, jobs []*batchv1.Job) (found int, err error) {
	took := func(o client.Object, n int, err error) {
		found += n
		if err != nil && ctx.Err() == nil {
			found++
			ctrl.LoggerFrom(ctx).WithName("sweep").Error(err, "taking in", "kind", kindOf(o), "namespace", o.GetNamespace(), "name", o.GetName())
			r.tellNotTakenIn(o, fmt.Errorf("%w; it is tried again", err))
		}
	}
	for _, job := range jobs {
		n, err := r.takeInJob(ctx, job)
		took(job, n, err)
	}
	err = r.eachAnnotated(ctx, &batchv1.CronJobList{}, func(o runtime.Object) {
		if cron := o.(*batchv1.CronJob); !inOrder(cron) {
			n, err := r.takeInCronJob(ctx, cron)
			took(cron, n, err)
		}
	})
	return found, err
}

func kindOf(o client.Object) string {
	if _, ok := o.(*batchv1.CronJob); ok {
		return "CronJob"
	}
	return "Job"
}

// eachAnnotated calls f for all objects of a kind that name a lock. It reads at the
// API server and in chunks: a cache of all Jobs would cost memory for each that
// wants no lock.
func (r *Reconciler) eachAnnotated(ctx context.Context, empty client.ObjectList, f func(runtime.Object)) error {
	for next := ""; ; {
		list := empty.DeepCopyObject().(client.ObjectList)
		if err := r.Live.List(ctx, list, client.Limit(chunk), client.Continue(next)); err != nil {
			return fmt.Errorf("listing all Jobs and CronJobs: %w", err)
		}
		err := meta.EachListItem(list, func(o runtime.Object) error {
			if m := o.(client.Object); m.GetDeletionTimestamp() == nil && lockAnnotation(m) != "" {
				f(o)
			}
			return nil
		})
		if next = list.GetContinue(); err != nil || next == "" {
			return err
		}
	}
}

// inOrder reports whether a CronJob is as distlock-gate-cronjobs and
// distlock-check-cronjobs leave it.
func inOrder(cron *batchv1.CronJob) bool {
	for _, key := range []string{v1alpha1.LockAnnotation, v1alpha1.ModeAnnotation, v1alpha1.PermitsAnnotation} {
		if v, ok := cron.Annotations[key]; ok && cron.Spec.JobTemplate.Annotations[key] != v {
			return false
		}
	}
	return cron.Spec.ConcurrencyPolicy != batchv1.ReplaceConcurrent
}

// takeInCronJob writes to a CronJob without changing anything: distlock-gate-cronjobs
// then hands its annotations down, as it does when a user applies it, and the
// checks refuse what they refuse then.
func (r *Reconciler) takeInCronJob(ctx context.Context, cron *batchv1.CronJob) (found int, err error) {
	now := cron.DeepCopy()
	err = r.Client.Patch(ctx, now, client.RawPatch(types.MergePatchType, []byte("{}")), client.DisableReadYourWritesConsistency)
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case apierrors.IsInvalid(err) || apierrors.IsForbidden(err):
		r.tellNotTakenIn(cron, err)
		return 0, nil
	case err != nil:
		return 0, err
	}
	if !inOrder(now) {
		return 1, nil // the policy is not in effect yet
	}
	r.Events.Eventf(now, nil, corev1.EventTypeWarning, eventTakenIn, "Gate",
		"Was annotated while DistLock's policies were not in effect; from now on its Jobs take DistLock %s", lockAnnotation(now))
	return 1, nil
}

// ungatedJobs are the annotated Jobs that the gate missed and that are not
// finished. Those that may have pods are in line when it returns, so that nobody is
// granted their lock beside them.
func (r *Reconciler) ungatedJobs(ctx context.Context) (jobs []*batchv1.Job, err error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(batchv1.SchemeGroupVersion.WithKind("JobList"))
	var errs []error
	err = r.eachAnnotated(ctx, list, func(o runtime.Object) {
		m := o.(*metav1.PartialObjectMetadata)
		if m.Labels[v1alpha1.GatedLabel] == "true" {
			return
		}
		job, err := r.liveJob(ctx, &v1alpha1.ObjectRef{Name: m.Name, UID: m.UID}, m.Namespace)
		errs = append(errs, err)
		if job == nil {
			return
		}
		f := factsOf(job)
		if !f.waits() || f.lock == "" {
			return
		}
		if refused := refusedByCheck(job); refused != nil {
			r.tellNotTakenIn(job, refused)
			return
		}
		if f.mayRun() {
			r.askers.put(lockOfJob(job), askerOfJob(job, f))
		}
		jobs = append(jobs, job)
	})
	return jobs, errors.Join(append(errs, err)...)
}

// takeInJob puts a Job behind its lock: with the label it comes into the cache, and
// is queued; if it runs, it is suspended when it has started, and until its pods
// have ended nobody is granted the lock (see confirmIntruder). Suspending it here
// could be before it has started, and then nothing would say later that no pod is
// under way. What the gate does to the pod template can no longer be done.
func (r *Reconciler) takeInJob(ctx context.Context, job *batchv1.Job) (found int, err error) {
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
