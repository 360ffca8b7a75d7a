package lock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

// register is a resource that refuses a lower token than it has seen.
type register struct {
	mu      sync.Mutex
	highest int64
	written []int64
}

var errStaleToken = errors.New("stale token")

func (r *register) write(token int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if token < r.highest {
		return errStaleToken
	}
	r.highest = token
	r.written = append(r.written, token)
	return nil
}

// The controller is away, and the waiter has only its own observation.
func TestFault09AHolderThatIsCutOffStopsBeforeTheNextOneIsIn(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3})
	p, q := newProgram(t, ns), newProgram(t, ns)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	stopped := make(chan time.Time, 1)
	context.AfterFunc(h.Context(), func() { stopped <- time.Now() })
	waiting := acquire(t, q, "ledger")
	q.awaitRequest(t, "WATCH distlocks")
	p.behave(unreachable)
	cut := time.Now()
	next := waiting.result(t)
	must(t, next.err)
	select {
	case at := <-stopped:
		t.Logf("cut off, it stopped after %s; the next one was in after %s", at.Sub(cut), next.at.Sub(cut))
		if at.After(cut.Add(3 * time.Second)) {
			t.Errorf("it stopped %s after it was cut off, with a lease of 3s", at.Sub(cut))
		}
	default:
		t.Error("the next one is in, and the holder that was cut off has not stopped")
	}
	wantIs(t, context.Cause(h.Context()), lock.ErrLost)
	if next.Token() <= h.Token() {
		t.Errorf("token %d after %d", next.Token(), h.Token())
	}
	// The lease and margin, as seen by reads a third of a lease apart, twice; and a busy machine.
	if took := next.at.Sub(cut); took > 15*time.Second {
		t.Errorf("the next one was in after %s", took)
	}
	p.behave(nil)
	wantIs(t, h.Release(t.Context()), lock.ErrNotHeld)
	must(t, next.Check(t.Context()))
}

func TestFault10ACallbackThatIgnoresItsContextIsRefused(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3})
	p, q := newProgram(t, ns), newProgram(t, ns)
	var resource register
	err := p.Do(t.Context(), "ledger", func(ctx context.Context, h *lock.Hold) error {
		must(t, resource.write(h.Token()))
		p.behave(unreachable)
		next, err := q.Acquire(t.Context(), "ledger") //nolint:contextcheck // another program does
		must(t, err)
		must(t, resource.write(next.Token()))
		p.behave(nil)
		if ctx.Err() == nil {
			t.Error("the context goes on beside the next holder")
		}
		return resource.write(h.Token())
	})
	if !errors.Is(err, errStaleToken) || !errors.Is(err, lock.ErrLost) || len(resource.written) != 2 {
		t.Errorf("got %v, written with %d", err, resource.written)
	}
}

// Everything that the process asks for hangs, except for renewals.
func TestFault11RenewalsAreNotHeldUpByWhatElseIsAskedFor(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3})
	p := newProgram(t, ns)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	p.behave(func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		if req.Method == http.MethodPut {
			return next.RoundTrip(req)
		}
		return unreachable(next, req)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for i := range 200 {
		asking.Go(func() { _, _ = p.TryAcquire(ctx, fmt.Sprintf("other-%d", i)) })
	}
	renewals := 0
	last := read(t, l).Status.Holders[0].RenewTime
	until(t, l, "renewed four times", func(l *v1alpha1.DistLock) bool {
		if len(l.Status.Holders) == 1 && l.Status.Holders[0].RenewTime.After(last.Time) {
			last = l.Status.Holders[0].RenewTime
			renewals++
		}
		return renewals >= 4
	})
	if h.Context().Err() != nil {
		t.Errorf("it ended: %v", context.Cause(h.Context()))
	}
	cancel()
	asking.Wait()
}

func TestFault17ALateReleaseTouchesNobody(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 60})
	clock := &lock.Clock{}
	p, q := newProgram(t, ns), newProgramWith(t, ns, clock)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	_, err = q.TryAcquire(t.Context(), "ledger")
	wantHeldBy(t, err, h)
	clock.Jump(66*time.Second, 0)
	next, err := q.TryAcquire(t.Context(), "ledger")
	must(t, err)
	wantIs(t, h.Release(t.Context()), lock.ErrNotHeld)
	now := read(t, l)
	if len(now.Status.Holders) != 1 || now.Status.Holders[0].Owner != next.Owner() || now.Status.Holders[0].FencingToken != next.Token() {
		t.Errorf("got %+v", now.Status)
	}
	must(t, next.Check(t.Context()))
}

// The one whose write comes first wins, and the other one learns of it.
func TestFault18ARenewalAndAnExpiryRace(t *testing.T) {
	ns := namespace(t)
	for _, wins := range []string{"renewal", "expiry"} {
		t.Run("the "+wins+" wins", func(t *testing.T) {
			l := lockIn(t, ns, wins, v1alpha1.DistLockSpec{LeaseDurationSeconds: 60})
			holders, expirers := &lock.Clock{}, &lock.Clock{}
			p, q := newProgramWith(t, ns, holders), newProgramWith(t, ns, expirers)
			h, err := p.Acquire(t.Context(), wins)
			must(t, err)
			_, err = q.TryAcquire(t.Context(), wins)
			wantHeldBy(t, err, h)
			p.taken()
			q.taken()

			heldUp, letGo := held()
			map[string]*program{"renewal": q, "expiry": p}[wins].behave(only("PUT distlocks/status", heldUp))
			holders.Jump(21*time.Second, 21*time.Second)
			expirers.Jump(66*time.Second, 66*time.Second)
			tried := make(chan acquired, 1)
			try := func() {
				h, err := q.TryAcquire(t.Context(), wins)
				tried <- acquired{h, err, time.Now()}
			}
			if wins == "renewal" {
				go try()
				q.awaitRequest(t, "PUT distlocks/status") // and held up
				first := read(t, l).Status.Holders[0].RenewTime
				until(t, l, "renewed", func(l *v1alpha1.DistLock) bool { return l.Status.Holders[0].RenewTime.After(first.Time) })
				letGo()
				got := <-tried
				wantHeldBy(t, got.err, h)
				must(t, h.Check(t.Context()))
				return
			}
			p.awaitRequest(t, "PUT distlocks/status") // and held up
			go try()
			got := <-tried
			must(t, got.err)
			letGo()
			<-h.Lost()
			wantIs(t, context.Cause(h.Context()), lock.ErrLost)
			wantIs(t, h.Release(t.Context()), lock.ErrNotHeld)
			must(t, got.Check(t.Context()))
		})
	}
}

func TestFault23OneErrorIsNoLoss(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 15})
	clock := &lock.Clock{}
	p := newProgramWith(t, ns, clock)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	for name, fails := range map[string]behaviour{
		"429": func(_ http.RoundTripper, req *http.Request) (*http.Response, error) {
			return answered(req, http.StatusTooManyRequests, http.Header{"Retry-After": []string{"1"}}), nil
		},
		"429 for long": func(_ http.RoundTripper, req *http.Request) (*http.Response, error) {
			return answered(req, http.StatusTooManyRequests, http.Header{"Retry-After": []string{"30"}}), nil
		},
		"500": refuses,
		"503": func(_ http.RoundTripper, req *http.Request) (*http.Response, error) {
			return answered(req, http.StatusServiceUnavailable, nil), nil
		},
		"no answer":        unreachable,
		"no connection":    cut(false),
		"no answer, later": cut(true),
		"401": func(_ http.RoundTripper, req *http.Request) (*http.Response, error) {
			return answered(req, 401, nil), nil
		},
		"403": func(_ http.RoundTripper, req *http.Request) (*http.Response, error) {
			return answered(req, 403, nil), nil
		},
	} {
		before := read(t, l).Status.Holders[0].RenewTime
		var once sync.Once
		failed := make(chan struct{})
		p.behave(func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
			f := next.RoundTrip
			if req.Method == http.MethodPut {
				once.Do(func() {
					f = func(req *http.Request) (*http.Response, error) { return fails(next, req) }
					close(failed)
				})
			}
			return f(req)
		})
		clock.Jump(5*time.Second, 5*time.Second)
		<-failed
		until(t, l, "renewed after "+name, func(l *v1alpha1.DistLock) bool { return l.Status.Holders[0].RenewTime.After(before.Time) })
		eventually(t, "counted again after "+name, func() bool { return h.Context().Err() != nil || h.Left() > 10*time.Second })
		if h.Context().Err() != nil {
			t.Fatalf("%s: %v", name, context.Cause(h.Context()))
		}
	}
	must(t, h.Release(t.Context()))
}

func TestFault42ARenewalIsAChangeWhateverTheClockSays(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 60})
	clock, other := &lock.Clock{}, &lock.Clock{}
	p, q := newProgramWith(t, ns, clock), newProgramWith(t, ns, other)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	first := read(t, l)
	_, err = q.TryAcquire(t.Context(), "ledger")
	wantHeldBy(t, err, h)
	clock.Jump(21*time.Second, -time.Hour)
	renewed := until(t, l, "renewed", func(l *v1alpha1.DistLock) bool { return l.ResourceVersion != first.ResourceVersion })
	before, after := first.Status.Holders[0].RenewTime, renewed.Status.Holders[0].RenewTime
	if after.Sub(before.Time) != time.Microsecond {
		t.Errorf("renewed at %s, and before at %s", after, before)
	}
	other.Jump(59*time.Second, 0)
	_, err = q.TryAcquire(t.Context(), "ledger") // it sees the renewal
	wantHeldBy(t, err, h)
	other.Jump(59*time.Second, 0)
	_, err = q.TryAcquire(t.Context(), "ledger")
	wantHeldBy(t, err, h)
}
