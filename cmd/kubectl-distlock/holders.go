package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// behind is what is behind a hold or a waiter, as people name it: Job/nightly,
// LockClaim/migration; its owner where it has no object.
func behind(owner string, ref *v1alpha1.ObjectRef) string {
	if ref == nil {
		return owner
	}
	return ref.Kind + "/" + ref.Name
}

// holder sums up who holds a lock.
func holder(l *v1alpha1.DistLock) string {
	holds := l.Status.Holders
	if len(holds) == 0 {
		return none
	}
	s := behind(holds[0].Owner, holds[0].Ref)
	if holds[0].RevokeTime != nil {
		s += " (revoked)"
	}
	if more := len(holds) - 1; more > 0 {
		s += fmt.Sprintf(" +%d", more)
	}
	return s
}

// expiry is when a hold ends unless renewed, as text. The time in it is of the
// holder's clock, and it is compared with this machine's, so it is only a hint.
func expiry(now time.Time, h v1alpha1.Hold) string {
	switch {
	case h.ExpiryTime != nil:
		return inOrAgo(now, h.ExpiryTime.Time)
	case h.Ref != nil:
		return "with its " + h.Ref.Kind
	}
	return none
}

func revoked(now time.Time, h v1alpha1.Hold) string {
	if h.RevokeTime == nil {
		return "no"
	}
	return inOrAgo(now, h.RevokeTime.Time)
}

// permits is how much of a lock's capacity is taken.
func permits(l *v1alpha1.DistLock) string {
	if l.Spec.Capacity == nil {
		return none
	}
	var taken int64
	for _, h := range l.Status.Holders {
		taken += int64(h.Permits)
	}
	return fmt.Sprintf("%d/%d", taken, *l.Spec.Capacity)
}

func owners(l *v1alpha1.DistLock) string {
	all := make([]string, 0, len(l.Status.Holders))
	for _, h := range l.Status.Holders {
		all = append(all, h.Owner)
	}
	return orNone(strings.Join(all, ","))
}
