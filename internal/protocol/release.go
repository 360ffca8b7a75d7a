package protocol

import (
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
	next, err := s.end(owner, token, s.minHoldLeft(heldFor))
	if err != nil {
		return s, err
	}
	return next.HandOver(now), nil
}

// Expire ends a hold whose holder gave no sign of life; only an observer for
// which HoldIsStale may call it, and only for the hold that it observed. The
// lock closes for lockDelaySeconds, and for what is left of minHoldSeconds. It
// fails with ErrNotHeld.
func (s State) Expire(owner string, token int64, heldFor time.Duration, now time.Time) (State, error) {
	next, err := s.end(owner, token, max(s.minHoldLeft(heldFor), s.Spec.LockDelaySeconds))
	if err != nil {
		return s, err
	}
	return next.HandOver(now), nil
}

// HandOver grants the lock down the stored queue while it has room (L7, L8).
func (s State) HandOver(now time.Time) State {
	for len(s.Status.Queue) > 0 {
		next, err := s.Grant(s.Status.Queue[0], now)
		if err != nil {
			return s
		}
		next.dequeue(s.Status.Queue[0].Owner)
		s = next
	}
	return s
}

// Open clears closedSeconds; only an observer that counted them may call it.
func (s State) Open() State {
	next := s.clone()
	next.Status.ClosedSeconds = 0
	return next
}

// end removes a hold and closes the lock for so many seconds.
func (s State) end(owner string, token int64, closeFor int32) (State, error) {
	i, err := s.heldIndex(owner, token)
	if err != nil {
		return s, err
	}
	next := s.clone()
	next.Status.Holders = slices.Delete(next.Status.Holders, i, i+1)
	if closeFor > 0 {
		next.Status.ClosedSeconds = closedSeconds(s.Status.ClosedSeconds, closeFor)
	}
	return next, nil
}

// closedSeconds is the value that makes every observer count from now for at
// least so long. They count from a change, so where the lock is closed already
// the value must differ from before.
func closedSeconds(before, want int32) int32 {
	if before == 0 {
		return min(want, maxClosedSeconds)
	}
	if next := max(before, want) + 1; next <= maxClosedSeconds {
		return next
	}
	if before == maxClosedSeconds {
		return maxClosedSeconds - 1
	}
	return maxClosedSeconds
}

func (s State) minHoldLeft(heldFor time.Duration) int32 {
	left := time.Duration(s.Spec.MinHoldSeconds)*time.Second - max(heldFor, 0)
	if left <= 0 {
		return 0
	}
	return int32((left + time.Second - 1) / time.Second)
}

func (s *State) dequeue(owner string) {
	s.Status.Queue = slices.DeleteFunc(slices.Clone(s.Status.Queue), func(w v1alpha1.Waiter) bool { return w.Owner == owner })
}
