package lock_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

// It goes on with the watch by which it waited: its next renewal is 20 seconds away.
func TestOneThatWaitedIsToldOfItsRevocationAtOnce(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 60})
	startController(t)
	first, err := newProgram(t, ns).Acquire(t.Context(), "ledger")
	must(t, err)
	waiting := acquire(t, newProgram(t, ns), "ledger")
	until(t, l, "queued", queued(1))
	must(t, first.Release(t.Context()))
	h := waiting.hold(t)
	now := read(t, l)
	now.Status.Holders[0].RevokeTime = new(metav1.NowMicro())
	must(t, admin.Status().Update(t.Context(), now))
	select {
	case <-h.Lost():
	case <-time.After(12 * time.Second):
		t.Error("it does not know")
	}
	if err := h.Check(t.Context()); !errors.Is(err, lock.ErrRevoked) {
		t.Errorf("got %v", err)
	}
	must(t, h.Release(t.Context()))
	untilNoClaims(t, ns)
}

// Where a controller is there it grants the lock in order; where all that wait took it,
// they would keep each other and the controller from it.
func TestOneThatWaitsTakesAFreeLockOnlyWhenNobodyGrantsIt(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 8})
	first, err := newProgram(t, ns).Acquire(t.Context(), "ledger")
	must(t, err)
	p := newProgram(t, ns)
	reads := make(chan struct{}, 100)
	p.behave(func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(req)
		if described(req) == "GET distlocks" {
			reads <- struct{}{}
		}
		return answer, err
	})
	waiting := acquire(t, p, "ledger")
	<-reads // to try
	<-reads // after the watch began
	p.taken()
	must(t, first.Release(t.Context()))
	h := waiting.hold(t)
	if writes := count(p.taken(), "PUT distlocks/status"); len(reads) != 2 || writes != 1 {
		t.Errorf("%d reads and %d writes after it was free, want 2 and 1", len(reads), writes)
	}
	if now := read(t, l); now.Status.Holders[0].Owner != h.Owner() {
		t.Errorf("holders: %+v", now.Status.Holders)
	}
	must(t, h.Release(t.Context()))
	untilNoClaims(t, ns)
}
