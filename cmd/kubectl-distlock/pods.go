package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

const (
	// suspendTime is how long the controller, and then the Job controller, may
	// take to suspend a Job whose hold was revoked.
	suspendTime = time.Minute
	// shortGrace is the grace period in seconds with which pods are told to end
	// now. Not 0: that would remove the pod from the API while it still runs.
	shortGrace = 1
)

var errNotSuspended = errors.New("the Job was not suspended")

// shortenPods ends the pods of a Job whose hold was revoked soon: once it is
// suspended, so that no other pod takes their place, and never by force.
func (o *revokeOptions) shortenPods(ctx context.Context, c *cluster, h v1alpha1.Hold) error {
	there, err := c.awaitSuspended(ctx, h)
	if errors.Is(err, errNotSuspended) {
		return exitWith(exitFailed, "Job %q was not suspended within %s, so its pods were left alone: see whether the controller runs; the hold stays revoked",
			h.Ref.Name, suspendTime)
	}
	if err != nil {
		return err
	}
	if !there {
		o.say("Job %q is gone or has ended; the lock goes on when its last pods have", h.Ref.Name)
		return nil
	}
	pods := &corev1.PodList{}
	err = c.List(ctx, pods, client.InNamespace(c.namespace), client.MatchingLabels{batchv1.ControllerUidLabel: string(h.Ref.UID)},
		client.MatchingFieldsSelector{Selector: fields.AndSelectors(
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)))})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		if err := o.shorten(ctx, c, &pods.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

func (o *revokeOptions) shorten(ctx context.Context, c *cluster, pod *corev1.Pod) error {
	if g := pod.DeletionGracePeriodSeconds; g != nil && *g <= shortGrace {
		return nil
	}
	err := c.Delete(ctx, pod, client.GracePeriodSeconds(shortGrace), client.Preconditions{UID: ptr.To(pod.UID)})
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	return lines(o.Out, fmt.Sprintf("pod/%s: told to end within %d s (node %s)", pod.Name, shortGrace, orNone(pod.Spec.NodeName)))
}

// awaitSuspended returns when the Job of a revoked hold is suspended for it, and
// its Job controller knows, so that no pod of it is under way. It reports whether
// there is such a Job that has not ended.
func (c *cluster) awaitSuspended(ctx context.Context, h v1alpha1.Hold) (there bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, suspendTime, errNotSuspended)
	defer cancel()
	err = versions(ctx, c, &batchv1.JobList{}, func(s state) error {
		if s.listed && s.count == 0 || s.gone {
			there = false
			return errDone
		}
		job, ok := s.object.(*batchv1.Job)
		if !ok {
			return nil
		}
		if there = job.UID == h.Ref.UID && jobWaits(job); !there || suspendedFor(job, h) {
			return errDone
		}
		return nil
	}, client.InNamespace(c.namespace), client.MatchingFields{"metadata.name": h.Ref.Name})
	return there, err
}

func suspendedFor(job *batchv1.Job, h v1alpha1.Hold) bool {
	acknowledged := job.Status.StartTime == nil || slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobSuspended && c.Status == corev1.ConditionTrue
	})
	return job.Annotations[v1alpha1.RevokedTokenAnnotation] == tokenText(h) && ptr.Deref(job.Spec.Suspend, false) && acknowledged
}
