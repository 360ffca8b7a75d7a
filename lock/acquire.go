package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// TryAcquire takes the lock if it is to be had at once, and fails with a *HeldError
// if not. It never gets past those that are in the lock's stored queue. It fails
// with ErrNoLock where there is none.
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...Option) (*Hold, error) {
	a, err := c.request(name, opts)
	if err != nil {
		return nil, err
	}
	return a.end(ctx, ctx, a.try(ctx))
}

// Acquire waits its turn, first come first served, until it has the lock, ctx ends
// or Wait is over; then it leaves the queue, which takes up to ten seconds where the
// API server does not answer, and goes on in the background. A free lock costs one
// write. The error tells which: ErrHeld (a *HeldError) with ctx's error, ErrNoLock, or
// another one of the API server's. A hold that is lost or revoked before this process
// saw it is none: it waits again.
func (c *Client) Acquire(ctx context.Context, name string, opts ...Option) (*Hold, error) {
	a, err := c.request(name, opts)
	if err != nil {
		return nil, err
	}
	bounded := ctx
	if a.options.wait > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, a.options.wait)
		defer cancel()
	}
	for {
		err := a.try(bounded)
		if errors.Is(err, ErrHeld) {
			err = a.wait(bounded)
		}
		h, err := a.end(ctx, bounded, err)
		gone := errors.Is(err, ErrLost) || errors.Is(err, ErrRevoked)
		if !gone || bounded.Err() != nil {
			return h, err
		}
		a.again()
	}
}

// acquisition is one request for a lock. Not for concurrent use.
type acquisition struct {
	*Client
	options
	view  *view
	name  string
	owner string // of the hold it asks for
	ref   *v1alpha1.ObjectRef
	// claimName is that of its place in the queue, once it asked for one; claim is
	// the place, and the hold's object.
	claimName string
	claim     *v1alpha1.LockClaim

	// counted is where the lease is counted from once the hold is there: an instant
	// at which it was not yet (L4).
	counted instant
	seen    *v1alpha1.DistLock // as it was when it was not to be had
	unclear bool               // a write may have been stored, or be stored yet
	held    *v1alpha1.DistLock // as it was when the hold was seen in it
	free    *v1alpha1.DistLock // as a live read showed it when it was to be had
	watch   watch.Interface    // that showed the hold
}

// end makes a Hold of what was acquired, or else sees to it that nothing of the
// request is left. bounded is ctx, or ends before it.
func (a *acquisition) end(ctx, bounded context.Context, err error) (*Hold, error) {
	if err == nil {
		var h *Hold
		if h, err = newHold(bounded, a); err == nil {
			return h, nil
		}
	}
	stop(a.watch)
	if a.claimName != "" || a.unclear || a.held != nil {
		a.persist(ctx, a.leave)
	}
	if a.claimName != "" && a.claim == nil {
		a.inBackground(ctx, a.open, a.leaveLate)
	}
	return nil, a.explain(ctx, bounded, err)
}

// again makes a new request of it.
func (a *acquisition) again() {
	a.owner, a.ref = a.me.newOwner(), a.me.ref(a.namespace)
	a.claimName, a.claim, a.held, a.seen, a.unclear = "", nil, nil, nil, false
	a.free, a.watch = nil, nil
}

// explain makes a *HeldError of the end of a wait.
func (a *acquisition) explain(ctx, bounded context.Context, err error) error {
	ended := bounded.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
	switch {
	case ended && a.seen != nil:
		return errors.Join(a.whyNot(), err)
	case ended && ctx.Err() == nil: // Wait is over, and nothing was seen
		return fmt.Errorf("%w or could not be reached: %w", ErrHeld, err)
	}
	return err
}

// try takes the lock if the law lets it; nil: a.held has the hold. A *HeldError says
// why not. It starts from the version this process saw last, and reads where that is
// none, or does not let it. After an unknown outcome it reads until it knows (L9).
func (a *acquisition) try(ctx context.Context) error {
	a.counted = a.now()
	if lock := a.view.latest(); lock != nil {
		if next, _, why := a.next(lock); why == nil {
			if done, err := a.write(ctx, lock, *next); done {
				return err
			}
		}
	}
	return a.tryLive(ctx, a.now())
}

// tryLive is try from live reads that were sent after an instant.
func (a *acquisition) tryLive(ctx context.Context, after instant) error {
	for pauses := retryPauses(); ; pause(ctx, pauses.Step()/4) {
		lock, sent, err := a.read(ctx, after)
		if err != nil {
			return err
		}
		after = a.now()
		if a.holds(lock) {
			return nil
		}
		a.counted, a.seen, a.unclear = sent, lock, a.unclear && a.seen != nil && a.seen.ResourceVersion == lock.ResourceVersion
		next, stale, why := a.next(lock)
		if why != nil && !movable(why) {
			return why
		}
		if next == nil || (why == nil && stale == nil && a.leftToOthers(lock)) {
			return a.whyNot()
		}
		a.finishClaim(ctx, stale)
		done, err := a.write(ctx, lock, *next)
		if !done {
			continue
		}
		if err == nil && a.held == nil {
			return a.whyNot() // it was for others
		}
		return err
	}
}

// leftToOthers reports whether a lock that is to be had is not to be taken yet by one
// that is in its line: the controller grants it in order, at once, and where all that
// wait took it they would keep each other from it. Where nobody was granted it from one
// live read to the next, no controller is there.
func (a *acquisition) leftToOthers(lock *v1alpha1.DistLock) bool {
	before := a.free
	a.free = lock
	return a.claim != nil && (before == nil || before.Status.FencingToken != lock.Status.FencingToken)
}

// read reads the lock until that succeeds. An API server that cannot be reached is
// waited for, but only by those that wait anyway: a write that may have been stored
// is theirs too.
func (a *acquisition) read(ctx context.Context, after instant) (*v1alpha1.DistLock, instant, error) {
	var no refusals
	for pauses := retryPauses(); ; pause(ctx, pauses.Step()) {
		lock, sent, err := a.view.read(ctx, after)
		switch {
		case err == nil:
			return lock, sent, nil
		case apierrors.IsNotFound(err):
			return nil, instant{}, noLock(a.namespace, a.name)
		case ctx.Err() != nil:
			return nil, instant{}, ctx.Err()
		case a.claim == nil && refused(err), no.final(err, a.now()):
			return nil, instant{}, err
		case a.claim == nil && !a.unclear:
			return nil, instant{}, fmt.Errorf("%w: %w", errNoAnswer, err)
		case a.claim == nil && a.now().elapsed(a.counted) > a.lease(a.seen.Spec): // what may have been stored is worth nothing by now
			return nil, instant{}, fmt.Errorf("%w: %w", errNoAnswer, err)
		}
	}
}

// movable reports whether a request has to wait, and nothing more.
func movable(why error) bool {
	return errors.Is(why, protocol.ErrHeld) || errors.Is(why, protocol.ErrClosed) || errors.Is(why, protocol.ErrQueued)
}

// next is what to store, from a version of the lock: with this request's hold, and
// why is nil; or else what is overdue. nil: nothing. stale is the hold that it expires.
func (a *acquisition) next(lock *v1alpha1.DistLock) (next *protocol.State, stale *v1alpha1.Hold, why error) {
	before, err := protocol.StateOf(lock)
	if err != nil {
		return nil, nil, err
	}
	now := a.now().wall
	base, stale := a.view.overdue(before)
	w := a.waiter(lock.Spec)
	if base.Impossible(w) {
		return nil, nil, fmt.Errorf("lock.Permits: %d: DistLock %s has %d in all", w.Permits, a.name, *lock.Spec.Capacity)
	}
	granted, why := base.Acquire(w, now)
	if why == nil {
		return &granted, stale, nil
	}
	if errors.Is(why, protocol.ErrDeleted) {
		return nil, nil, fmt.Errorf("%w: DistLock %s is being deleted", ErrNoLock, a.name)
	}
	base = base.HandOver(now)
	if !base.Differs(before) {
		return nil, nil, why
	}
	return &base, stale, why
}

// waiter is the request in the terms of a lock. Its hold is always leased.
func (a *acquisition) waiter(spec v1alpha1.DistLockSpec) v1alpha1.Waiter {
	lease := int32(a.lease(spec) / time.Second) //nolint:gosec // at most an hour
	return protocol.NewWaiter(spec, a.owner, a.mode, a.permits, &lease, a.ref)
}

func (a *acquisition) lease(spec v1alpha1.DistLockSpec) time.Duration {
	seconds := spec.LeaseDurationSeconds
	if a.leaseSeconds != nil {
		seconds = *a.leaseSeconds
	}
	if seconds == 0 {
		seconds = v1alpha1.DefaultLeaseSeconds
	}
	return time.Duration(seconds) * time.Second
}

// write stores what next said; done: its outcome is known, and no other version of
// the lock has to be looked at.
func (a *acquisition) write(ctx context.Context, lock *v1alpha1.DistLock, next protocol.State) (done bool, err error) {
	sent, before := a.now(), a.unclear
	a.unclear, a.seen = true, lock
	stored, err := a.asking.store(ctx, lock, next.Status, requestPatience)
	switch {
	case err == nil:
		a.unclear = false
		a.view.show(stored)
		a.counted = sent // the version that was replaced did not have the hold
		a.holds(stored)
		return true, nil
	case apierrors.IsConflict(err):
		a.unclear = before // it may be an earlier one of its own
		return false, nil
	case apierrors.IsNotFound(err):
		a.unclear = false
		a.view.gone()
		return true, noLock(a.namespace, a.name)
	case refused(err):
		a.unclear = false
		return true, fmt.Errorf("writing DistLock %s: %w", a.name, err)
	}
	return false, nil
}

// holds takes in a version of the lock that may have the request's hold.
func (a *acquisition) holds(lock *v1alpha1.DistLock) bool {
	for _, h := range lock.Status.Holders {
		if h.Owner == a.owner {
			a.held, a.unclear = lock, false
			return true
		}
	}
	return false
}

func (a *acquisition) whyNot() error {
	_, _, why := a.next(a.seen)
	if why == nil {
		why = protocol.ErrHeld
	}
	return heldError(a.seen, why)
}
