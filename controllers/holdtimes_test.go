package controllers_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// The order is that of the stored versions.
func TestAJobOverMaxHoldSecondsIsRevokedFirstThenSuspendedAndEndsItsHoldAfterItsPods(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lock := lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{MaxHoldSeconds: new(int32(2))})
	a := jobOn(t, ns, "a", "nightly")
	pod := podOf(t, a)
	b, c := jobOn(t, ns, "b", "nightly"), jobOn(t, ns, "c", "nightly")

	untilJob(t, ns, "a", "known to be suspended", isStopped) // nothing wakes the controller but the deadline
	if l := look(t, ns, "nightly"); !heldBy(a)(l) {
		t.Fatalf("the hold ended before the pod of a did: %+v", l.Status)
	}
	setPhase(t, pod, corev1.PodFailed)
	ended := untilPod(t, pod, "ended", isTerminal)
	locks := lockVersions(t, lock, heldBy(b))
	jobs := versions(t, a, &batchv1.JobList{}, func(j *batchv1.Job) bool { return j.Annotations[v1alpha1.QueuedAtAnnotation] != "" })

	revoked := locks[slices.IndexFunc(locks, func(l *v1alpha1.DistLock) bool {
		h := holderOf(l, a)
		return h != nil && h.RevokeTime != nil
	})]
	requeued, next := jobs[len(jobs)-1], locks[len(locks)-1]
	if !suspended(requeued) || suspended(jobs[len(jobs)-2]) {
		t.Error("a was suspended and put at the end of the queue in two writes")
	}
	order := []int64{version(t, revoked), version(t, requeued), version(t, ended), version(t, next)}
	if !slices.IsSorted(order) {
		t.Errorf("revokeTime, suspension, the pod's end and the end of the hold were written at %d", order)
	}
	if h := holderOf(revoked, a); h.RevokeTime.Sub(h.AcquireTime.Time) < 2*time.Second {
		t.Errorf("revoked after %v", h.RevokeTime.Sub(h.AcquireTime.Time))
	}
	var waiting []string
	for _, w := range next.Status.Queue {
		if w.Ref.Kind == "Job" {
			waiting = append(waiting, w.Owner)
		}
	}
	if !slices.Equal(waiting, []string{ownerOf(c), ownerOf(a)}) {
		t.Errorf("behind b wait %v, want c and a", waiting)
	}
}

func TestAHoldUnderMaxHoldSecondsIsLeftAlone(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	clk := &steppedClock{}
	startController(t, ns, readsClock(clk))
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{MaxHoldSeconds: new(int32(3600))})
	claim := untilClaim(t, claimOn(t, ns, "a", "nightly", nil), v1alpha1.ReasonGranted)
	clk.step(50 * time.Minute)
	if l := look(t, ns, "nightly"); len(l.Status.Holders) != 1 || l.Status.Holders[0].RevokeTime != nil {
		t.Fatalf("after fifty minutes of an hour: %+v", l.Status)
	}
	clk.step(10 * time.Minute)
	look(t, ns, "nightly")
	untilClaim(t, claim, v1alpha1.ReasonRevoked)
}

func TestMinHoldSecondsKeepsTheLockClosedAfterAShortRun(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lock := lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{MinHoldSeconds: 2})
	first := untilClaim(t, claimOn(t, ns, "first", "nightly", nil), v1alpha1.ReasonGranted)
	b := jobOn(t, ns, "b", "nightly")
	untilQueued(t, ns, "nightly", 1)
	must(t, admin.Delete(t.Context(), first))

	all := lockVersions(t, lock, heldBy(b))
	granted := grantTime(t, all, "claim/"+string(first.UID))
	if pause := grantTime(t, all, ownerOf(b)).Sub(granted); pause < 2*time.Second {
		t.Errorf("granted again after %v", pause)
	}
	closedUntilGranted(t, all)
}

func TestMinHoldSecondsClosesNothingAfterALongRun(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	clk := &steppedClock{}
	startController(t, ns, readsClock(clk))
	lock := lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{MinHoldSeconds: 3600})
	first := untilClaim(t, claimOn(t, ns, "first", "nightly", nil), v1alpha1.ReasonGranted)
	next := untilClaim(t, claimOn(t, ns, "next", "nightly", nil), v1alpha1.ReasonWaiting)
	clk.step(time.Hour)
	must(t, admin.Delete(t.Context(), first))
	untilClaim(t, next, v1alpha1.ReasonGranted)
	neverClosed(t, lock, next)
}

func TestLockDelaySecondsCountsAfterAnExpiry(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lock := lockIn(t, ns, "service", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3, LockDelaySeconds: 2})
	began := time.Now()
	h := &holder{ns: ns, lock: "service", lease: 3}
	h.takeAnew(t)
	b := jobOn(t, ns, "b", "service")
	all := lockVersions(t, lock, heldBy(b))
	if lease := 3 * time.Second; time.Since(began) < lease+protocol.Margin(lease)+2*time.Second {
		t.Errorf("granted %v after the hold began", time.Since(began))
	}
	closedUntilGranted(t, all)
}

func TestLockDelaySecondsDoesNotCountAfterARelease(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lock := lockIn(t, ns, "service", v1alpha1.DistLockSpec{LockDelaySeconds: 3600})
	h := &holder{ns: ns, lock: "service", lease: 3600}
	h.takeAnew(t)
	next := untilClaim(t, claimOn(t, ns, "next", "service", nil), v1alpha1.ReasonWaiting)
	must(t, h.write(t.Context(), func(s protocol.State) (protocol.State, error) {
		return s.Release(h.owner, h.token, 0, time.Now())
	}))
	untilClaim(t, next, v1alpha1.ReasonGranted)
	bound := untilClaim(t, claimOn(t, ns, "bound", "service", nil), v1alpha1.ReasonWaiting)
	must(t, admin.Delete(t.Context(), next)) // the controller releases this one
	untilClaim(t, bound, v1alpha1.ReasonGranted)
	neverClosed(t, lock, bound)
}

// closedUntilGranted checks that between the two holds the lock was closed, and
// that the write that opened it granted it.
func closedUntilGranted(t *testing.T, all []*v1alpha1.DistLock) {
	t.Helper()
	last := all[len(all)-1]
	before := all[len(all)-2]
	if before.Status.ClosedSeconds == 0 || len(before.Status.Holders) > 0 {
		t.Errorf("before the grant: closed for %d s, held by %+v", before.Status.ClosedSeconds, before.Status.Holders)
	}
	if last.Status.ClosedSeconds != 0 {
		t.Errorf("granted while closed for %d s", last.Status.ClosedSeconds)
	}
}

// neverClosed checks that up to a claim's grant the lock was never closed.
func neverClosed(t *testing.T, l *v1alpha1.DistLock, granted *v1alpha1.LockClaim) {
	t.Helper()
	for _, v := range lockVersions(t, l, func(l *v1alpha1.DistLock) bool {
		return len(l.Status.Holders) == 1 && l.Status.Holders[0].Owner == "claim/"+string(granted.UID)
	}) {
		if v.Status.ClosedSeconds > 0 {
			t.Errorf("closed for %d s at version %s", v.Status.ClosedSeconds, v.ResourceVersion)
		}
	}
}

// grantTime is when an owner's first hold was granted, by the granter's clock.
func grantTime(t *testing.T, all []*v1alpha1.DistLock, owner string) time.Time {
	t.Helper()
	for _, l := range all {
		for _, h := range l.Status.Holders {
			if h.Owner == owner {
				return h.AcquireTime.Time
			}
		}
	}
	t.Fatalf("%s was never granted the lock", owner)
	return time.Time{}
}

func version(t *testing.T, o client.Object) int64 {
	t.Helper()
	n, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	must(t, err)
	return n
}
