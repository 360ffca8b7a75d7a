package lock_test

import (
	"errors"
	"testing"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

func TestReadersShareAndAWriterIsAlone(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "table", v1alpha1.DistLockSpec{})
	a, b, c := newProgram(t, ns), newProgram(t, ns), newProgram(t, ns)
	first, err := a.TryAcquire(t.Context(), "table", lock.Shared())
	must(t, err)
	second, err := b.TryAcquire(t.Context(), "table", lock.Shared())
	must(t, err)
	if first.Token() >= second.Token() {
		t.Errorf("token %d after %d", second.Token(), first.Token())
	}
	_, err = c.TryAcquire(t.Context(), "table")
	wantHeldBy(t, err, first)
	must(t, first.Release(t.Context()))
	_, err = c.TryAcquire(t.Context(), "table", lock.Exclusive())
	wantHeldBy(t, err, second)
	must(t, second.Release(t.Context()))
	alone, err := c.TryAcquire(t.Context(), "table")
	must(t, err)
	_, err = a.TryAcquire(t.Context(), "table", lock.Shared())
	wantHeldBy(t, err, alone)
	must(t, alone.Release(t.Context()))
	until(t, l, "free", free)
}

func wantHeldBy(t *testing.T, err error, h *lock.Hold) {
	t.Helper()
	var held *lock.HeldError
	if !errors.Is(err, lock.ErrHeld) || !errors.As(err, &held) || held.Holder != h.Owner() || held.Token != h.Token() {
		t.Errorf("got %v, want held by %s with token %d", err, h.Owner(), h.Token())
	}
}

func TestNobodyGetsPastTheQueue(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "table", v1alpha1.DistLockSpec{})
	startController(t)
	reader, writer, late := newProgram(t, ns), newProgram(t, ns), newProgram(t, ns)
	reading, err := reader.Acquire(t.Context(), "table", lock.Shared())
	must(t, err)
	writing := acquire(t, writer, "table")
	until(t, l, "queued", queued(1))
	_, err = late.TryAcquire(t.Context(), "table", lock.Shared()) // it would fit beside the first
	var held *lock.HeldError
	if !errors.As(err, &held) || held.Waiting != 1 {
		t.Fatalf("got %v", err)
	}
	behind := acquire(t, late, "table", lock.Shared())
	until(t, l, "queued", queued(2))
	must(t, reading.Release(t.Context()))
	w := writing.hold(t)
	behind.stillWaits(t)
	must(t, w.Release(t.Context()))
	r := behind.hold(t)
	if r.Token() <= w.Token() || w.Token() <= reading.Token() {
		t.Errorf("tokens %d, %d, %d", reading.Token(), w.Token(), r.Token())
	}
	must(t, r.Release(t.Context()))
}

// A lock that is free for a moment although others wait is theirs, also when the one
// who finds it so is not in the queue.
func TestAFreeLockWithAQueueIsHandedToItsHead(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	l.Status.Queue = []v1alpha1.Waiter{{Owner: "claim/first", Mode: v1alpha1.Exclusive, Permits: 1, LeaseDurationSeconds: new(int32(15))}}
	must(t, admin.Status().Update(t.Context(), l))
	p := newProgram(t, ns)
	_, err := p.TryAcquire(t.Context(), "ledger")
	if !errors.Is(err, lock.ErrHeld) {
		t.Fatalf("got %v", err)
	}
	now := read(t, l)
	if len(now.Status.Holders) != 1 || now.Status.Holders[0].Owner != "claim/first" || len(now.Status.Queue) != 0 {
		t.Errorf("got %+v, want it handed to the head of the queue", now.Status)
	}
}

func TestASemaphoreIsSharedByItsPermits(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "pool", v1alpha1.DistLockSpec{Capacity: new(int32(3))})
	startController(t)
	a, b, c := newProgram(t, ns), newProgram(t, ns), newProgram(t, ns)
	two, err := a.Acquire(t.Context(), "pool", lock.Permits(2))
	must(t, err)
	one, err := b.Acquire(t.Context(), "pool") // with a capacity: Shared, one permit
	must(t, err)
	_, err = c.TryAcquire(t.Context(), "pool")
	wantHeldBy(t, err, two)
	waiting := acquire(t, c, "pool", lock.Permits(2))
	until(t, l, "queued", queued(1))
	behind := acquire(t, b, "pool")
	until(t, l, "queued", queued(2))
	must(t, one.Release(t.Context())) // one permit is free; the head wants two
	waiting.stillWaits(t)
	behind.stillWaits(t)
	must(t, two.Release(t.Context())) // both fit now, and are granted in that write
	x, y := waiting.hold(t), behind.hold(t)
	if x.Token() != y.Token() || x.Token() <= two.Token() {
		t.Errorf("tokens %d and %d after %d", x.Token(), y.Token(), two.Token())
	}
	if now := read(t, l); len(now.Status.Holders) != 2 {
		t.Errorf("holders: %+v", now.Status.Holders)
	}
	alone := acquire(t, a, "pool", lock.Exclusive())
	until(t, l, "queued", queued(1))
	must(t, x.Release(t.Context()))
	alone.stillWaits(t)
	must(t, y.Release(t.Context()))
	must(t, alone.hold(t).Release(t.Context()))
	until(t, l, "free", free)
	untilNoClaims(t, ns)
}
