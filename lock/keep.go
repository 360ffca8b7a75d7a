package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/distlock-dev/distlock/internal/protocol"
)

// keep renews the hold every third of its lease, and ends its context a margin before
// the lease can end, or when the Client is closed. It looks at both clocks several
// times within that margin, also while a renewal is under way: a machine that was
// suspended has to notice (L4).
func (h *Hold) keep(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	var renewals sync.WaitGroup
	defer renewals.Wait()
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	h.mu.Lock()
	due := h.counted.mono + h.lease/3
	h.mu.Unlock()
	renewed := make(chan error, 1)
	for underWay := false; ; {
		select {
		case <-ctx.Done():
			_ = h.lose(ErrLost) // nobody renews it any more
			return
		case err := <-renewed:
			if errors.Is(err, ErrLost) || errors.Is(err, ErrRevoked) {
				_ = h.lose(err)
				return
			}
			underWay, due = false, h.dueAfter(err)
		case <-timer.C:
		}
		now := h.c.now()
		left := h.left(now)
		if left <= 0 {
			_ = h.lose(ErrLost)
			return
		}
		next := min(left, protocol.Margin(h.lease)/2)
		switch {
		case underWay:
		case now.mono >= due:
			underWay = true
			renewals.Go(func() { renewed <- h.renew(ctx, left) })
		default:
			next = min(next, due-now.mono)
		}
		timer.Reset(next)
	}
}

// dueAfter is when the next renewal is due after one that ended so.
func (h *Hold) dueAfter(err error) time.Duration {
	if err != nil {
		return h.c.now().mono + h.lease/60
	}
	return h.c.now().mono + h.lease/3
}

// confirm renews a hold that was seen late, before anything relies on it. It tries for
// as long as the hold may be there.
func (h *Hold) confirm(ctx context.Context) error {
	began := h.c.now()
	for pauses := retryPauses(); ; pause(ctx, pauses.Step()) {
		err := h.renew(ctx, h.lease)
		switch {
		case err == nil, errors.Is(err, ErrLost), errors.Is(err, ErrRevoked), refused(err), ctx.Err() != nil:
			return err
		case h.c.now().elapsed(began) > h.lease:
			return fmt.Errorf("%w: %w", ErrLost, err)
		}
	}
}

// renew renews the hold within so long, and reads first where the last version seen is
// not the last that is. It fails with ErrLost or ErrRevoked where the hold is gone, or
// is to go; after any other error it may be tried again.
func (h *Hold) renew(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		sent := h.c.now()
		err := h.change(ctx, func(s protocol.State) (protocol.State, error) { return s.Renew(h.owner, h.token, sent.wall) })
		switch {
		case err == nil:
			h.mu.Lock()
			h.counted = sent
			h.mu.Unlock()
			return nil
		case errors.Is(err, protocol.ErrNotHeld), apierrors.IsNotFound(err):
			return ErrLost
		case errors.Is(err, protocol.ErrRevoked):
			return ErrRevoked
		case apierrors.IsConflict(err) && ctx.Err() == nil:
			continue
		}
		return fmt.Errorf("renewing DistLock %s: %w", h.name, err)
	}
}

// patience is how long the answer to a write is waited for: so long that there is
// time for another try, over a new connection.
func (h *Hold) patience() time.Duration { return h.lease / 5 }

// change writes the lock as f makes it, from the version seen last; where that is
// known not to be the last that is, it is read first.
func (h *Hold) change(ctx context.Context, f func(protocol.State) (protocol.State, error)) error {
	h.mu.Lock()
	stale := h.stale
	h.mu.Unlock()
	lock := h.view.latest()
	if lock == nil || lock.ResourceVersion == stale {
		var err error
		if lock, err = h.c.holding.get(ctx, h.name, h.patience()); err != nil {
			return err
		}
		h.view.show(lock)
	}
	state, err := protocol.StateOf(lock)
	if err != nil {
		return err
	}
	next, err := f(state)
	if err != nil {
		return err
	}
	stored, err := h.c.holding.store(ctx, lock, next.Status, h.patience())
	if err != nil {
		h.mu.Lock()
		h.stale = lock.ResourceVersion
		h.mu.Unlock()
		return err
	}
	h.view.show(stored)
	return nil
}
