package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// Hold is one acquisition of a lock: a handle, not a mutex that is used again. It is
// renewed in the background until Release. Safe for concurrent use.
type Hold struct {
	c         *Client
	view      *view
	name      string
	owner     string
	token     int64
	lease     time.Duration
	claimName string
	claim     *v1alpha1.LockClaim
	since     instant // when this process saw it

	ctx    context.Context //nolint:containedctx // it is what a hold is: a context that ends with it
	cancel context.CancelCauseFunc
	lost   chan struct{}
	stop   context.CancelFunc // of the renewals
	kept   chan struct{}      // closed when there are no more renewals

	releasing chan struct{} // held by the one that releases
	released  bool

	mu      sync.Mutex
	counted instant // where the lease is counted from (L4)
	stale   string  // a resourceVersion that is known not to be the last
}

// newHold makes a Hold of an acquisition that has it. Where much of the lease has
// passed it is renewed first, and where it had ended before it was seen, that is
// ErrLost.
func newHold(ctx context.Context, a *acquisition) (*Hold, error) { //nolint:contextcheck // it is renewed until the Client is closed, whatever ctx does
	state, err := protocol.StateOf(a.held)
	if err != nil {
		return nil, err
	}
	stored, _ := state.Hold(a.owner)
	h := &Hold{
		c: a.Client, view: a.view, name: a.name, owner: a.owner, token: stored.FencingToken, lease: protocol.Lease(stored),
		claimName: a.claimName, claim: a.claim, since: a.now(), counted: a.counted,
		lost: make(chan struct{}), kept: make(chan struct{}), releasing: make(chan struct{}, 1),
	}
	if stored.RevokeTime != nil {
		return nil, ErrRevoked
	}
	if a.now().elapsed(h.counted) > h.lease/2 {
		if err := h.confirm(ctx); err != nil {
			return nil, err
		}
	}
	h.ctx, h.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	keeping, stop := context.WithCancel(a.life)
	h.stop = stop
	if a.watch != nil {
		h.watchOver(a.watch, stored.Mode)
	}
	h.c.mu.Lock()
	h.c.holds[h] = struct{}{}
	h.c.mu.Unlock()
	h.c.work.Go(func() {
		defer close(h.kept)
		h.keep(keeping)
	})
	return h, nil
}

// watchOver goes on with the watch that woke an Exclusive request, until the hold ends:
// it shows a revocation at once, and what the controller writes of the queue meanwhile,
// so that the release starts from the last version. A Shared one would see each renewal
// of all others.
func (h *Hold) watchOver(w watch.Interface, mode v1alpha1.Mode) {
	if mode == v1alpha1.Shared {
		w.Stop()
		return
	}
	context.AfterFunc(h.ctx, w.Stop)
	h.c.work.Go(func() {
		for e := range w.ResultChan() {
			if lock, ok := e.Object.(*v1alpha1.DistLock); ok && e.Type != watch.Deleted {
				h.view.show(lock)
				if err := h.fate(lock); errors.Is(err, ErrRevoked) {
					_ = h.lose(err)
				}
			}
		}
	})
}

// Name is the lock's.
func (h *Hold) Name() string { return h.name }

// Owner is the unique name of this acquisition, as it stands in the lock's status.
func (h *Hold) Owner() string { return h.owner }

// Token is the fencing token: greater than every one granted before under the lock's
// name. Hand it to whatever is written to, and have that refuse a lower one than it
// has seen (package fence): a process that was paused may wake up after its lease and
// write before it learns that.
func (h *Hold) Token() int64 { return h.token }

// Context ends when the hold is lost, revoked or released; context.Cause says which.
// It has the values of the context that was acquired with, and not its end.
func (h *Hold) Context() context.Context { return h.ctx }

// Lost is closed when the hold is lost or revoked, and not when it is released.
func (h *Hold) Lost() <-chan struct{} { return h.lost }

// ValidUntil is when the holder must have stopped if no further renewal succeeds: a
// margin before the lease can end, counted from the sending of the last renewal that
// did. The Context ends then, at the latest.
func (h *Hold) ValidUntil() time.Time { return time.Now().Add(h.left(h.c.now())) }

// left is how long the holder may go on.
func (h *Hold) left(now instant) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease - protocol.Margin(h.lease) - now.elapsed(h.counted)
}

// Check asks the API server whether the hold is still there and not revoked, and
// fails with ErrLost or ErrRevoked if not; with another error it is not known. It
// says what was so a moment ago: against a process that stands still between Check
// and the write that follows, only the token helps.
func (h *Hold) Check(ctx context.Context) error {
	if err := h.over(); err != nil {
		return err
	}
	if h.left(h.c.now()) <= 0 {
		return h.lose(ErrLost)
	}
	lock, err := h.c.holding.get(ctx, h.name, requestPatience)
	switch {
	case apierrors.IsNotFound(err):
		return h.lose(ErrLost)
	case err != nil:
		return fmt.Errorf("reading DistLock %s: %w", h.name, err)
	}
	h.view.show(lock)
	if err := h.fate(lock); err != nil {
		return h.lose(err)
	}
	if h.left(h.c.now()) <= 0 {
		return h.lose(ErrLost)
	}
	return nil
}

// fate is what a version of the lock says of the hold: nil, ErrLost or ErrRevoked.
func (h *Hold) fate(lock *v1alpha1.DistLock) error {
	for _, there := range lock.Status.Holders {
		if there.Owner == h.owner && there.FencingToken == h.token {
			if there.RevokeTime != nil {
				return ErrRevoked
			}
			return nil
		}
	}
	return ErrLost
}

// over is why the hold has ended; nil while it lasts.
func (h *Hold) over() error {
	if h.ctx.Err() == nil {
		return nil
	}
	return context.Cause(h.ctx)
}

// lose ends the context. The first reason counts.
func (h *Hold) lose(why error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() == nil {
		h.cancel(fmt.Errorf("DistLock %s: %w", h.name, why))
		close(h.lost)
	}
	return context.Cause(h.ctx)
}

// Release gives the lock up, and hands it to the first in its queue in the same
// write. Call it when everything has stopped that the lock guards. It may be called
// again, and then does nothing; it fails with ErrNotHeld when the hold had been taken
// away, and never touches a successor's. It works after ctx was cancelled: the lock
// must be released all the same. When the API server cannot be reached it tries for
// the time of a lease, in which the hold ends by itself.
func (h *Hold) Release(ctx context.Context) error { return h.giveUp(context.WithoutCancel(ctx)) }

// giveUp is Release within ctx.
func (h *Hold) giveUp(ctx context.Context) error {
	h.mu.Lock()
	if h.ctx.Err() == nil {
		h.cancel(fmt.Errorf("DistLock %s: %w: it was released", h.name, ErrNotHeld))
	}
	h.mu.Unlock()
	h.stop()
	<-h.kept
	select {
	case h.releasing <- struct{}{}:
		defer func() { <-h.releasing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if h.released {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, h.lease)
	defer cancel()
	err := h.release(ctx)
	if h.claim != nil { // off the critical path, and also when the hold is left to its lease
		h.c.inBackground(ctx, h.c.life, func(ctx context.Context) error { return h.c.deleteClaim(ctx, h.claimName, h.claim.UID) })
	}
	if err != nil && !errors.Is(err, ErrNotHeld) {
		return fmt.Errorf("releasing DistLock %s: %w", h.name, err)
	}
	h.released = true
	h.c.mu.Lock()
	delete(h.c.holds, h)
	h.c.mu.Unlock()
	return err
}

func (h *Hold) release(ctx context.Context) error {
	unclear := false
	for pauses := retryPauses(); ; {
		sent := h.c.now()
		err := h.change(ctx, func(s protocol.State) (protocol.State, error) {
			return s.Release(h.owner, h.token, sent.observed(h.since), sent.wall)
		})
		switch {
		case err == nil:
			return nil
		case errors.Is(err, protocol.ErrNotHeld), apierrors.IsNotFound(err):
			if unclear {
				return nil // it was this one's own write
			}
			return fmt.Errorf("DistLock %s: %w: somebody took it away", h.name, ErrNotHeld)
		case refused(err):
			return err
		case ctx.Err() != nil:
			return errors.Join(err, ctx.Err())
		case apierrors.IsConflict(err):
			pause(ctx, pauses.Step()/10)
		default:
			unclear = true
			pause(ctx, pauses.Step())
		}
	}
}
