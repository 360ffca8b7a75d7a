package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

func TestLeadCampaignsAgainAfterALoss(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "leader", v1alpha1.DistLockSpec{})
	p := newProgram(t, ns)
	var tokens []int64
	err := p.Lead(t.Context(), "leader", func(ctx context.Context, h *lock.Hold) error {
		tokens = append(tokens, h.Token())
		switch len(tokens) {
		case 1: // lost, and f noticed
			takeAway(t, l) //nolint:contextcheck // it is the test that does
			wantIs(t, h.Check(ctx), lock.ErrLost)
			return context.Cause(ctx)
		case 2: // lost, and f did not notice
			takeAway(t, l) //nolint:contextcheck // it is the test that does
			return nil
		case 3: // revoked
			revoke(t, l) //nolint:contextcheck // it is the test that does
			wantIs(t, h.Check(ctx), lock.ErrRevoked)
			return nil
		}
		return errOwn
	})
	if !errors.Is(err, errOwn) || errors.Is(err, lock.ErrLost) {
		t.Errorf("got %v", err)
	}
	if len(tokens) != 4 || tokens[0] >= tokens[1] || tokens[1] >= tokens[2] || tokens[2] >= tokens[3] {
		t.Errorf("led with the tokens %d", tokens)
	}
	until(t, l, "free", free)
}

// What f lost may have been another lock.
func TestLeadEndsWithFsErrorWhateverThatIs(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "leader", v1alpha1.DistLockSpec{})
	p := newProgram(t, ns)
	for _, want := range []error{lock.ErrLost, lock.ErrRevoked, lock.ErrHeld} {
		terms := 0
		err := p.Lead(t.Context(), "leader", func(context.Context, *lock.Hold) error {
			terms++
			if terms > 1 {
				return errOwn
			}
			return want
		})
		if terms != 1 || !errors.Is(err, want) {
			t.Errorf("led %d times when f returned %v, and got %v", terms, want, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Lead(ctx, "leader", func(context.Context, *lock.Hold) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestALeaderThatWasCutOffLeadsAgainWhenItCan(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "leader", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3})
	p := newProgram(t, ns)
	terms := make(chan *lock.Hold)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		ended <- p.Lead(ctx, "leader", func(ctx context.Context, h *lock.Hold) error {
			terms <- h
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}()
	first := <-terms
	p.behave(refuses)
	select {
	case <-first.Lost():
	case <-time.After(patience):
		t.Fatal("it leads on without the API server")
	}
	p.taken()
	p.awaitRequests(t, "GET distlocks", 4) // it releases, and then campaigns
	p.behave(nil)
	select {
	case second := <-terms:
		if second.Token() <= first.Token() {
			t.Errorf("token %d after %d", second.Token(), first.Token())
		}
	case err := <-ended:
		t.Fatalf("it gave up: %v", err)
	case <-time.After(patience):
		t.Fatal("it does not lead again")
	}
	cancel()
	wantIs(t, <-ended, context.Canceled)
}
