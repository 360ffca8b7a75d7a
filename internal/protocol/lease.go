package protocol

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// Margin is the time a holder stops before its lease ends, and that an expirer
// adds to it (L4): a tenth of the lease, at least 250 ms. It bounds how far the
// rates of two clocks, and the time from reading a clock to acting on it, may
// differ.
func Margin(lease time.Duration) time.Duration {
	return max(lease/10, 250*time.Millisecond)
}

// Lease is the lease of a hold; zero for a bound one.
func Lease(h v1alpha1.Hold) time.Duration {
	if h.LeaseDurationSeconds == nil {
		return 0
	}
	return time.Duration(*h.LeaseDurationSeconds) * time.Second
}

// HoldIsStale reports whether a hold may be expired by an observer that has seen
// it unchanged for so long, counted on that observer's monotonic clock from when
// it first saw this renewTime. A bound hold is never stale.
func HoldIsStale(h v1alpha1.Hold, unchanged time.Duration) bool {
	lease := Lease(h)
	return lease > 0 && unchanged >= lease+Margin(lease)
}

// Renew extends a leased hold. It always changes renewTime, so that observers
// see it also when the holder's clock stands still or went back. It fails with
// ErrNotHeld, ErrRevoked or ErrNotLeased.
func (s State) Renew(owner string, token int64, now time.Time) (State, error) {
	i, err := s.heldIndex(owner, token)
	if err != nil {
		return s, err
	}
	switch h := s.Status.Holders[i]; {
	case h.RevokeTime != nil:
		return s, ErrRevoked
	case h.LeaseDurationSeconds == nil:
		return s, ErrNotLeased
	}
	next := s.clone()
	h := &next.Status.Holders[i]
	h.RenewTime = later(h.RenewTime, now)
	h.ExpiryTime = expiry(*h)
	return next, nil
}

// Revoke asks a holder to stop; its hold cannot be renewed from then on. A hold
// that is revoked already stays as it is. It fails with ErrNotHeld.
func (s State) Revoke(owner string, now time.Time) (State, error) {
	i := s.holdIndex(owner)
	if i < 0 {
		return s, ErrNotHeld
	}
	if s.Status.Holders[i].RevokeTime != nil {
		return s, nil
	}
	next := s.clone()
	t := metav1.NewMicroTime(now.Truncate(time.Microsecond))
	next.Status.Holders[i].RevokeTime = &t
	return next, nil
}

// later is now, or a microsecond after the stored time where now is not later.
func later(stored metav1.MicroTime, now time.Time) metav1.MicroTime {
	now = now.Truncate(time.Microsecond)
	if first := stored.Add(time.Microsecond); now.Before(first) {
		now = first
	}
	return metav1.NewMicroTime(now)
}

func expiry(h v1alpha1.Hold) *metav1.MicroTime {
	if h.LeaseDurationSeconds == nil {
		return nil
	}
	t := metav1.NewMicroTime(h.RenewTime.Add(Lease(h)))
	return &t
}
