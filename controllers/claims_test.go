package controllers_test

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

func TestAClaimWaitsIsGrantedAndGivesTheLockOnWhenItIsDeleted(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	first := untilClaim(t, claimOn(t, ns, "first", "nightly", nil), v1alpha1.ReasonGranted)
	second := untilClaim(t, claimOn(t, ns, "second", "nightly", nil), v1alpha1.ReasonWaiting)
	third := untilClaim(t, claimOn(t, ns, "third", "nightly", nil), v1alpha1.ReasonWaiting)
	must(t, admin.Delete(t.Context(), second)) // gives up its place
	untilQueued(t, ns, "nightly", 1)
	must(t, admin.Delete(t.Context(), first))
	third = untilClaim(t, third, v1alpha1.ReasonGranted)
	if third.Status.FencingToken <= first.Status.FencingToken {
		t.Errorf("token %d after token %d", third.Status.FencingToken, first.Status.FencingToken)
	}
	must(t, admin.Delete(t.Context(), third))
	untilFree(t, ns, "nightly")
}

func TestARevokedClaimIsToldAndKeepsTheLockUntilItIsDeleted(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	first := untilClaim(t, claimOn(t, ns, "first", "nightly", nil), v1alpha1.ReasonGranted)
	second := untilClaim(t, claimOn(t, ns, "second", "nightly", nil), v1alpha1.ReasonWaiting)
	revoke(t, ns, "nightly", "claim/"+string(first.UID))
	untilClaim(t, first, v1alpha1.ReasonRevoked)
	untilEvent(t, ns, "LockRevoked")
	if l := untilQueued(t, ns, "nightly", 1); l.Status.Holders[0].FencingToken != first.Status.FencingToken {
		t.Errorf("held with token %d, want %d", l.Status.Holders[0].FencingToken, first.Status.FencingToken)
	}
	must(t, admin.Delete(t.Context(), first))
	untilClaim(t, second, v1alpha1.ReasonGranted)
}

func TestAClaimWhoseHoldIsGoneIsToldThatItLostIt(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	claim := untilClaim(t, claimOn(t, ns, "claim", "nightly", nil), v1alpha1.ReasonGranted)
	h := &holder{ns: ns, lock: "nightly", lease: 3600}
	h.takeAnew(t) // an administrator's rough hand
	untilClaim(t, claim, v1alpha1.ReasonLost)
}

func TestALeasedClaimIsFinishedWhenItsHoldExpires(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	claim := claimOn(t, ns, "killed", "nightly", new(int32(3)))
	owner := "claim/" + string(claim.UID)
	held := untilLock(t, ns, "nightly", "held by the claim", func(l *v1alpha1.DistLock) bool {
		return len(l.Status.Holders) == 1 && l.Status.Holders[0].Owner == owner
	})
	w, err := admin.Watch(t.Context(), &v1alpha1.LockClaimList{}, client.InNamespace(ns))
	must(t, err)
	defer w.Stop()
	for e := range w.ResultChan() {
		if e.Type == watch.Deleted {
			break
		}
	}
	l := untilFree(t, ns, "nightly")
	if l.Status.FencingToken != held.Status.FencingToken {
		t.Errorf("the claim was granted again: token %d after %d", l.Status.FencingToken, held.Status.FencingToken)
	}
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); !apierrors.IsNotFound(err) {
		t.Errorf("the claim: %v, want not found", err)
	}
}

func TestALeasedClaimThatWasReleasedIsNotQueuedAgainBeforeItsHolderDeletesIt(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	claim := claimOn(t, ns, "released", "nightly", new(int32(3600)))
	h := &holder{ns: ns, lock: "nightly", owner: "claim/" + string(claim.UID)}
	h.token = untilLock(t, ns, "nightly", "held by the claim", func(l *v1alpha1.DistLock) bool {
		return len(l.Status.Holders) == 1 && l.Status.Holders[0].Owner == h.owner
	}).Status.FencingToken
	must(t, h.write(t.Context(), func(s protocol.State) (protocol.State, error) {
		return s.Release(h.owner, h.token, time.Minute, time.Now())
	}))
	next := untilClaim(t, claimOn(t, ns, "next", "nightly", nil), v1alpha1.ReasonGranted)
	must(t, admin.Delete(t.Context(), next))
	untilFree(t, ns, "nightly")
}
