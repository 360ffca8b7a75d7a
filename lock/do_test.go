package lock_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

var errOwn = errors.New("what f says")

func TestDoReleasesOnEveryPath(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	p := newProgram(t, ns)
	for name, f := range map[string]func(context.CancelFunc) error{
		"f returns":     func(context.CancelFunc) error { return nil },
		"f fails":       func(context.CancelFunc) error { return errOwn },
		"f panics":      func(context.CancelFunc) error { panic("at the disco") },
		"f exits":       func(context.CancelFunc) error { runtime.Goexit(); return nil },
		"the ctx ended": func(cancel context.CancelFunc) error { cancel(); return nil },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var did error
		var hold *lock.Hold
		ended := make(chan any)
		go func() {
			defer close(ended)
			defer func() {
				if r := recover(); (r != nil) != (name == "f panics") {
					t.Errorf("%s: recovered %v", name, r)
				}
			}()
			did = p.Do(ctx, "ledger", func(guarded context.Context, h *lock.Hold) error {
				hold = h
				if len(read(t, l).Status.Holders) != 1 || guarded.Err() != nil { //nolint:contextcheck // it is the test that reads
					t.Errorf("%s: not held while f runs", name)
				}
				return f(cancel)
			})
		}()
		<-ended
		cancel()
		if len(read(t, l).Status.Holders) != 0 {
			t.Errorf("%s: still held", name)
		}
		if want := map[string]error{"f fails": errOwn}[name]; !errors.Is(did, want) {
			t.Errorf("%s: Do returned %v", name, did)
		}
		if !errors.Is(context.Cause(hold.Context()), lock.ErrNotHeld) {
			t.Errorf("%s: the hold ended because of %v", name, context.Cause(hold.Context()))
		}
		select {
		case <-hold.Lost():
			t.Errorf("%s: lost", name)
		default:
		}
	}
}

func TestDoEndsItsContextWithTheCallersAndSaysWhy(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	p := newProgram(t, ns)
	type key struct{}
	ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
	err := p.Do(ctx, "ledger", func(guarded context.Context, h *lock.Hold) error {
		if guarded.Value(key{}) != "value" || h.Context().Value(key{}) != "value" {
			t.Error("the values of the context are lost")
		}
		cancel(errOwn)
		<-guarded.Done()
		if h.Context().Err() != nil {
			t.Error("the hold ended with the caller's context")
		}
		return context.Cause(guarded)
	})
	if !errors.Is(err, errOwn) || errors.Is(err, lock.ErrLost) {
		t.Errorf("got %v", err)
	}
}

func TestDoSaysThatTheHoldWasLost(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	p := newProgram(t, ns)
	for name, c := range map[string]struct {
		lose func(*lock.Hold)
		want error
	}{
		"taken away, and found out by a check": {func(h *lock.Hold) { takeAway(t, l); wantIs(t, h.Check(t.Context()), lock.ErrLost) }, lock.ErrLost},
		"revoked, and found out by a check":    {func(h *lock.Hold) { revoke(t, l); wantIs(t, h.Check(t.Context()), lock.ErrRevoked) }, lock.ErrRevoked},
	} {
		err := p.Do(t.Context(), "ledger", func(ctx context.Context, h *lock.Hold) error {
			c.lose(h)
			<-ctx.Done()
			<-h.Lost()
			if !errors.Is(context.Cause(ctx), c.want) {
				t.Errorf("%s: the context ended because of %v", name, context.Cause(ctx))
			}
			return errOwn
		})
		if !errors.Is(err, c.want) || !errors.Is(err, errOwn) {
			t.Errorf("%s: got %v", name, err)
		}
		until(t, l, "free", free)
	}
	// Nobody looked: it turns out when it is released.
	err := p.Do(t.Context(), "ledger", func(context.Context, *lock.Hold) error {
		takeAway(t, l) //nolint:contextcheck // it is the test that does
		return nil
	})
	if !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("taken away unseen: got %v", err)
	}
	// f gave it up by itself.
	err = p.Do(t.Context(), "ledger", func(ctx context.Context, h *lock.Hold) error { return h.Release(ctx) })
	if err != nil {
		t.Errorf("released by f: got %v", err)
	}
}

func wantIs(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

// takeAway ends all holds of a lock, as an administrator could.
func takeAway(t *testing.T, l *v1alpha1.DistLock) {
	t.Helper()
	now := read(t, l)
	now.Status.Holders = nil
	must(t, admin.Status().Update(t.Context(), now))
}

// revoke asks all holders to stop.
func revoke(t *testing.T, l *v1alpha1.DistLock) {
	t.Helper()
	now := read(t, l)
	for i := range now.Status.Holders {
		now.Status.Holders[i].RevokeTime = new(metav1.NowMicro())
	}
	must(t, admin.Status().Update(t.Context(), now))
}

func TestARevokedHolderLearnsOfItWhenItRenews(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3})
	h, err := newProgram(t, ns).Acquire(t.Context(), "ledger")
	must(t, err)
	revoke(t, l)
	select {
	case <-h.Lost():
	case <-time.After(patience):
		t.Fatal("it never learned of it")
	}
	wantIs(t, context.Cause(h.Context()), lock.ErrRevoked)
	wantIs(t, h.Check(t.Context()), lock.ErrRevoked)
	must(t, h.Release(t.Context()))
	until(t, l, "free", free)
}
