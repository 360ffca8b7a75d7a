package main

import (
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

func tokenOf(t *testing.T, ns, lock string) int64 {
	t.Helper()
	l := &v1alpha1.DistLock{}
	must(t, admin.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: lock}, l))
	return l.Status.FencingToken
}

func TestAHeldLockIsRaisedAndItsHoldKeepsItsToken(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	first := acquire(t, ns, "ledger", "first")
	held := untilLock(t, ns, "ledger", "held", heldBy("first"))
	token := held.Status.Holders[0].FencingToken

	distlock(t, ns, "raise", "ledger", "--to", "5000000000").ends(t, 0, "to 6000000000")
	raised := untilLock(t, ns, "ledger", "raised", func(l *v1alpha1.DistLock) bool { return l.Status.FencingToken == 6_000_000_000 })
	if got := raised.Status.Holders[0].FencingToken; got != token {
		t.Errorf("the hold's token is %d, and was %d", got, token)
	}
	distlock(t, ns, "release", first).ok(t)
	acquire(t, ns, "ledger", "second")
	if next := untilLock(t, ns, "ledger", "held", heldBy("second")); next.Status.Holders[0].FencingToken != 6_000_000_001 {
		t.Errorf("the next token is %d", next.Status.Holders[0].FencingToken)
	}
}

func TestATokenIsNeverLowered(t *testing.T) {
	ns := testEnv.Namespace(t)
	lockIn(t, ns, "ledger")
	distlock(t, ns, "raise", "ledger", "--to", "7000000000", "--margin", "1").ok(t)
	distlock(t, ns, "raise", "ledger", "--to", "5000000000").ends(t, exitFailed, "never lowered", "--to 7000000001")
	if got := tokenOf(t, ns, "ledger"); got != 7_000_000_001 {
		t.Errorf("the token is %d", got)
	}
	distlock(t, ns, "raise", "ledger", "--to", "9007199254740991").ends(t, exitFailed, "--margin")
	distlock(t, ns, "raise", "ledger", "--to", "-1").ends(t, exitUsage, "--to")
	distlock(t, ns, "raise", "ledger", "--margin", "0").ends(t, exitUsage, "--margin")
	distlock(t, ns, "raise").ends(t, exitUsage, "--all")
	distlock(t, ns, "raise", "ledger", "-A").ends(t, exitUsage, "--all-namespaces")
}

func TestAllLocksAreRaisedAboveTokenAndResourceVersion(t *testing.T) {
	ns, other := testEnv.Namespace(t), testEnv.Namespace(t)
	high := lockIn(t, ns, "high")
	high.Status.FencingToken = 8_000_000_000
	must(t, admin.Status().Update(t.Context(), high))
	low := lockIn(t, ns, "low")
	lockIn(t, other, "elsewhere")
	version, err := strconv.ParseInt(low.ResourceVersion, 10, 64)
	must(t, err)
	if out := distlock(t, ns, "raise", "--all").ok(t).out; strings.Count(out, "\n") != 2 {
		t.Errorf("prints\n%s", out)
	}
	if got := tokenOf(t, ns, "high"); got != 9_000_000_000 {
		t.Errorf("the token that was above the resourceVersion is %d", got)
	}
	if got := tokenOf(t, ns, "low"); got < version+defaultMargin || got > version+defaultMargin+1_000_000 {
		t.Errorf("the token that was 0 is %d, at resourceVersion %d", got, version)
	}
	if got := tokenOf(t, other, "elsewhere"); got != 0 {
		t.Errorf("a lock of another namespace was raised to %d", got)
	}
	distlock(t, ns, "raise", "--all", "-A").ends(t, 0, other)
	if tokenOf(t, other, "elsewhere") == 0 {
		t.Error("-A left out a namespace")
	}
}
