package main

import (
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

func TestARevokedJobGivesTheLockToTheNext(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	jobOn(t, ns, "first", "ledger", "sleep 3600", 30)
	untilRuns(t, ns, "first")
	jobOn(t, ns, "second", "ledger", "sleep 3600", 30)
	untilLock(t, ns, "ledger", "waited for", waiting(1))
	distlock(t, ns, "revoke", "ledger").ends(t, 0, "revoked the hold of Job/first", "its pods have ended")
	untilLock(t, ns, "ledger", "held by the second, with the first behind it", func(l *v1alpha1.DistLock) bool {
		return heldBy("second")(l) && len(l.Status.Queue) == 1 && l.Status.Queue[0].Ref.Name == "first"
	})
}

// The order stays: each stored version of the pod that was told to end is seen,
// and the hold is there until the pod's kubelet said that it has ended.
func TestNowShortensTheGraceOfPodsAndDeletesNoneByForce(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	jobOn(t, ns, "first", "ledger", forever, 3600)
	untilRuns(t, ns, "first")
	jobOn(t, ns, "second", "ledger", "true", 0)
	untilLock(t, ns, "ledger", "waited for", waiting(1))
	w, err := admin.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(ns), client.MatchingLabels{batchv1.JobNameLabel: "first"})
	must(t, err)
	defer w.Stop()

	distlock(t, ns, "revoke", "ledger", "job/first", "--now").ends(t, 0, "told to end within 1 s")
	var ended bool
	for e := range w.ResultChan() {
		p := e.Object.(*corev1.Pod)
		if g := p.DeletionGracePeriodSeconds; g != nil && *g == 0 && p.Status.Phase == corev1.PodRunning {
			t.Errorf("the pod was deleted by force")
		}
		ended = ended || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
		if e.Type == watch.Deleted || ended {
			break
		}
	}
	if !ended {
		t.Error("the pod left without having ended")
	}
	untilLock(t, ns, "ledger", "no more held by the first", func(l *v1alpha1.DistLock) bool { return !heldBy("first")(l) })
}

func TestARevokedClaimIsToldSoAndStaysForItsOwner(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	claimOn(t, ns, "mine", "ledger")
	untilClaim(t, ns, "mine", v1alpha1.ReasonGranted)
	distlock(t, ns, "revoke", "ledger", "--now").ends(t, 0, "LockClaim/mine", "kubectl delete", "lockclaim mine")
	untilClaim(t, ns, "mine", v1alpha1.ReasonRevoked)
	l := untilLock(t, ns, "ledger", "held", heldBy("mine"))
	distlock(t, ns, "revoke", "ledger").ok(t)
	again := untilLock(t, ns, "ledger", "held", heldBy("mine"))
	if !again.Status.Holders[0].RevokeTime.Equal(l.Status.Holders[0].RevokeTime) {
		t.Error("the second revocation changed the hold")
	}
}

func TestOneOfSeveralHoldersIsChosen(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "builders", withCapacity(4))
	for _, name := range []string{"a", "b"} {
		claimOn(t, ns, name, "builders")
		untilClaim(t, ns, name, v1alpha1.ReasonGranted)
	}
	distlock(t, ns, "revoke", "builders").ends(t, exitUsage, "OWNER", "LockClaim/a", "LockClaim/b", "--all")
	distlock(t, ns, "revoke", "builders", "LockClaim/none-such").ends(t, exitFailed, "OWNER", "LockClaim/a")
	distlock(t, ns, "revoke", "builders", "LockClaim/b").ok(t)
	l := untilLock(t, ns, "builders", "held", heldBy("a"))
	revoked := func(h v1alpha1.Hold) bool { return h.RevokeTime != nil }
	if i := slices.IndexFunc(l.Status.Holders, revoked); i < 0 || l.Status.Holders[i].Ref.Name != "b" || l.Status.Holders[1-i].RevokeTime != nil {
		t.Errorf("revoked are %+v", l.Status.Holders)
	}
	distlock(t, ns, "revoke", "builders", l.Status.Holders[0].Owner).ends(t, 0, "LockClaim/a")
	distlock(t, ns, "revoke", "builders", "--all", "x").ends(t, exitUsage, "--all")
}

func TestAFreeLockHasNothingToRevoke(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	if r := distlock(t, ns, "revoke", "ledger").ends(t, 0, "nothing to revoke"); strings.Contains(r.out, "revoked") {
		t.Errorf("prints %q", r.out)
	}
}

// Between the choice and the write the hold became another one's.
func TestALaterHoldIsNotRevoked(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	first := claimOn(t, ns, "first", "ledger")
	claimOn(t, ns, "second", "ledger")
	chosen := untilLock(t, ns, "ledger", "held", heldBy("first"))
	must(t, admin.Delete(t.Context(), first))
	untilLock(t, ns, "ledger", "held by the second", heldBy("second"))
	done, err := (&cluster{WithWatch: admin, namespace: ns}).setRevoked(t.Context(), chosen, chosen.Status.Holders[0])
	must(t, err)
	if l := untilLock(t, ns, "ledger", "held", heldBy("second")); done || l.Status.Holders[0].RevokeTime != nil {
		t.Errorf("revoked %t: %+v", done, l.Status.Holders)
	}
}
