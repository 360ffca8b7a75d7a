package lock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

func TestAFreeLockCostsOneWriteAndNoRead(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	p := newProgram(t, ns)
	var last int64
	for round := range 5 {
		h, err := p.Acquire(t.Context(), "ledger")
		must(t, err)
		acquired := p.taken()
		must(t, h.Release(t.Context()))
		released := p.taken()
		if h.Token() <= last {
			t.Errorf("token %d after %d", h.Token(), last)
		}
		last = h.Token()
		if round == 0 {
			continue // it has to read once
		}
		if want := []string{"PUT distlocks/status"}; !slices.Equal(acquired, want) || !slices.Equal(released, want) {
			t.Errorf("acquired with %q and released with %q, want %q each", acquired, released, want)
		}
	}
}

func TestAHeldLockNamesItsHolder(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	h, err := newProgram(t, ns).TryAcquire(t.Context(), "ledger")
	must(t, err)
	_, err = newProgram(t, ns).TryAcquire(t.Context(), "ledger")
	var held *lock.HeldError
	if !errors.As(err, &held) || !errors.Is(err, lock.ErrHeld) {
		t.Fatalf("got %v", err)
	}
	if held.Holder != h.Owner() || held.Token != h.Token() || held.Lock != "ledger" || time.Since(held.Since) > patience {
		t.Errorf("got %+v", held)
	}
	if got := read(t, l).Status.Holders; len(got) != 1 || got[0].Owner != h.Owner() {
		t.Errorf("holders: %+v", got)
	}
}

func TestWaitersGetTheLockInTheirOrder(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	startController(t)
	first, err := newProgram(t, ns).Acquire(t.Context(), "ledger")
	must(t, err)
	const n = 5
	got := make(chan *lock.Hold, n)
	for range n {
		p := newProgram(t, ns)
		go func() {
			h, err := p.Acquire(t.Context(), "ledger")
			if err != nil {
				t.Error(err)
			}
			got <- h
		}()
		waiting := len(read(t, l).Status.Queue) + 1
		until(t, l, "queued", func(l *v1alpha1.DistLock) bool { return len(l.Status.Queue) == waiting })
	}
	var order []string
	for _, w := range read(t, l).Status.Queue {
		order = append(order, w.Owner)
	}
	must(t, first.Release(t.Context()))
	last := first.Token()
	for i := range n {
		h := <-got
		if h.Owner() != order[i] || h.Token() <= last {
			t.Errorf("number %d: %s with token %d after %d, want %s", i, h.Owner(), h.Token(), last, order[i])
		}
		last = h.Token()
		must(t, h.Release(t.Context()))
	}
	until(t, l, "free", free)
	untilNoClaims(t, ns)
}

// untilNoClaims returns when all LockClaims of a namespace are gone.
func untilNoClaims(t *testing.T, ns string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var claims v1alpha1.LockClaimList
	for {
		must(t, admin.List(ctx, &claims, client.InNamespace(ns)))
		if len(claims.Items) == 0 {
			return
		}
		w, err := admin.Watch(ctx, &v1alpha1.LockClaimList{}, client.InNamespace(ns), &client.ListOptions{Raw: listFrom(claims.ResourceVersion)})
		must(t, err)
		<-w.ResultChan()
		w.Stop()
	}
}
