package controllers_test

import (
	"encoding/json"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// What a change of a lock's spec means while it is held (fault 27):
//
//   - No hold ends, and none changes its mode, permits, token or lease.
//   - capacity: binds the next grant. Lower than what is held, or less than that:
//     nobody new gets in until enough holders have left. Added or removed: the
//     holders keep their mode, those that wait and name none get the new one.
//   - leaseDurationSeconds: is for requests to come; a hold keeps its own lease.
//   - minHoldSeconds, lockDelaySeconds: what they are when a hold ends counts. A
//     closing that has begun lasts as long as it was written.
//   - maxHoldSeconds: what it is now counts, from when the controller saw the hold
//     first, not from the change: a hold that is older is revoked at once.

func TestFault27FewerPermitsThanAreHeld(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "licences", v1alpha1.DistLockSpec{Capacity: new(int32(3))})
	var jobs []*batchv1.Job
	var pods []*corev1.Pod
	for _, name := range []string{"one", "two", "three"} {
		jobs = append(jobs, jobOn(t, ns, name, "licences"))
		pods = append(pods, podOf(t, jobs[len(jobs)-1]))
	}
	four := jobOn(t, ns, "four", "licences")
	before := untilQueued(t, ns, "licences", 1)
	setSpec(t, ns, "licences", map[string]any{"capacity": 1})

	after := look(t, ns, "licences")
	for _, j := range jobs {
		if was, is := holderOf(before, j), holderOf(after, j); is == nil || is.FencingToken != was.FencingToken || is.RevokeTime != nil {
			t.Errorf("the hold of %s was %+v, is %+v", j.Name, was, is)
		}
	}
	for i := range 2 {
		setPhase(t, pods[i], corev1.PodSucceeded)
		untilLock(t, ns, "licences", "let go by one", func(l *v1alpha1.DistLock) bool { return holderOf(l, jobs[i]) == nil })
		if l := look(t, ns, "licences"); holderOf(l, four) != nil {
			t.Fatalf("four got in while one permit of one was held: %+v", l.Status)
		}
	}
	setPhase(t, pods[2], corev1.PodSucceeded)
	untilLock(t, ns, "licences", "held by four", heldBy(four))
}

func TestFault27MorePermitsLetTheNextInAtOnce(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "licences", v1alpha1.DistLockSpec{Capacity: new(int32(1))})
	one := jobOn(t, ns, "one", "licences")
	podOf(t, one)
	two := jobOn(t, ns, "two", "licences")
	untilQueued(t, ns, "licences", 1)
	setSpec(t, ns, "licences", map[string]any{"capacity": 2})
	untilLock(t, ns, "licences", "held by both", func(l *v1alpha1.DistLock) bool { return holderOf(l, one) != nil && holderOf(l, two) != nil })
}

func TestFault27TheCapacityIsTakenAway(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "licences", v1alpha1.DistLockSpec{Capacity: new(int32(2))})
	one, two := jobOn(t, ns, "one", "licences"), jobOn(t, ns, "two", "licences")
	pods := []*corev1.Pod{podOf(t, one), podOf(t, two)}
	three, four := jobOn(t, ns, "three", "licences"), jobOn(t, ns, "four", "licences")
	untilQueued(t, ns, "licences", 2)
	setSpec(t, ns, "licences", map[string]any{"capacity": nil})

	untilLock(t, ns, "licences", "waited for exclusively", func(l *v1alpha1.DistLock) bool {
		return len(l.Status.Queue) == 2 && l.Status.Queue[0].Mode == v1alpha1.Exclusive && l.Status.Queue[1].Mode == v1alpha1.Exclusive
	})
	setPhase(t, pods[0], corev1.PodSucceeded)
	untilLock(t, ns, "licences", "held by two alone", heldBy(two))
	if l := look(t, ns, "licences"); l.Status.Holders[0].Mode != v1alpha1.Shared || !heldBy(two)(l) {
		t.Errorf("held by %+v", l.Status.Holders)
	}
	setPhase(t, pods[1], corev1.PodSucceeded)
	untilLock(t, ns, "licences", "held by three alone", heldBy(three))
	setPhase(t, podOf(t, three), corev1.PodSucceeded)
	untilLock(t, ns, "licences", "held by four alone", heldBy(four))
}

func TestFault27ACapacityIsGiven(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "licences", v1alpha1.DistLockSpec{})
	one := jobOn(t, ns, "one", "licences")
	pod := podOf(t, one)
	two, three := jobOn(t, ns, "two", "licences"), jobOn(t, ns, "three", "licences")
	untilQueued(t, ns, "licences", 2)
	setSpec(t, ns, "licences", map[string]any{"capacity": 2})

	l := untilLock(t, ns, "licences", "waited for by Shared requests", func(l *v1alpha1.DistLock) bool {
		return len(l.Status.Queue) == 2 && l.Status.Queue[0].Mode == v1alpha1.Shared && l.Status.Queue[1].Mode == v1alpha1.Shared
	})
	if !heldBy(one)(l) || l.Status.Holders[0].Mode != v1alpha1.Exclusive {
		t.Errorf("held by %+v", l.Status.Holders)
	}
	setPhase(t, pod, corev1.PodSucceeded)
	untilLock(t, ns, "licences", "held by both", func(l *v1alpha1.DistLock) bool { return holderOf(l, two) != nil && holderOf(l, three) != nil })
}

func TestFault27AHoldKeepsItsLease(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	clk := &steppedClock{}
	startController(t, ns, readsClock(clk))
	for name, leases := range map[string]struct{ before, after int32 }{"shorter": {60, 3}, "longer": {60, 3600}} {
		h := newHolder(t, ns, name, leases.before)
		look(t, ns, name)
		setSpec(t, ns, name, map[string]any{"leaseDurationSeconds": leases.after})
		clk.step(50 * time.Second)
		if l := look(t, ns, name); len(l.Status.Holders) != 1 || l.Status.FencingToken != h.token {
			t.Errorf("%s: the hold ended before its lease: %+v", name, l.Status)
		}
		clk.step(time.Minute)
		untilClaim(t, claimOn(t, ns, "after-"+name, name, nil), v1alpha1.ReasonGranted)
	}
}

func TestFault27MinHoldSecondsCountAsTheyAreWhenTheHoldEnds(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	clk := &steppedClock{}
	startController(t, ns, readsClock(clk))
	lock := lockIn(t, ns, "lowered", v1alpha1.DistLockSpec{MinHoldSeconds: 3600})
	first := untilClaim(t, claimOn(t, ns, "a", "lowered", nil), v1alpha1.ReasonGranted)
	setSpec(t, ns, "lowered", map[string]any{"minHoldSeconds": 0})
	must(t, admin.Delete(t.Context(), first))
	next := untilClaim(t, claimOn(t, ns, "b", "lowered", nil), v1alpha1.ReasonGranted)
	neverClosed(t, lock, next)

	lockIn(t, ns, "raised", v1alpha1.DistLockSpec{})
	first = untilClaim(t, claimOn(t, ns, "c", "raised", nil), v1alpha1.ReasonGranted)
	setSpec(t, ns, "raised", map[string]any{"minHoldSeconds": 3600})
	must(t, admin.Delete(t.Context(), first))
	untilLock(t, ns, "raised", "closed", isClosed)
	setSpec(t, ns, "raised", map[string]any{"minHoldSeconds": 0}) // too late for the closing that has begun
	if l := look(t, ns, "raised"); !isClosed(l) {
		t.Errorf("the lock was opened: %+v", l.Status)
	}
	clk.step(time.Hour)
	untilClaim(t, claimOn(t, ns, "d", "raised", nil), v1alpha1.ReasonGranted)
}

func TestFault27LockDelaySecondsCountAsTheyAreWhenTheHoldExpires(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	clk := &steppedClock{}
	startController(t, ns, readsClock(clk))
	newHolder(t, ns, "service", 3600)
	look(t, ns, "service")
	setSpec(t, ns, "service", map[string]any{"lockDelaySeconds": 1800})
	clk.step(2 * time.Hour)
	untilClaim(t, claimOn(t, ns, "early", "service", nil), v1alpha1.ReasonWaiting)
	if l := untilLock(t, ns, "service", "closed", isClosed); len(l.Status.Holders) > 0 {
		t.Errorf("closed while held: %+v", l.Status)
	}
	clk.step(30 * time.Minute)
	untilClaim(t, claimOn(t, ns, "poke", "service", nil), v1alpha1.ReasonWaiting)
	untilLock(t, ns, "service", "held by the first that waited", func(l *v1alpha1.DistLock) bool { return len(l.Status.Holders) == 1 })
}

func TestFault27MaxHoldSecondsCountFromWhenTheHoldWasSeenFirst(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	clk := &steppedClock{}
	startController(t, ns, readsClock(clk))
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{MaxHoldSeconds: new(int32(60))})
	claim := untilClaim(t, claimOn(t, ns, "a", "nightly", nil), v1alpha1.ReasonGranted)
	for _, seconds := range []any{3600, nil} { // raised, taken away
		setSpec(t, ns, "nightly", map[string]any{"maxHoldSeconds": seconds})
		clk.step(10 * time.Minute)
		if l := look(t, ns, "nightly"); l.Status.Holders[0].RevokeTime != nil {
			t.Fatalf("revoked with maxHoldSeconds %v: %+v", seconds, l.Status)
		}
	}
	setSpec(t, ns, "nightly", map[string]any{"maxHoldSeconds": 600})
	untilClaim(t, claim, v1alpha1.ReasonRevoked)
}

func isClosed(l *v1alpha1.DistLock) bool { return l.Status.ClosedSeconds > 0 }

// setSpec changes fields of a lock's spec; nil takes one away.
func setSpec(t *testing.T, ns, lock string, fields map[string]any) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": fields})
	must(t, err)
	l := &v1alpha1.DistLock{}
	l.Namespace, l.Name = ns, lock
	must(t, admin.Patch(t.Context(), l, client.RawPatch(types.MergePatchType, patch)))
}
