package controllers

import (
	"fmt"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// jobFacts is all that the controller reads off a Job, and comparable: a change
// of anything else wakes nobody.
type jobFacts struct {
	lock, mode, permits string // as annotated
	token               string // on the pod template: of the hold it was resumed for last
	queuedAt            string
	revoked             string // token of the revoked hold that it gave up last
	suspended           bool   // spec.suspend
	stopped             bool   // suspended, and the Job controller has acknowledged it
	started             bool   // not suspended, and the Job controller has acknowledged it
	draining            bool   // suspended, and the Job controller still counts pods
	finished            bool   // Complete or Failed
	deleted             bool   // has a deletionTimestamp
	single              bool   // the success of one pod completes it
	succeeded           bool   // the Job controller has seen a pod of it succeed
}

func factsOf(job *batchv1.Job) jobFacts {
	f := jobFacts{
		lock:      job.Annotations[v1alpha1.LockAnnotation],
		mode:      job.Annotations[v1alpha1.ModeAnnotation],
		permits:   job.Annotations[v1alpha1.PermitsAnnotation],
		queuedAt:  job.Annotations[v1alpha1.QueuedAtAnnotation],
		revoked:   job.Annotations[v1alpha1.RevokedTokenAnnotation],
		token:     job.Spec.Template.Annotations[v1alpha1.TokenAnnotation],
		suspended: ptr.Deref(job.Spec.Suspend, false),
		finished:  hasCondition(job, batchv1.JobComplete) || hasCondition(job, batchv1.JobFailed),
		deleted:   job.DeletionTimestamp != nil,
		single: ptr.Deref(job.Spec.Completions, 0) == 1 && job.Spec.SuccessPolicy == nil &&
			ptr.Deref(job.Spec.CompletionMode, batchv1.NonIndexedCompletion) == batchv1.NonIndexedCompletion,
		succeeded: job.Status.Succeeded > 0 ||
			(job.Status.UncountedTerminatedPods != nil && len(job.Status.UncountedTerminatedPods.Succeeded) > 0),
	}
	suspendedTrue := hasCondition(job, batchv1.JobSuspended)
	f.stopped = f.suspended && (suspendedTrue || job.Status.StartTime == nil)
	f.draining = f.suspended && (job.Status.Active > 0 || ptr.Deref(job.Status.Terminating, 0) > 0)
	f.started = !f.suspended && job.Status.StartTime != nil && !suspendedTrue
	return f
}

func hasCondition(job *batchv1.Job, t batchv1.JobConditionType) bool {
	for _, c := range job.Status.Conditions {
		if c.Type == t {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// waits reports whether the Job wants the lock, or runs without it.
func (f jobFacts) waits() bool { return !f.finished && !f.deleted }

// mayRun reports whether the Job may have pods, or get some.
func (f jobFacts) mayRun() bool { return f.waits() && (!f.stopped || f.draining) }

// bears reports whether the Job was resumed for this hold.
func (f jobFacts) bears(h v1alpha1.Hold) bool { return f.token == tokenText(h) }

// gaveUp reports whether the Job was taken back for this hold: no resume that was
// decided before can reach it.
func (f jobFacts) gaveUp(h v1alpha1.Hold) bool { return f.revoked == tokenText(h) }

func tokenText(h v1alpha1.Hold) string { return strconv.FormatInt(h.FencingToken, 10) }

// canResume reports whether the Job waits for nothing but to be resumed for this
// hold.
func (f jobFacts) canResume(h v1alpha1.Hold) bool {
	return f.waits() && h.RevokeTime == nil && f.stopped && !f.bears(h)
}

// strays reports whether the Job does not do what the hold stands for: it was
// suspended after it was resumed for it, or runs without having been.
func (f jobFacts) strays(h v1alpha1.Hold) bool {
	return f.waits() && f.suspended == f.bears(h)
}

// yielded reports whether the Job gave up a revoked hold, is suspended for it, and
// the Job controller knows.
func (f jobFacts) yielded(h v1alpha1.Hold) bool {
	return h.RevokeTime != nil && f.gaveUp(h) && f.stopped
}

func jobOwner(job *batchv1.Job) string { return "job/" + job.Name + "/" + string(job.UID) }

func jobRef(job *batchv1.Job) *v1alpha1.ObjectRef {
	return &v1alpha1.ObjectRef{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID}
}

// jobRequest is what a Job asks for. It fails, naming the annotation, where the
// gate let a bad value through. running: it may have pods all the same.
func jobRequest(job *batchv1.Job, f jobFacts, spec v1alpha1.DistLockSpec, seen int64, running bool) (protocol.Request, error) {
	var mode *v1alpha1.Mode
	switch m := v1alpha1.Mode(f.mode); m {
	case "":
	case v1alpha1.Exclusive, v1alpha1.Shared:
		mode = &m
	default:
		return protocol.Request{}, fmt.Errorf("annotation %s: %q is neither Exclusive nor Shared", v1alpha1.ModeAnnotation, f.mode)
	}
	var permits *int32
	if f.permits != "" {
		n, err := strconv.ParseInt(f.permits, 10, 32)
		if err != nil || n < 1 {
			return protocol.Request{}, fmt.Errorf("annotation %s: %q is not a number of permits", v1alpha1.PermitsAnnotation, f.permits)
		}
		permits = new(int32(n))
	}
	return protocol.Request{
		Waiter:  protocol.NewWaiter(spec, jobOwner(job), mode, permits, nil, jobRef(job)),
		Since:   queuedSince(job, f),
		Seen:    seen,
		Running: running,
	}, nil
}

// queuedSince is when the Job joined the queue: when it was created, or requeued
// after a revocation.
func queuedSince(job *batchv1.Job, f jobFacts) time.Time {
	if t, err := time.Parse(metav1.RFC3339Micro, f.queuedAt); err == nil {
		return t
	}
	return job.CreationTimestamp.Time
}
