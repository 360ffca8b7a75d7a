package protocol

import (
	"errors"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// What the law forbids in a write. The DistLock's schema says the same in CEL;
// test/transitions holds one against the other.
var (
	ErrTokenDecreased  = errors.New("status.fencingToken must not decrease: write back the status as it was read")
	ErrTokenOutOfRange = errors.New("status.fencingToken must stay below 2^53")
	ErrStaleToken      = errors.New("status.holders: a new hold must carry status.fencingToken, raised in the same write")
	ErrNotAlone        = errors.New("status.holders: an Exclusive hold must be alone")
	ErrOverCapacity    = errors.New("status.holders: the permits of the Shared holds must add up to at most spec.capacity when one is granted")
	ErrTooManyHolders  = errors.New("status.holders: at most 256")
	ErrHoldChanged     = errors.New("a hold keeps its mode and permits")
	ErrRevokedRenewed  = errors.New("a hold with a revokeTime keeps it and cannot be renewed")
)

// Legal reports what in the law a write from one status to the next breaks, as
// far as one write shows it: L1, L2, and that a revoked hold is not renewed. It
// is what the API server enforces, and no decision is made with it here.
func Legal(spec v1alpha1.DistLockSpec, before, after v1alpha1.DistLockStatus) error {
	if after.FencingToken < before.FencingToken {
		return ErrTokenDecreased
	}
	if after.FencingToken > v1alpha1.MaxToken {
		return ErrTokenOutOfRange
	}
	if len(after.Holders) > v1alpha1.MaxHolders {
		return ErrTooManyHolders
	}
	s := State{Spec: spec, Status: after}
	if len(after.Holders) > 1 && s.heldExclusively() {
		return ErrNotAlone
	}
	granted := false
	for _, h := range after.Holders {
		old, there := State{Status: before}.Hold(h.Owner)
		if there && old.FencingToken == h.FencingToken {
			if err := keeps(old, h); err != nil {
				return err
			}
			continue
		}
		if h.FencingToken != after.FencingToken || h.FencingToken <= before.FencingToken {
			return ErrStaleToken
		}
		granted = granted || h.Mode == v1alpha1.Shared
	}
	if granted && spec.Capacity != nil && s.permitsHeld() > int64(*spec.Capacity) {
		return ErrOverCapacity
	}
	return nil
}

// keeps reports what a hold that stays must not change.
func keeps(old, h v1alpha1.Hold) error {
	if h.Mode != old.Mode || h.Permits != old.Permits {
		return ErrHoldChanged
	}
	if old.RevokeTime != nil && (h.RevokeTime == nil || !h.RenewTime.Equal(&old.RenewTime)) {
		return ErrRevokedRenewed
	}
	return nil
}
