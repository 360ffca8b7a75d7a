package protocol_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// Fault 17.
func TestALateReleaseDoesNotTouchTheNextHolder(t *testing.T) {
	play(t, v1alpha1.DistLockSpec{},
		step{acquire(exclusive("a")), nil, "a=100"},
		step{expire("a", 100, time.Hour), nil, "free"},
		step{acquire(exclusive("b")), nil, "b=102"},
		step{release("a", 100, 0), protocol.ErrNotHeld, "b=102"},
		step{release("a", 102, 0), protocol.ErrNotHeld, "b=102"},
		step{release("b", 100, 0), protocol.ErrNotHeld, "b=102"},
		step{expire("a", 100, 0), protocol.ErrNotHeld, "b=102"},
		step{expire("b", 100, 0), protocol.ErrNotHeld, "b=102"},
	)
}

func TestARetriedReleaseDoesNotEndTheOwnersNextHold(t *testing.T) {
	play(t, v1alpha1.DistLockSpec{},
		step{acquire(exclusive("a")), nil, "a=100"},
		step{release("a", 100, 0), nil, "free"},
		step{acquire(exclusive("a")), nil, "a=102"},
		step{release("a", 100, 0), protocol.ErrNotHeld, "a=102"},
	)
}

func TestAReleaseHandsTheLockDownTheStoredQueue(t *testing.T) {
	play(t, v1alpha1.DistLockSpec{},
		step{acquire(exclusive("a")), nil, "a=100"},
		step{queue(exclusive("b"), exclusive("c"), shared("s", 1), shared("u", 1), exclusive("d")), nil, "a=100 < b c s u d"},
		step{release("a", 100, 0), nil, "b=102 < c s u d"},
		step{release("b", 102, 0), nil, "c=103 < s u d"},
		step{release("c", 103, 0), nil, "s~104 u~104 < d"},
		step{release("s", 104, 0), nil, "u~104 < d"},
		step{release("u", 104, 0), nil, "d=106"},
		step{release("d", 106, 0), nil, "free"},
	)
}

func TestAHoldHandedOverIsWhatTheWaiterAskedFor(t *testing.T) {
	ref := &v1alpha1.ObjectRef{APIVersion: "batch/v1", Kind: "Job", Name: "j", UID: "1"}
	waiter := v1alpha1.Waiter{Owner: "job/j/1", Mode: v1alpha1.Shared, Permits: 2, LeaseDurationSeconds: new(int32(30)), Ref: ref}
	s := play(t, semaphore(3),
		step{acquire(exclusive("a")), nil, "a=100"},
		step{queue(waiter), nil, "a=100 < job/j/1x2"},
		step{release("a", 100, 0), nil, "job/j/1~102x2"},
	)
	h, _ := s.read().Hold("job/j/1")
	if *h.LeaseDurationSeconds != 30 || *h.Ref != *ref || !h.ExpiryTime.Time.Equal(noon.Add(30*time.Second)) ||
		!h.AcquireTime.Time.Equal(noon) || !h.RenewTime.Time.Equal(noon) || s.lock.Status.LastGranted != "job/j/1" {
		t.Errorf("%+v, lastGranted %q", h, s.lock.Status.LastGranted)
	}
}

func TestNobodyOvertakesTheFirstThatDoesNotFit(t *testing.T) {
	play(t, semaphore(4),
		step{acquire(shared("s", 2)), nil, "s~100x2"},
		step{acquire(shared("u", 2)), nil, "s~100x2 u~101x2"},
		step{queue(shared("v", 3), shared("w", 1), exclusive("a")), nil, "s~100x2 u~101x2 < vx3 w a"},
		step{release("s", 100, 0), nil, "u~101x2 < vx3 w a"},
		step{handOver(), nil, "u~101x2 < vx3 w a"},
		step{release("u", 101, 0), nil, "v~104x3 w~104 < a"},
	)
}

func TestAWaiterForMoreThanTheCapacityDoesNotHoldUpThoseBehindIt(t *testing.T) {
	lower := setSpec(func(s *v1alpha1.DistLockSpec) { s.Capacity = new(int32(2)) })
	play(t, semaphore(5),
		step{acquire(shared("s", 5)), nil, "s~100x5"},
		step{queue(shared("u", 4), shared("v", 2), exclusive("a")), nil, "s~100x5 < ux4 vx2 a"},
		step{lower, nil, "s~100x5 < ux4 vx2 a"},
		step{release("s", 100, 0), nil, "v~103x2 < a"},
		step{release("v", 103, 0), nil, "a=104"},
	)
}

func TestAWaiterThatHoldsTheLockAlreadyLeavesTheQueue(t *testing.T) {
	play(t, v1alpha1.DistLockSpec{},
		step{acquire(shared("s", 1)), nil, "s~100"},
		step{acquire(shared("u", 1)), nil, "s~100 u~101"},
		step{queue(shared("s", 1), shared("v", 1)), nil, "s~100 u~101 < s v"},
		step{release("u", 101, 0), nil, "s~100 v~103"},
	)
}

func TestAReleaseBeforeMinHoldClosesTheLockForTheRest(t *testing.T) {
	for heldFor, want := range map[time.Duration]string{
		-time.Second:            "free closed 10s < b",
		0:                       "free closed 10s < b",
		time.Millisecond:        "free closed 10s < b",
		time.Second:             "free closed 9s < b",
		9*time.Second + 1:       "free closed 1s < b",
		10*time.Second - 1:      "free closed 1s < b",
		10 * time.Second:        "b=102",
		10000 * time.Hour:       "b=102",
		3 * time.Second / 2:     "free closed 9s < b",
		10*time.Second + 1:      "b=102",
		8999 * time.Millisecond: "free closed 2s < b",
	} {
		play(t, v1alpha1.DistLockSpec{MinHoldSeconds: 10},
			step{acquire(exclusive("a")), nil, "a=100"},
			step{queue(exclusive("b")), nil, "a=100 < b"},
			step{release("a", 100, heldFor), nil, want},
		)
	}
}

func TestAClosedLockIsGrantedToNobodyUntilItIsOpened(t *testing.T) {
	play(t, v1alpha1.DistLockSpec{MinHoldSeconds: 10},
		step{acquire(shared("s", 1)), nil, "s~100"},
		step{acquire(shared("u", 1)), nil, "s~100 u~101"},
		step{release("s", 100, time.Second), nil, "u~101 closed 9s"},
		step{acquire(shared("v", 1)), protocol.ErrClosed, "u~101 closed 9s"},
		step{acquire(shared("u", 1)), nil, "u~101 closed 9s"},
		step{queue(shared("v", 1)), nil, "u~101 closed 9s < v"},
		step{release("u", 101, time.Minute), nil, "free closed 9s < v"},
		step{acquire(shared("v", 1)), protocol.ErrClosed, "free closed 9s < v"},
		step{handOver(), nil, "free closed 9s < v"},
		step{open(), nil, "free < v"},
		step{handOver(), nil, "v~106"},
	)
}

func TestALockIsClosedForTheDelayAfterAnExpiryAndNotAfterARelease(t *testing.T) {
	play(t, v1alpha1.DistLockSpec{LockDelaySeconds: 7},
		step{acquire(exclusive("a")), nil, "a=100"},
		step{queue(exclusive("b"), exclusive("c")), nil, "a=100 < b c"},
		step{release("a", 100, 0), nil, "b=102 < c"},
		step{expire("b", 102, time.Minute), nil, "free closed 7s < c"},
		step{open(), nil, "free < c"},
		step{acquire(exclusive("c")), nil, "c=105"},
	)
}

func TestAnExpiryClosesTheLockForTheLongerOfDelayAndMinHold(t *testing.T) {
	for heldFor, want := range map[time.Duration]string{5 * time.Second: "free closed 15s", 14 * time.Second: "free closed 7s"} {
		play(t, v1alpha1.DistLockSpec{LockDelaySeconds: 7, MinHoldSeconds: 20},
			step{acquire(exclusive("a")), nil, "a=100"},
			step{expire("a", 100, heldFor), nil, want},
		)
	}
}

// Observers count closedSeconds from when its value changed, so a lock that is
// closed again while it is closed must get another value, which covers both what
// was left and what is wanted now. A whole closing of this spec covers
// everything, so the values do not grow with the number of holds that end.
func TestALockThatIsClosedAgainMakesObserversCountAnew(t *testing.T) {
	for _, c := range []struct{ minHold, delay, closed, want, is int32 }{
		{10, 0, 0, 4, 4},
		{10, 0, 2, 4, 4},
		{10, 0, 4, 4, 5},
		{10, 0, 6, 4, 7},
		{10, 0, 10, 4, 11},
		{10, 0, 11, 4, 10},
		{10, 0, 10, 10, 11},
		{10, 0, 11, 10, 10},
		{10, 3, 30, 4, 10}, // closed when minHoldSeconds was 30
		{10, 30, 29, 4, 30},
		{3600, 0, 3599, 5, 3600},
		{3600, 0, 3600, 3600, 3599}, // the schema's maximum
	} {
		s := newServer(100, v1alpha1.DistLockSpec{MinHoldSeconds: c.minHold, LockDelaySeconds: c.delay})
		if err := acquire(exclusive("a"))(s); err != nil {
			t.Fatal(err)
		}
		state := s.read()
		state.Status.ClosedSeconds = c.closed
		next, err := state.Release("a", 100, time.Duration(c.minHold-c.want)*time.Second, noon)
		if err != nil {
			t.Fatal(err)
		}
		if got := next.Status.ClosedSeconds; got != c.is {
			t.Errorf("%+v: closed for %d s", c, got)
		}
	}
}

func TestManyHoldsThatEndEarlyDoNotAddUp(t *testing.T) {
	s := newServer(100, v1alpha1.DistLockSpec{MinHoldSeconds: 10})
	for i := range 50 {
		if err := acquire(shared(fmt.Sprint("s", i), 1))(s); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 50 {
		before := s.lock.Status.ClosedSeconds
		if err := release(fmt.Sprint("s", i), int64(100+i), 9*time.Second)(s); err != nil {
			t.Fatal(err)
		}
		if got := s.lock.Status.ClosedSeconds; got == before || got > 11 {
			t.Fatalf("release %d: closed for %d s, then for %d s", i+1, before, got)
		}
	}
}
