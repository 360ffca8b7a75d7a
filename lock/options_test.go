package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

func TestOptionsThatCannotBeAreRefused(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	p := newProgram(t, ns)
	for name, c := range map[string]struct {
		options []lock.Option
		says    string
	}{
		"no wait":                 {[]lock.Option{lock.Wait(0)}, "lock.Wait: 0s"},
		"a wait before now":       {[]lock.Option{lock.Wait(-time.Second)}, "lock.Wait: -1s"},
		"a short lease":           {[]lock.Option{lock.Lease(2 * time.Second)}, "lock.Lease: 2s"},
		"a long lease":            {[]lock.Option{lock.Lease(time.Hour + time.Second)}, "lock.Lease: 1h0m1s"},
		"half a second of lease":  {[]lock.Option{lock.Lease(3500 * time.Millisecond)}, "lock.Lease: 3.5s"},
		"no permits":              {[]lock.Option{lock.Permits(0)}, "lock.Permits: 0"},
		"too many permits":        {[]lock.Option{lock.Permits(1_000_001)}, "lock.Permits: 1000001"},
		"permits of an exclusive": {[]lock.Option{lock.Permits(2), lock.Exclusive()}, "lock.Exclusive"},
	} {
		_, acquired := p.Acquire(t.Context(), "ledger", c.options...)
		_, tried := p.TryAcquire(t.Context(), "ledger", c.options...)
		done := p.Do(t.Context(), "ledger", func(context.Context, *lock.Hold) error { return nil }, c.options...)
		led := p.Lead(t.Context(), "ledger", func(context.Context, *lock.Hold) error { return nil }, c.options...)
		for _, err := range []error{acquired, tried, done, led} {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: got %v, want it to say %q", name, err, c.says)
			}
		}
	}
	if asked := p.taken(); len(asked) > 0 {
		t.Errorf("the API server was asked: %q", asked)
	}
}

func TestNamesThatCannotBeAreRefused(t *testing.T) {
	p := newProgram(t, namespace(t))
	if _, err := p.Acquire(t.Context(), "Nightly_run"); err == nil || !strings.Contains(err.Error(), `"Nightly_run"`) {
		t.Errorf("got %v", err)
	}
	if _, err := lock.NewClient(controlPlane.Config(), lock.Namespace("no/namespace")); err == nil || !strings.Contains(err.Error(), "lock.Namespace") {
		t.Errorf("got %v", err)
	}
	if asked := p.taken(); len(asked) > 0 {
		t.Errorf("the API server was asked: %q", asked)
	}
}

func TestAHoldHasTheLeaseThatWasAskedFor(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 30})
	p := newProgram(t, ns)
	for want, options := range map[time.Duration][]lock.Option{
		30 * time.Second: nil,
		time.Minute:      {lock.Lease(time.Minute)},
	} {
		h, err := p.Acquire(t.Context(), "ledger", options...)
		must(t, err)
		stored := read(t, l).Status.Holders[0]
		if got := time.Duration(*stored.LeaseDurationSeconds) * time.Second; got != want || stored.Owner != h.Owner() || stored.FencingToken != h.Token() {
			t.Errorf("stored %+v for a lease of %s by %s with token %d", stored, want, h.Owner(), h.Token())
		}
		// A margin of a tenth before the end, and counted from a moment ago.
		if left := time.Until(h.ValidUntil()); left > want-want/10 || left < want/2 {
			t.Errorf("valid for %s of a lease of %s", left, want)
		}
		if h.Name() != "ledger" || h.Context().Err() != nil {
			t.Errorf("%s, %v", h.Name(), h.Context().Err())
		}
		must(t, h.Release(t.Context()))
	}
}

func TestThereIsNoLockUnlessItWasCreated(t *testing.T) {
	ns := namespace(t)
	p := newProgram(t, ns)
	_, acquired := p.Acquire(t.Context(), "nightyl")
	_, tried := p.TryAcquire(t.Context(), "nightyl")
	done := p.Do(t.Context(), "nightyl", func(context.Context, *lock.Hold) error { return nil })
	led := p.Lead(t.Context(), "nightyl", func(context.Context, *lock.Hold) error { return nil })
	for _, err := range []error{acquired, tried, done, led} {
		if !errors.Is(err, lock.ErrNoLock) || errors.Is(err, lock.ErrHeld) || !strings.Contains(err.Error(), "nightyl in namespace "+ns) {
			t.Errorf("got %v", err)
		}
	}
	untilNoClaims(t, ns)
}

func TestALockThatIsDeletedWhileSomeoneWaitsIsNoLock(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3})
	holder, waiter := newProgram(t, ns), newProgram(t, ns)
	h, err := holder.Acquire(t.Context(), "ledger")
	must(t, err)
	waiting := acquire(t, waiter, "ledger")
	waiter.awaitRequest(t, "WATCH distlocks")
	// A held lock cannot be deleted, and a free one would be taken: both at once.
	heldUp, letGo := held()
	waiter.behave(heldUp)
	must(t, h.Release(t.Context()))
	must(t, admin.Delete(t.Context(), l))
	letGo()
	if got := waiting.result(t); !errors.Is(got.err, lock.ErrNoLock) {
		t.Errorf("got %v", got.err)
	}
	untilNoClaims(t, ns)
}

func TestMorePermitsThanThereAreAreAnErrorAtOnce(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "pool", v1alpha1.DistLockSpec{Capacity: new(int32(4))})
	p, q := newProgram(t, ns), newProgram(t, ns)
	if _, err := p.Acquire(t.Context(), "pool", lock.Permits(5)); err == nil || !strings.Contains(err.Error(), "pool has 4 in all") {
		t.Errorf("got %v", err)
	}
	h, err := p.Acquire(t.Context(), "pool", lock.Permits(3))
	must(t, err)
	waiting := acquire(t, q, "pool", lock.Permits(2))
	q.awaitRequest(t, "WATCH distlocks")
	l = read(t, l)
	l.Spec.Capacity = new(int32(1))
	must(t, admin.Patch(t.Context(), l, client.Merge))
	if got := waiting.result(t); got.err == nil || !strings.Contains(got.err.Error(), "pool has 1 in all") {
		t.Errorf("while it waits: %v", got.err)
	}
	must(t, h.Release(t.Context()))
	untilNoClaims(t, ns)
}
