package protocol

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// lowQueue is when the stored queue is refilled although nothing else is
// written: releasers hand over down it while the controller is away, so it must
// not run empty, and a write for every arrival would be a write too many.
const lowQueue = v1alpha1.MaxQueue / 4

// Request is a waiter with what decides its place.
type Request struct {
	v1alpha1.Waiter
	// Since is when the request joined: the creationTimestamp of its object, or
	// a revoked Job's queued-at. Written by the API server or the controller,
	// compared with others of its kind only.
	Since time.Time
	// Seen orders requests as this observer first saw them.
	Seen int64
	// Running: its pods may run although it holds nothing. It comes first,
	// because nobody else may run beside it, and its hold is revoked at once.
	Running bool
}

// inOrder sorts requests first come, first served (L7): by the second they
// joined, then in the order in which the stored queue has them already, then as
// first seen, then by owner. Those that run come first.
func inOrder(stored []v1alpha1.Waiter, requests []Request) []Request {
	place := make(map[string]int, len(stored))
	for i, w := range stored {
		place[w.Owner] = i - len(stored) // negative: before all that are not stored
	}
	ordered := slices.Clone(requests)
	slices.SortFunc(ordered, func(a, b Request) int {
		return cmp.Or(
			cmp.Compare(btoi(b.Running), btoi(a.Running)),
			cmp.Compare(a.Since.Unix(), b.Since.Unix()),
			cmp.Compare(place[a.Owner], place[b.Owner]),
			cmp.Compare(a.Seen, b.Seen),
			cmp.Compare(a.Owner, b.Owner),
		)
	})
	return ordered
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// queueOf is the stored form of the first waiters.
func queueOf(waiting []Request) []v1alpha1.Waiter {
	var queue []v1alpha1.Waiter
	for _, r := range waiting[:min(len(waiting), v1alpha1.MaxQueue)] {
		queue = append(queue, r.Waiter)
	}
	return queue
}

// queueIsOff reports whether the stored queue needs a write of its own: it has
// someone who does not wait any more, is not in order, or runs low.
func queueIsOff(stored []v1alpha1.Waiter, waiting []Request) bool {
	if len(stored) > len(waiting) || len(stored) < min(lowQueue, len(waiting)) {
		return true
	}
	for i, w := range stored {
		if !equality.Semantic.DeepEqual(w, waiting[i].Waiter) {
			return true
		}
	}
	return false
}

// NewWaiter is a request in the terms of a lock: where it names no mode it is
// Shared on a lock with a capacity and Exclusive on one without, and it takes
// one permit unless it is Shared and names another number.
func NewWaiter(spec v1alpha1.DistLockSpec, owner string, mode *v1alpha1.Mode, permits, leaseSeconds *int32, ref *v1alpha1.ObjectRef) v1alpha1.Waiter {
	w := v1alpha1.Waiter{Owner: owner, Mode: v1alpha1.Exclusive, Permits: 1, LeaseDurationSeconds: leaseSeconds, Ref: ref}
	switch {
	case mode != nil:
		w.Mode = *mode
	case spec.Capacity != nil:
		w.Mode = v1alpha1.Shared
	}
	if w.Mode == v1alpha1.Shared && permits != nil {
		w.Permits = *permits
	}
	return w
}

// ClaimOwner is the owner of a LockClaim's hold, and of its place in the queue.
func ClaimOwner(claim types.UID) string { return "claim/" + string(claim) }

// Leave takes a request out of the stored queue that waits no more.
func (s State) Leave(owner string) State { return s.dequeue(owner) }
