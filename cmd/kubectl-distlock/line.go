package main

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// waiter is one that waits for a lock.
type waiter struct {
	v1alpha1.Waiter
	since time.Time // when it joined the queue; zero: not known
}

// lineOf is who waits for a lock, the next one first: its stored queue, and behind
// it the Jobs and claims for which that has no room, first come, first served. As
// the controller alone knows in what order it first saw those of one second, such
// may stand otherwise there. Those that ask for more permits than the lock has do
// not wait: they come second.
func lineOf(l *v1alpha1.DistLock, jobs []batchv1.Job, claims []v1alpha1.LockClaim) (line, impossible []waiter) {
	s := protocol.State{Spec: l.Spec, Status: l.Status}
	var behind []waiter
	since := map[string]time.Time{}
	add := func(w v1alpha1.Waiter, joined time.Time) {
		since[w.Owner] = joined
		if _, holds := s.Hold(w.Owner); holds || slices.ContainsFunc(l.Status.Queue, ownedBy(w.Owner)) {
			return
		}
		if s.Impossible(w) {
			impossible = append(impossible, waiter{w, joined})
			return
		}
		behind = append(behind, waiter{w, joined})
	}
	for i := range jobs {
		if j := &jobs[i]; jobWaits(j) && j.Annotations[v1alpha1.LockAnnotation] == l.Name {
			add(jobWaiter(l.Spec, j), jobSince(j))
		}
	}
	for i := range claims {
		if c := &claims[i]; claimWaits(c) && c.Spec.LockName == l.Name {
			add(claimWaiter(l.Spec, c), c.CreationTimestamp.Time)
		}
	}
	slices.SortFunc(behind, func(a, b waiter) int {
		return cmp.Or(cmp.Compare(a.since.Unix(), b.since.Unix()), cmp.Compare(a.Owner, b.Owner))
	})
	for _, w := range l.Status.Queue {
		line = append(line, waiter{w, since[w.Owner]})
	}
	return append(line, behind...), impossible
}

func ownedBy(owner string) func(v1alpha1.Waiter) bool {
	return func(w v1alpha1.Waiter) bool { return w.Owner == owner }
}

// jobWaits reports whether a gated Job wants its lock, or has it.
func jobWaits(j *batchv1.Job) bool {
	return j.DeletionTimestamp == nil && !slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
}

func jobOwner(j *batchv1.Job) string { return "job/" + j.Name + "/" + string(j.UID) }

func jobWaiter(spec v1alpha1.DistLockSpec, j *batchv1.Job) v1alpha1.Waiter {
	var mode *v1alpha1.Mode
	if m := j.Annotations[v1alpha1.ModeAnnotation]; m != "" {
		mode = ptr.To(v1alpha1.Mode(m))
	}
	var permits *int32
	if n, err := strconv.ParseInt(j.Annotations[v1alpha1.PermitsAnnotation], 10, 32); err == nil {
		permits = ptr.To(int32(n))
	}
	ref := &v1alpha1.ObjectRef{APIVersion: "batch/v1", Kind: "Job", Name: j.Name, UID: j.UID}
	return protocol.NewWaiter(spec, jobOwner(j), mode, permits, nil, ref)
}

// jobSince is when a Job joined the queue: when it was created, or revoked.
func jobSince(j *batchv1.Job) time.Time {
	if t, err := time.Parse(metav1.RFC3339Micro, j.Annotations[v1alpha1.QueuedAtAnnotation]); err == nil {
		return t
	}
	return j.CreationTimestamp.Time
}

// claimWaits reports whether a claim wants its lock, or is a leased one that has
// it: the status of those does not say so.
func claimWaits(c *v1alpha1.LockClaim) bool {
	return c.DeletionTimestamp == nil && c.Status.FencingToken == 0
}

func claimWaiter(spec v1alpha1.DistLockSpec, c *v1alpha1.LockClaim) v1alpha1.Waiter {
	ref := &v1alpha1.ObjectRef{APIVersion: v1alpha1.GroupVersion.String(), Kind: "LockClaim", Name: c.Name, UID: c.UID}
	return protocol.NewWaiter(spec, protocol.ClaimOwner(c.UID), c.Spec.Mode, c.Spec.Permits, c.Spec.LeaseDurationSeconds, ref)
}

// gatedJobs are the Jobs behind locks, in one namespace or ("") in all.
func (c *cluster) gatedJobs(ctx context.Context, where client.InNamespace) ([]batchv1.Job, error) {
	jobs := &batchv1.JobList{}
	err := c.List(ctx, jobs, where, client.MatchingLabels{v1alpha1.GatedLabel: "true"})
	return jobs.Items, err
}

// claims are the LockClaims of one namespace, or ("") of all.
func (c *cluster) claims(ctx context.Context, where client.InNamespace, which ...client.ListOption) ([]v1alpha1.LockClaim, error) {
	claims := &v1alpha1.LockClaimList{}
	err := c.List(ctx, claims, append(which, where)...)
	return claims.Items, err
}

// grantedCondition is what a claim says of itself; nil: nothing yet.
func grantedCondition(c *v1alpha1.LockClaim) *metav1.Condition {
	return meta.FindStatusCondition(c.Status.Conditions, v1alpha1.GrantedCondition)
}
