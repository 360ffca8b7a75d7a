package protocol

import (
	"errors"
	"slices"
	"time"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

const maxClosedSeconds = 3600

// Release ends a hold and hands the lock to the head of the stored queue in the
// same write. heldFor is how long the caller itself knows the hold to have
// lasted, a lower bound on its monotonic clock: where that is less than
// minHoldSeconds, the lock closes for the rest instead. It fails with
// ErrNotHeld, and so never touches the next holder's hold (L9).
func (s State) Release(owner string, token int64, heldFor time.Duration, now time.Time) (State, error) {
	next, err := s.end(owner, token)
	if err != nil {
		return s, err
	}
	return next.closeFor(s.minHoldLeft(heldFor)).HandOver(now), nil
}

// Expire ends a hold whose holder gave no sign of life; only an observer for
// which HoldIsStale may call it, and only for the hold that it observed. The
// lock closes for lockDelaySeconds, and for what is left of minHoldSeconds. It
// fails with ErrNotHeld.
func (s State) Expire(owner string, token int64, heldFor time.Duration, now time.Time) (State, error) {
	next, err := s.end(owner, token)
	if err != nil {
		return s, err
	}
	return next.closeFor(max(s.minHoldLeft(heldFor), s.Spec.LockDelaySeconds)).HandOver(now), nil
}

// HandOver grants the lock down the stored queue while it has room (L7, L8). A
// waiter for more permits than the lock has leaves the queue: it would hold up
// all behind it for as long as no controller is there.
func (s State) HandOver(now time.Time) State {
	for len(s.Status.Queue) > 0 {
		head := s.Status.Queue[0]
		next, err := s.Grant(head, now)
		if err != nil && !errors.Is(err, ErrTooManyPermits) {
			return s
		}
		s = next.dequeue(head.Owner)
	}
	return s
}

// Open clears closedSeconds; only an observer that counted them may call it.
func (s State) Open() State {
	next := s.clone()
	next.Status.ClosedSeconds = 0
	return next
}

// end removes a hold.
func (s State) end(owner string, token int64) (State, error) {
	i, err := s.heldIndex(owner, token)
	if err != nil {
		return s, err
	}
	next := s.clone()
	next.Status.Holders = slices.Delete(next.Status.Holders, i, i+1)
	return next, nil
}

// closeFor closes the lock for so many seconds, on top of what it is closed for
// already. Observers count from a change of closedSeconds, so where the lock is
// closed the value must differ from before and cover what may be left of it. The
// longest closing that the spec knows covers that and every other, counted from
// now, so the value goes to and fro there instead of growing with each hold that
// ends. All holds that end in one write must close the lock once.
func (s State) closeFor(seconds int32) State {
	if seconds <= 0 {
		return s
	}
	before, longest := s.Status.ClosedSeconds, max(s.Spec.MinHoldSeconds, s.Spec.LockDelaySeconds)
	closed := max(before, seconds)
	if closed == before {
		closed++
	}
	if closed > longest+1 {
		closed = longest
	}
	if closed > maxClosedSeconds {
		closed = maxClosedSeconds - 1
	}
	next := s.clone()
	next.Status.ClosedSeconds = closed
	return next
}

func (s State) minHoldLeft(heldFor time.Duration) int32 {
	left := time.Duration(s.Spec.MinHoldSeconds)*time.Second - max(heldFor, 0)
	if left <= 0 {
		return 0
	}
	return int32((left + time.Second - 1) / time.Second) //nolint:gosec // at most minHoldSeconds
}

// dequeue takes a waiter out of the stored queue.
func (s State) dequeue(owner string) State {
	i := slices.IndexFunc(s.Status.Queue, func(w v1alpha1.Waiter) bool { return w.Owner == owner })
	if i < 0 {
		return s
	}
	next := s.clone()
	next.Status.Queue = slices.Delete(next.Status.Queue, i, i+1)
	next.Status.Waiting = max(next.Status.Waiting-1, 0)
	return next
}
