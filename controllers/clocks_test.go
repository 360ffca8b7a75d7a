package controllers_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// jumpingClock is a clock whose wall part is so many seconds off, while its
// monotonic part goes on as it should. time.Time has no way to say that: Add moves
// both.
type jumpingClock struct{ seconds atomic.Int64 }

// Now implements clock.PassiveClock. With a monotonic reading, the first word of
// a time.Time has the wall clock's seconds above 30 bits of nanoseconds.
func (c *jumpingClock) Now() time.Time {
	now := time.Now()
	*(*uint64)(unsafe.Pointer(&now)) += uint64(c.seconds.Load()) << 30
	return now
}

// Since implements clock.PassiveClock.
func (c *jumpingClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func TestAJumpOfTheWallClockLeavesTheMonotonicOne(t *testing.T) {
	for _, hour := range []int64{3600, -3600} {
		var c jumpingClock
		before := c.Now()
		c.seconds.Add(hour)
		if d := c.Since(before); d < 0 || d > time.Minute {
			t.Errorf("%v passed on the monotonic clock", d)
		}
		if d := c.Now().Round(0).Sub(before.Round(0)) - time.Duration(hour)*time.Second; d < 0 || d > time.Minute {
			t.Errorf("%v off on the wall clock", d)
		}
	}
}

var jumps = map[string]int64{"an hour ahead": 3600, "an hour back": -3600}

func TestFault20TheControllersWallClockJumps(t *testing.T) {
	t.Parallel()
	for name, hour := range jumps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := namespace(t)
			c := &jumpingClock{}
			startController(t, ns, func(s *settings) { s.clock = c })
			lockIn(t, ns, "service", v1alpha1.DistLockSpec{LockDelaySeconds: 3})
			holder := &holder{ns: ns, lock: "service", lease: 3}
			holder.takeAnew(t)
			next := untilClaim(t, claimOn(t, ns, "next", "service", nil), v1alpha1.ReasonWaiting)

			c.seconds.Add(hour)
			holder.renewTimes(t, 5)
			begun := time.Now()
			holder.renewTimes(t, 1) // its last; the controller has seen it when the tick is over
			c.seconds.Add(hour)
			untilLock(t, ns, "service", "closed after the expiry", func(l *v1alpha1.DistLock) bool { return l.Status.ClosedSeconds > 0 })
			c.seconds.Add(hour)
			untilClaim(t, next, v1alpha1.ReasonGranted)
			inTime(t, time.Since(begun), expiresAfter(3)+3*time.Second)
		})
	}
}

func TestFault20TheHoldersWallClockJumps(t *testing.T) {
	t.Parallel()
	for name, hour := range jumps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := namespace(t)
			startController(t, ns)
			holder := newHolder(t, ns, "service", 3)
			next := untilClaim(t, claimOn(t, ns, "next", "service", nil), v1alpha1.ReasonWaiting)
			holder.ahead = time.Duration(hour) * time.Second
			holder.renewTimes(t, 5)
			begun := time.Now()
			must(t, holder.renew(t.Context())) // its last
			untilClaim(t, next, v1alpha1.ReasonGranted)
			inTime(t, time.Since(begun), expiresAfter(3))
		})
	}
}

// Two programs on hosts whose clocks differ by less than minHoldSeconds start a
// run at every tick if they get the lock at once. A run ends at once.
func TestFault29OneRunATickOnTwoSchedulersWithSkewedClocks(t *testing.T) {
	t.Parallel()
	const minHold = 3
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "tick", v1alpha1.DistLockSpec{MinHoldSeconds: minHold})
	for tick, order := range [][]string{{"east", "west"}, {"west", "east"}, {"east", "west"}} {
		begun := time.Now()
		var results []error
		for _, scheduler := range order {
			results = append(results, runAtOnce(t, ns, "tick", scheduler))
		}
		if results[0] != nil || !errors.Is(results[1], protocol.ErrClosed) {
			t.Errorf("tick %d: the early one: %v; the late one: %v, want it closed", tick, results[0], results[1])
		}
		untilLock(t, ns, "tick", "open again", func(l *v1alpha1.DistLock) bool { return l.Status.ClosedSeconds == 0 })
		if d := time.Since(begun); d < minHold*time.Second {
			t.Errorf("tick %d: open again after %v", tick, d)
		}
	}
}

// Jobs wait for each other instead: two that end at once start minHoldSeconds
// apart.
func TestFault29JobsThatEndAtOnceStartMinHoldApart(t *testing.T) {
	t.Parallel()
	const minHold = 4
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{MinHoldSeconds: minHold})
	begun := time.Now()
	east, west := jobOn(t, ns, "east", "nightly"), jobOn(t, ns, "west", "nightly")
	setPhase(t, running(t, east), corev1.PodSucceeded)
	untilLock(t, ns, "nightly", "closed", func(l *v1alpha1.DistLock) bool { return l.Status.ClosedSeconds > 0 })
	untilStarted(t, ns, west.Name)
	if d := time.Since(begun); d < minHold*time.Second {
		t.Errorf("both started within %v", d)
	}
}

// runAtOnce takes a lock, or fails, and releases it at once.
func runAtOnce(t *testing.T, ns, lock, owner string) error {
	t.Helper()
	h := &holder{ns: ns, lock: lock, owner: owner}
	err := h.write(t.Context(), func(s protocol.State) (protocol.State, error) {
		next, err := s.Acquire(protocol.NewWaiter(s.Spec, owner, nil, nil, new(int32(15)), nil), time.Now())
		h.token = next.Status.FencingToken
		return next, err
	})
	if err != nil {
		return err
	}
	stored := time.Now() // later than the grant, so a lower bound of the time held
	return h.write(t.Context(), func(s protocol.State) (protocol.State, error) {
		return s.Release(owner, h.token, time.Since(stored), time.Now())
	})
}
