package lock_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

// once has the first request behave so, and the others arrive.
func (n *network) once(what string, b behaviour) {
	n.behave(only(what, func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		n.behave(nil)
		return b(next, req)
	}))
}

func TestFault15AnAcquireWhoseAnswerIsLostIsAdopted(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	p := newProgram(t, ns)
	p.once("PUT distlocks/status", cut(true))
	h, err := p.TryAcquire(t.Context(), "ledger")
	must(t, err)
	now := read(t, l)
	if s := now.Status; len(s.Holders) != 1 || s.Holders[0].Owner != h.Owner() || s.FencingToken != h.Token() || s.Holders[0].FencingToken != h.Token() {
		t.Errorf("held by %s with token %d, stored %+v", h.Owner(), h.Token(), s)
	}
	if asked := p.taken(); count(asked, "PUT distlocks/status") != 1 {
		t.Errorf("asked %q", asked)
	}
	must(t, h.Release(t.Context()))
}

// Its lease counts from before the write whose answer was lost.
func TestFault15AnAdoptedHoldCountsFromBeforeItsWrite(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 60})
	clock := &lock.Clock{}
	p := newProgramWith(t, ns, clock)
	p.once("PUT distlocks/status", func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		clock.Jump(15*time.Second, 15*time.Second)
		return cut(true)(next, req)
	})
	h, err := p.TryAcquire(t.Context(), "ledger")
	must(t, err)
	if left := h.Left(); left > 39*time.Second {
		t.Errorf("it has %s left", left)
	}
}

func TestAClaimWhoseAnswerIsLostIsAdopted(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	holder, p := newProgram(t, ns), newProgram(t, ns)
	first, err := holder.Acquire(t.Context(), "ledger")
	must(t, err)
	p.once("POST lockclaims", cut(true))
	waiting := acquire(t, p, "ledger")
	p.awaitRequest(t, "WATCH distlocks")
	var claims v1alpha1.LockClaimList
	must(t, admin.List(t.Context(), &claims, client.InNamespace(ns)))
	if len(claims.Items) != 1 {
		t.Fatalf("%d claims", len(claims.Items))
	}
	enqueue(t, l)
	must(t, first.Release(t.Context()))
	must(t, waiting.hold(t).Release(t.Context()))
	untilNoClaims(t, ns)
}

func TestAReleaseWhoseAnswerIsLostIsDone(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	p := newProgram(t, ns)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	p.once("PUT distlocks/status", cut(true))
	must(t, h.Release(t.Context()))
	until(t, l, "free", free)
}

// A write that was given up and arrives later than everything else changes nothing.
func TestAnAcquireThatArrivesAfterItWasGivenUpIsRefused(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	p := newProgram(t, ns)
	isLate, letGo, arrived := late()
	p.once("PUT distlocks/status", isLate)
	waiting := acquire(t, p, "ledger")
	p.awaitRequest(t, "PUT distlocks/status")
	waiting.cancel()
	wantIs(t, waiting.result(t).err, context.Canceled)
	letGo()
	if code := <-arrived; code != http.StatusConflict {
		t.Errorf("it was answered with %d", code)
	}
	if now := read(t, l); !free(now) {
		t.Errorf("got %+v", now.Status)
	}
}

func TestAClaimThatArrivesAfterItWasGivenUpIsDeleted(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	holder, p := newProgram(t, ns), newProgram(t, ns)
	_, err := holder.Acquire(t.Context(), "ledger")
	must(t, err)
	isLate, letGo, arrived := late()
	p.once("POST lockclaims", isLate)
	waiting := acquire(t, p, "ledger")
	p.awaitRequest(t, "POST lockclaims")
	waiting.cancel()
	wantIs(t, waiting.result(t).err, context.Canceled)
	letGo()
	if code := <-arrived; code != http.StatusCreated {
		t.Fatalf("it was answered with %d", code)
	}
	untilNoClaims(t, ns)
	// Close does not wait for what may still arrive.
	began := time.Now()
	must(t, p.Close(t.Context()))
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("Close took %s", took)
	}
}

func TestAReleaseThatArrivesAgainLaterTouchesNobody(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3}) // an answer is waited for 0.6 s
	p, q := newProgram(t, ns), newProgram(t, ns)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	isLate, letGo, arrived := late()
	p.once("PUT distlocks/status", isLate)
	must(t, h.Release(t.Context()))
	next, err := q.TryAcquire(t.Context(), "ledger")
	must(t, err)
	letGo()
	if code := <-arrived; code != http.StatusConflict {
		t.Errorf("it was answered with %d", code)
	}
	must(t, next.Check(t.Context()))
	if now := read(t, l); len(now.Status.Holders) != 1 {
		t.Errorf("got %+v", now.Status)
	}
}
