package main

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

func metaName(ns, name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: ns, Name: name} }

// acquire takes a lock and returns what release wants.
func acquire(t *testing.T, ns, lock, claim string) string {
	t.Helper()
	out := distlock(t, ns, "acquire", lock, "--claim", claim).ok(t).out
	line, _, _ := strings.Cut(out, "\n")
	return strings.TrimPrefix(line, "export DISTLOCK_CLAIM=")
}

func TestAReleaseNeverTouchesALaterClaimOfThatName(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	first := acquire(t, ns, "ledger", "mine")
	distlock(t, "default", "release", first).ok(t) // it names its namespace
	distlock(t, ns, "release", first).ends(t, 0, "nothing to release")
	second := acquire(t, ns, "ledger", "mine")
	distlock(t, ns, "release", first).ends(t, 0, "gone already")
	if l := untilLock(t, ns, "ledger", "held", heldBy("mine")); !strings.HasSuffix(second, string(l.Status.Holders[0].Ref.UID)) {
		t.Errorf("held by %s, want %s", l.Status.Holders[0].Owner, second)
	}
	t.Setenv(claimEnv, second)
	distlock(t, ns, "release").ok(t)
	untilLock(t, ns, "ledger", "free", isFree)
}

func TestAReleaseLeavesClaimsOfOthersAlone(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	claimOn(t, ns, "by-hand", "ledger")
	untilClaim(t, ns, "by-hand", v1alpha1.ReasonGranted)
	distlock(t, ns, "release", "by-hand").ends(t, exitFailed, "not made by kubectl distlock acquire", "kubectl delete")
	untilClaim(t, ns, "by-hand", v1alpha1.ReasonGranted)
}

func TestAReleaseSaysThatTheLockWasLostBefore(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	acquire(t, ns, "ledger", "mine")
	l := untilLock(t, ns, "ledger", "held", heldBy("mine"))
	l.Status.Holders = nil
	must(t, admin.Status().Update(t.Context(), l))
	untilClaim(t, ns, "mine", v1alpha1.ReasonLost)
	distlock(t, ns, "release", "mine").ends(t, exitLost, "had lost")
	noClaims(t, ns)
}

func TestAReleaseOfNothingIsRefused(t *testing.T) {
	t.Setenv(claimEnv, "")
	distlock(t, "default", "release").ends(t, exitUsage, "CLAIM")
	distlock(t, "default", "release", "a/b").ends(t, exitUsage, "CLAIM")
}
