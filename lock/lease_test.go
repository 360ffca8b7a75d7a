package lock_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

// wantLost waits for the end of a hold, which must come by a look at the clocks: with
// a lease of a minute every 3 seconds, with one of 15 several times in a second.
func wantLost(t *testing.T, h *lock.Hold, within time.Duration) {
	t.Helper()
	select {
	case <-h.Context().Done():
		wantIs(t, context.Cause(h.Context()), lock.ErrLost)
	case <-time.After(within):
		t.Errorf("it goes on after %s, with %s left", within, h.Left())
	}
}

func TestAHolderBelievesTheClockThatSaysMore(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 15})
	for name, jump := range map[string]struct{ mono, wall time.Duration }{
		"the machine was suspended":   {0, 14 * time.Second},
		"the wall clock was set":      {0, time.Hour},
		"the wall clock was set back": {14 * time.Second, -time.Hour},
		"both went on":                {14 * time.Second, 14 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			clock := &lock.Clock{}
			p := newProgramWith(t, ns, clock)
			h, err := p.Acquire(t.Context(), "ledger")
			must(t, err)
			p.behave(unreachable)
			clock.Jump(jump.mono, jump.wall)
			if left := h.Left(); left > 0 {
				t.Errorf("it has %s left", left)
			}
			if valid := time.Until(h.ValidUntil()); valid > 0 {
				t.Errorf("it is valid for another %s", valid)
			}
			wantLost(t, h, 5*time.Second)
			p.behave(nil)
			must(t, h.Release(t.Context()))
		})
	}
}

// It does not ask about a hold that is over by its own clocks.
func TestACheckLooksAtTheClocksFirst(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3600}) // nothing else looks for minutes
	clock := &lock.Clock{}
	p := newProgramWith(t, ns, clock)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	// The answer says that the hold is there, and comes when its lease is over.
	p.once("GET distlocks", func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(req)
		clock.Jump(0, time.Hour)
		return answer, err
	})
	wantIs(t, h.Check(t.Context()), lock.ErrLost)
	wantIs(t, context.Cause(h.Context()), lock.ErrLost)
	must(t, h.Release(t.Context()))
	h, err = p.Acquire(t.Context(), "ledger")
	must(t, err)
	clock.Jump(0, time.Hour)
	p.taken()
	wantIs(t, h.Check(t.Context()), lock.ErrLost)
	if asked := p.taken(); len(asked) > 0 {
		t.Errorf("asked %q", asked)
	}
	must(t, h.Release(t.Context()))
	// Do says so, too, though f looked at nothing.
	err = p.Do(t.Context(), "ledger", func(context.Context, *lock.Hold) error { clock.Jump(0, time.Hour); return nil })
	wantIs(t, err, lock.ErrLost)
}

// A wall clock that was set back says nothing, and a lease is no longer for it.
func TestAWallClockThatWasSetBackMakesNoLeaseLonger(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 60})
	clock := &lock.Clock{}
	p := newProgramWith(t, ns, clock)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	clock.Jump(0, -time.Hour)
	if left := h.Left(); left > 54*time.Second || left < 30*time.Second {
		t.Errorf("it has %s left", left)
	}
	if h.Context().Err() != nil {
		t.Error("it ended for a clock that was set back")
	}
	must(t, h.Release(t.Context()))
}

// The machine is suspended while a renewal is under way, which the network never
// answers: nothing but the wall clock tells.
func TestAHolderLooksAtItsClocksWhileItRenews(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 60})
	clock := &lock.Clock{}
	p := newProgramWith(t, ns, clock)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	p.taken()
	p.behave(unreachable)
	clock.Jump(21*time.Second, 21*time.Second)
	p.awaitRequest(t, "PUT distlocks/status")
	if h.Context().Err() != nil {
		t.Fatal("lost too early")
	}
	clock.Jump(0, time.Hour)
	wantLost(t, h, 9*time.Second) // the renewal would be given up after 12
	p.behave(nil)
	must(t, h.Release(t.Context()))
}

// What a holder does not know of does not count, though it was stored.
func TestALeaseCountsFromTheSendingOfTheLastRenewalThatSucceeded(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 60})
	clock := &lock.Clock{}
	p := newProgramWith(t, ns, clock)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	granted := read(t, l).Status.Holders[0].RenewTime
	p.taken()
	// The answer to the first renewal comes after ten seconds.
	p.behave(func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(req)
		if req.Method == http.MethodPut {
			p.behave(nil)
			clock.Jump(10*time.Second, 10*time.Second)
		}
		return answer, err
	})
	clock.Jump(21*time.Second, 21*time.Second)
	renewed := until(t, l, "renewed", func(l *v1alpha1.DistLock) bool { return l.Status.Holders[0].RenewTime.After(granted.Time) })
	p.awaitRequest(t, "PUT distlocks/status")
	eventually(t, "counted again", func() bool { return h.Left() > 30*time.Second })
	if left := h.Left(); left > 44*time.Second {
		t.Errorf("it has %s left, counted from the answer", left)
	}
	// From here on every renewal is stored, and no answer comes.
	p.behave(lost("PUT distlocks/status", true))
	clock.Jump(11*time.Second, 11*time.Second)
	until(t, l, "renewed unknown to its holder", func(l *v1alpha1.DistLock) bool {
		return l.Status.Holders[0].RenewTime.After(renewed.Status.Holders[0].RenewTime.Time)
	})
	if left := h.Left(); left > 33*time.Second {
		t.Errorf("it has %s left, counted from a renewal that it knows nothing of", left)
	}
	clock.Jump(34*time.Second, 34*time.Second)
	wantLost(t, h, 9*time.Second)
	p.behave(nil)
	must(t, h.Release(t.Context()))
}

// eventually waits for what only this process knows, and tells nobody.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, patience, true, func(context.Context) (bool, error) { return so(), nil })
	if err != nil {
		t.Fatalf("never %s: %v", what, err)
	}
}

// stored is an Exclusive hold with token 1 as another wrote it, whose clock is an hour
// late. Without a lease it is bound.
func stored(owner string, leaseSeconds int32) v1alpha1.Hold {
	late := metav1.NewMicroTime(time.Now().Add(-time.Hour))
	h := v1alpha1.Hold{Owner: owner, Mode: v1alpha1.Exclusive, Permits: 1, FencingToken: 1, AcquireTime: late, RenewTime: late}
	if leaseSeconds > 0 {
		h.LeaseDurationSeconds = &leaseSeconds
	}
	return h
}

func TestAnExpirerCountsOnItsMonotonicClockAndAddsTheMargin(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	l.Status.Holders = []v1alpha1.Hold{stored("someone", 60)}
	l.Status.FencingToken = 1
	must(t, admin.Status().Update(t.Context(), l))
	clock := &lock.Clock{}
	p := newProgramWith(t, ns, clock)
	stillHeld := func(when string) {
		t.Helper()
		if h, err := p.TryAcquire(t.Context(), "ledger"); err == nil {
			t.Fatalf("%s: expired, and granted with token %d", when, h.Token())
		}
	}
	stillHeld("at first sight, an hour after the time that another clock wrote")
	clock.Jump(0, time.Hour)
	stillHeld("when the wall clock was set an hour on")
	clock.Jump(60*time.Second, 60*time.Second)
	stillHeld("a lease after it was seen, and no margin")
	l = read(t, l)
	l.Status.Holders[0].RenewTime.Time = l.Status.Holders[0].RenewTime.Add(time.Microsecond)
	must(t, admin.Status().Update(t.Context(), l))
	clock.Jump(60*time.Second, 60*time.Second)
	stillHeld("renewed by a microsecond, and seen so for the first time")
	clock.Jump(65*time.Second, 65*time.Second)
	stillHeld("a lease and most of a margin after it was seen renewed")
	clock.Jump(time.Second, 0)
	h, err := p.TryAcquire(t.Context(), "ledger")
	must(t, err)
	if h.Token() <= 1 {
		t.Errorf("token %d", h.Token())
	}
	must(t, h.Release(t.Context()))
}

// A bound hold has no lease, and never ends by time.
func TestABoundHoldIsNeverExpired(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	l.Status.Holders = []v1alpha1.Hold{stored("job/a/1", 0)}
	l.Status.FencingToken = 1
	must(t, admin.Status().Update(t.Context(), l))
	clock := &lock.Clock{}
	p := newProgramWith(t, ns, clock)
	for range 2 {
		if _, err := p.TryAcquire(t.Context(), "ledger"); err == nil {
			t.Fatal("it was expired")
		}
		clock.Jump(24*time.Hour, 24*time.Hour)
	}
}
