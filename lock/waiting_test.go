package lock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
	"github.com/distlock-dev/distlock/lock"
)

// acquiring is an Acquire under way.
type acquiring struct {
	cancel context.CancelFunc
	done   chan acquired
}

type acquired struct {
	*lock.Hold
	err error
	at  time.Time
}

// acquire begins to Acquire; the test's end cancels it.
func acquire(t *testing.T, p *program, name string, options ...lock.Option) *acquiring {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	a := &acquiring{cancel, make(chan acquired, 1)}
	go func() {
		h, err := p.Acquire(ctx, name, options...)
		a.done <- acquired{h, err, time.Now()}
	}()
	return a
}

func (a *acquiring) result(t *testing.T) acquired {
	t.Helper()
	select {
	case got := <-a.done:
		return got
	case <-time.After(patience):
		t.Fatal("Acquire does not end")
		return acquired{}
	}
}

func (a *acquiring) hold(t *testing.T) *lock.Hold {
	t.Helper()
	got := a.result(t)
	if got.err != nil {
		t.Fatal(got.err)
	}
	return got.Hold
}

func (a *acquiring) stillWaits(t *testing.T) {
	t.Helper()
	select {
	case got := <-a.done:
		t.Fatalf("it got %v, %v, and should wait", got.Hold, got.err)
	default:
	}
}

// queued reports whether so many are in the stored queue.
func queued(n int) func(*v1alpha1.DistLock) bool {
	return func(l *v1alpha1.DistLock) bool { return len(l.Status.Queue) == n }
}

func TestAWaitThatIsOverLeavesTheQueue(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	startController(t)
	h, err := newProgram(t, ns).Acquire(t.Context(), "ledger")
	must(t, err)
	p := newProgram(t, ns)
	_, err = p.Acquire(t.Context(), "ledger", lock.Wait(time.Second))
	wantHeldBy(t, err, h)
	if !errors.Is(err, context.DeadlineExceeded) || t.Context().Err() != nil {
		t.Errorf("got %v", err)
	}
	until(t, l, "left", queued(0))
	untilNoClaims(t, ns)
	if asked := p.taken(); !slices.Contains(asked, "POST lockclaims") {
		t.Errorf("it never waited: %q", asked)
	}
}

func TestACancelledWaitLeavesTheQueue(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	startController(t)
	h, err := newProgram(t, ns).Acquire(t.Context(), "ledger")
	must(t, err)
	waiting := acquire(t, newProgram(t, ns), "ledger")
	behind := acquire(t, newProgram(t, ns), "ledger")
	until(t, l, "queued", queued(2))
	waiting.cancel()
	got := waiting.result(t)
	wantHeldBy(t, got.err, h)
	if !errors.Is(got.err, context.Canceled) || errors.Is(got.err, context.DeadlineExceeded) {
		t.Errorf("got %v", got.err)
	}
	until(t, l, "left by one", queued(1))
	must(t, h.Release(t.Context()))
	must(t, behind.hold(t).Release(t.Context()))
	until(t, l, "free", free)
	untilNoClaims(t, ns)
}

// Whatever is under way when the context ends.
func TestARequestThatIsCutAnywhereLeavesNothingBehind(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	startController(t)
	holder, p := newProgram(t, ns), newProgram(t, ns)
	for _, when := range []string{"GET distlocks", "POST lockclaims", "WATCH distlocks", "PUT distlocks/status"} {
		for _, stored := range []bool{false, true} {
			h, err := holder.Acquire(t.Context(), "ledger")
			must(t, err)
			if when == "PUT distlocks/status" { // of a lock that is free
				must(t, h.Release(t.Context()))
			}
			p.taken()
			p.behave(lost(when, stored))
			waiting := acquire(t, p, "ledger")
			p.awaitRequest(t, when)
			p.behave(nil)
			waiting.cancel()
			if got := waiting.result(t); got.Hold != nil || !errors.Is(got.err, context.Canceled) {
				t.Errorf("%s: got %v, %v", when, got.Hold, got.err)
			}
			must(t, h.Release(t.Context()))
			until(t, l, "free after "+when, free)
			untilNoClaims(t, ns)
		}
	}
}

func TestWhereNothingAnswersTheLockIsNotSaidToBeHeld(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	p := newProgram(t, ns)
	p.behave(unreachable)
	if _, err := p.TryAcquire(t.Context(), "ledger"); err == nil || errors.Is(err, lock.ErrHeld) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := p.Acquire(ctx, "ledger"); errors.Is(err, lock.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestAHeldErrorSaysWhyNobodyHoldsTheLock(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "closed", v1alpha1.DistLockSpec{MinHoldSeconds: 3600})
	p, q := newProgram(t, ns), newProgram(t, ns)
	h, err := p.Acquire(t.Context(), "closed")
	must(t, err)
	must(t, h.Release(t.Context()))
	_, err = q.TryAcquire(t.Context(), "closed")
	var held *lock.HeldError
	if !errors.As(err, &held) || held.Holder != "" || held.Error() != "DistLock closed: the lock is closed for a while; 0 wait" {
		t.Errorf("got %v", err)
	}
	l := lockIn(t, ns, "wanted", v1alpha1.DistLockSpec{Capacity: new(int32(2))})
	l.Status.Holders = []v1alpha1.Hold{stored("reader", 0)}
	l.Status.Holders[0].Mode = v1alpha1.Shared
	l.Status.FencingToken = 1
	l.Status.Queue = []v1alpha1.Waiter{{Owner: "writer", Mode: v1alpha1.Exclusive, Permits: 1}}
	l.Status.Waiting = 7
	must(t, admin.Status().Update(t.Context(), l))
	_, err = q.TryAcquire(t.Context(), "wanted")
	if !errors.As(err, &held) || held.Waiting != 7 || held.Holder != "reader" {
		t.Errorf("got %v", err)
	}
}

// enqueue stores the LockClaims of a lock as its queue, in the
// controller's stead.
func enqueue(t *testing.T, l *v1alpha1.DistLock) {
	t.Helper()
	var claims v1alpha1.LockClaimList
	must(t, admin.List(t.Context(), &claims, client.InNamespace(l.Namespace)))
	slices.SortFunc(claims.Items, func(a, b v1alpha1.LockClaim) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	now := read(t, l)
	now.Status.Queue = nil
	for _, c := range claims.Items {
		if c.Spec.LockName != l.Name {
			continue
		}
		ref := &v1alpha1.ObjectRef{APIVersion: v1alpha1.GroupVersion.String(), Kind: "LockClaim", Name: c.Name, UID: c.UID}
		now.Status.Queue = append(now.Status.Queue,
			protocol.NewWaiter(l.Spec, protocol.ClaimOwner(c.UID), c.Spec.Mode, c.Spec.Permits, c.Spec.LeaseDurationSeconds, ref))
	}
	now.Status.Queue = now.Status.Queue[:min(len(now.Status.Queue), v1alpha1.MaxQueue)]
	must(t, admin.Status().Update(t.Context(), now))
}
