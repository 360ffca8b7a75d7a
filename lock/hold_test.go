package lock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

func TestACheckAsksTheAPIServer(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	p, q := newProgram(t, ns), newProgram(t, ns)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	p.taken()
	must(t, h.Check(t.Context()))
	if asked := p.taken(); count(asked, "GET distlocks") != 1 {
		t.Errorf("asked %q", asked)
	}
	p.behave(refuses)
	if err := h.Check(t.Context()); err == nil || errors.Is(err, lock.ErrLost) || h.Context().Err() != nil {
		t.Errorf("without an answer: %v", err) // it is not known
	}
	p.behave(nil)
	takeAway(t, l)
	successor, err := q.TryAcquire(t.Context(), "ledger")
	must(t, err)
	wantIs(t, h.Check(t.Context()), lock.ErrLost)
	wantIs(t, context.Cause(h.Context()), lock.ErrLost)
	<-h.Lost()
	must(t, successor.Check(t.Context()))
	p.taken()
	wantIs(t, h.Check(t.Context()), lock.ErrLost)
	if asked := p.taken(); len(asked) > 0 {
		t.Errorf("asked %q about a hold that is lost", asked)
	}
	must(t, successor.Release(t.Context()))
	wantIs(t, successor.Check(t.Context()), lock.ErrNotHeld)
	wantIs(t, h.Release(t.Context()), lock.ErrNotHeld)
}

func TestACheckFindsALockThatWasMadeAnew(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	h, err := newProgram(t, ns).Acquire(t.Context(), "ledger")
	must(t, err)
	takeAway(t, l)
	must(t, admin.Delete(t.Context(), l))
	wantIs(t, h.Check(t.Context()), lock.ErrLost)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	next, err := newProgram(t, ns).Acquire(t.Context(), "ledger")
	must(t, err)
	if next.Token() <= h.Token() {
		t.Errorf("token %d after %d", next.Token(), h.Token())
	}
	wantIs(t, h.Release(t.Context()), lock.ErrNotHeld)
	must(t, next.Check(t.Context()))
}

func TestReleasingAgainDoesNothing(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	p, q := newProgram(t, ns), newProgram(t, ns)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it must be released all the same
	p.taken()
	var releases sync.WaitGroup
	for range 10 {
		releases.Go(func() {
			if err := h.Release(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	releases.Wait()
	successor, err := q.TryAcquire(t.Context(), "ledger")
	must(t, err)
	must(t, h.Release(t.Context()))
	if asked := p.taken(); count(asked, "PUT distlocks/status") != 1 {
		t.Errorf("released with %q", asked)
	}
	must(t, successor.Check(t.Context()))
	if now := read(t, l); len(now.Status.Holders) != 1 {
		t.Errorf("holders: %+v", now.Status.Holders)
	}
}

func TestReleaseTriesAgainWhatTheAPIServerDidNotTake(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	p := newProgram(t, ns)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	must(t, admin.Update(t.Context(), changed(read(t, l)))) // a conflict first
	p.behave(refuses)
	released := make(chan error, 1)
	go func() { released <- h.Release(t.Context()) }()
	p.awaitRequests(t, "GET distlocks", 2)
	p.behave(nil)
	must(t, <-released)
	until(t, l, "free", free)
}

// changed is a lock with something in it that matters to nobody.
func changed(l *v1alpha1.DistLock) *v1alpha1.DistLock {
	l.Labels = map[string]string{"changed": time.Now().Format("150405.000000")}
	return l
}

// A waiter's claim goes with its hold, also when the hold has to be left to its lease.
func TestAClaimGoesWithItsHold(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3})
	p, q := newProgram(t, ns), newProgram(t, ns)
	first, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	waiting := acquire(t, q, "ledger")
	q.awaitRequest(t, "WATCH distlocks")
	enqueue(t, l)
	must(t, first.Release(t.Context()))
	h := waiting.hold(t)
	q.behave(refuses)
	if err := h.Release(t.Context()); err == nil || errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("released without an API server: %v", err)
	}
	q.behave(nil)
	untilNoClaims(t, ns)
	must(t, h.Release(t.Context())) // it may be tried again
	until(t, l, "free", free)
}

// The same owner with another token is another hold: a claim's may be granted again.
func TestAnotherHoldOfItsOwnerIsNotTouched(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3})
	p := newProgram(t, ns)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	now := read(t, l)
	now.Status.FencingToken++
	now.Status.Holders[0].FencingToken++
	must(t, admin.Status().Update(t.Context(), now))
	select {
	case <-h.Lost(): // it cannot renew it
	case <-time.After(patience):
		t.Fatal("it goes on with a token that is not its own")
	}
	wantIs(t, context.Cause(h.Context()), lock.ErrLost)
	if left := h.Left(); left < time.Second { // it did not just wait for its end
		t.Errorf("it found out when %s were left", left)
	}
	wantIs(t, h.Release(t.Context()), lock.ErrNotHeld)
	if got := read(t, l).Status.Holders; len(got) != 1 || got[0].FencingToken != now.Status.FencingToken {
		t.Errorf("got %+v", got)
	}
}
