package lock_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

// Between the grant and the event lie 40 seconds of a lease of a minute, by the
// waiter's clock: it must not start before it has renewed.
func TestFault41AHoldThatWasSeenLateIsRenewedFirst(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 60})
	clock := &lock.Clock{}
	p, q := newProgram(t, ns), newProgramWith(t, ns, clock)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	waiting := acquire(t, q, "ledger")
	q.awaitRequests(t, "GET distlocks", 2) // the second is the one after the watch began
	enqueue(t, l)
	eventually(t, "following", func() bool { return q.settled("GET distlocks") })
	q.taken()
	q.once("PUT distlocks/status", refuses) // and one error is no loss
	clock.Jump(40*time.Second, 40*time.Second)
	must(t, h.Release(t.Context()))
	next := waiting.hold(t)
	if asked := q.taken(); count(asked, "PUT distlocks/status") < 2 {
		t.Errorf("it started after %q", asked)
	}
	if left := next.Left(); left < 40*time.Second || left > 54*time.Second {
		t.Errorf("it has %s left", left)
	}
}

// The hold came and was over before its owner saw it: it waits again, and a hold that
// is not its own any more is not touched.
func TestFault41AHoldThatWasSeenTooLateIsNone(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 60})
	late, other := &lock.Clock{}, &lock.Clock{}
	p, q, r := newProgram(t, ns), newProgramWith(t, ns, late), newProgramWith(t, ns, other)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	waiting := acquire(t, q, "ledger")
	q.awaitRequests(t, "GET distlocks", 2)
	enqueue(t, l)
	eventually(t, "following", func() bool { return q.settled("GET distlocks") })
	heldUp, letGo := held()
	q.behave(heldUp) // what it asks for, when the event has come
	late.Jump(70*time.Second, 70*time.Second)
	must(t, h.Release(t.Context()))
	granted := read(t, l).Status.Holders[0]
	_, err = r.TryAcquire(t.Context(), "ledger")
	wantIs(t, err, lock.ErrHeld)
	other.Jump(70*time.Second, 0)
	third, err := r.TryAcquire(t.Context(), "ledger")
	must(t, err)
	letGo()
	q.awaitRequests(t, "WATCH distlocks", 2) // it waits again
	waiting.stillWaits(t)
	enqueue(t, l)
	must(t, third.Check(t.Context()))
	must(t, third.Release(t.Context()))
	next := waiting.hold(t)
	if next.Token() <= third.Token() || next.Owner() == granted.Owner {
		t.Errorf("%s with token %d after %d", next.Owner(), next.Token(), third.Token())
	}
	must(t, next.Release(t.Context()))
	untilNoClaims(t, ns)
}

// The read that did not show the hold was answered late: the lease counts from its
// sending.
func TestAGrantedLeaseCountsFromTheSendingOfTheLastReadWithoutIt(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 60})
	clock := &lock.Clock{}
	p, q := newProgram(t, ns), newProgramWith(t, ns, clock)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	reads, served := 0, make(chan struct{})
	heldUp, letGo := held()
	q.behave(only("GET distlocks", func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(req)
		reads++
		if reads == 2 { // one at a time; the first finds the lock held
			close(served)
			_, _ = heldUp(roundTripper(func(*http.Request) (*http.Response, error) { return nil, io.EOF }), req)
		}
		return answer, err
	}))
	waiting := acquire(t, q, "ledger")
	<-served
	enqueue(t, l)
	clock.Jump(15*time.Second, 15*time.Second)
	letGo()
	must(t, h.Release(t.Context()))
	if left := waiting.hold(t).Left(); left > 39*time.Second {
		t.Errorf("it has %s left", left)
	}
}
