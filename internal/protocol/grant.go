package protocol

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// Grant gives the lock to a request, and is the only place that issues a token.
// Whoever calls it answers for the order (L7); Acquire and HandOver do. An owner
// that holds the lock already keeps its hold and its token (L9). It fails with
// ErrHeld, ErrClosed, ErrDeleted, ErrTooManyPermits or ErrTokensExhausted.
func (s State) Grant(r v1alpha1.Waiter, now time.Time) (State, error) {
	if s.holdIndex(r.Owner) >= 0 {
		return s, nil
	}
	if err := s.admits(r); err != nil {
		return s, err
	}
	token, err := s.nextToken()
	if err != nil {
		return s, err
	}
	next := s.clone()
	next.issued = token
	next.Status.FencingToken = token
	next.Status.LastGranted = r.Owner
	next.Status.Holders = append(next.Status.Holders, newHold(r, token, now))
	return next.dequeue(r.Owner), nil
}

// Acquire grants a request that comes by itself, not from the queue's order: it
// never overtakes the stored queue (L7). With others waiting it hands the lock
// down the queue in the same write, and fails with ErrQueued where that leaves no
// room for the request.
func (s State) Acquire(r v1alpha1.Waiter, now time.Time) (State, error) {
	if len(s.Status.Queue) == 0 || s.holdIndex(r.Owner) >= 0 {
		return s.Grant(r, now)
	}
	if err := s.admits(r); err != nil {
		return s, err
	}
	next := s.HandOver(now)
	if len(next.Status.Queue) == 0 || next.holdIndex(r.Owner) >= 0 {
		if next, err := next.Grant(r, now); err == nil {
			return next, nil
		}
	}
	return s, ErrQueued
}

// admits reports why the lock as it stands has no room for a request.
func (s State) admits(r v1alpha1.Waiter) error {
	switch {
	case s.Impossible(r):
		return ErrTooManyPermits
	case s.Deleted:
		return ErrDeleted
	case s.Status.ClosedSeconds > 0:
		return ErrClosed
	case len(s.Status.Holders) >= v1alpha1.MaxHolders:
		return ErrHeld
	case r.Mode == v1alpha1.Exclusive && len(s.Status.Holders) > 0:
		return ErrHeld
	case s.heldExclusively():
		return ErrHeld
	case s.Spec.Capacity != nil && s.permitsHeld()+int64(r.Permits) > int64(*s.Spec.Capacity) && r.Mode == v1alpha1.Shared:
		return ErrHeld
	}
	return nil
}

// Impossible reports whether a request asks for more permits than the lock has,
// and so would wait for ever.
func (s State) Impossible(r v1alpha1.Waiter) bool {
	return r.Mode == v1alpha1.Shared && s.Spec.Capacity != nil && r.Permits > *s.Spec.Capacity
}

func (s State) heldExclusively() bool {
	for _, h := range s.Status.Holders {
		if h.Mode == v1alpha1.Exclusive {
			return true
		}
	}
	return false
}

func (s State) permitsHeld() int64 {
	var sum int64
	for _, h := range s.Status.Holders {
		sum += int64(h.Permits)
	}
	return sum
}

// nextToken is the fencing token of this write: max(last + 1, Version), where
// Version is the resourceVersion of the object that the write replaces.
//
// It is greater than every token granted before under this lock's name, also
// when the lock was deleted and made anew in between:
//
//  1. A token never exceeds the resourceVersion of the write that stored it.
//     Every write's resourceVersion is at least Version + 1. The last token was
//     stored by a write not later than Version, so by induction last <= Version,
//     and max(last + 1, Version) <= Version + 1.
//  2. A lock made anew starts at a Version above every resourceVersion that its
//     predecessor ever had, and so, by 1, above every token of it.
//
// It needs the guarded write (L3), and a resourceVersion that is one number for
// all objects and only grows. After a restore from a backup or a move to another
// cluster that is not so; the mark must then be raised before clients start.
// All holds granted in one write share its token.
func (s State) nextToken() (int64, error) {
	if s.issued != 0 {
		return s.issued, nil
	}
	token := max(s.Status.FencingToken+1, s.Version)
	if token > v1alpha1.MaxToken {
		return 0, ErrTokensExhausted
	}
	return token, nil
}

func newHold(r v1alpha1.Waiter, token int64, now time.Time) v1alpha1.Hold {
	h := v1alpha1.Hold{
		Owner:                r.Owner,
		Mode:                 r.Mode,
		Permits:              r.Permits,
		FencingToken:         token,
		AcquireTime:          metav1.NewMicroTime(now.Truncate(time.Microsecond)),
		LeaseDurationSeconds: r.LeaseDurationSeconds,
		Ref:                  r.Ref,
	}
	h.RenewTime = h.AcquireTime
	h.ExpiryTime = expiry(h)
	return h
}
