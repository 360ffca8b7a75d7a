package protocol_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

func TestAnExclusiveHoldIsAlone(t *testing.T) {
	play(t, v1alpha1.DistLockSpec{},
		step{acquire(exclusive("a")), nil, "a=100"},
		step{acquire(exclusive("b")), protocol.ErrHeld, "a=100"},
		step{acquire(shared("s", 1)), protocol.ErrHeld, "a=100"},
		step{release("a", 100, 0), nil, "free"},
		step{acquire(exclusive("b")), nil, "b=102"},
	)
}

func TestSharedHoldsShareAndKeepAnExclusiveRequestOut(t *testing.T) {
	play(t, v1alpha1.DistLockSpec{},
		step{acquire(shared("s", 1)), nil, "s~100"},
		step{acquire(shared("u", 1)), nil, "s~100 u~101"},
		step{acquire(exclusive("a")), protocol.ErrHeld, "s~100 u~101"},
		step{release("s", 100, 0), nil, "u~101"},
		step{acquire(exclusive("a")), protocol.ErrHeld, "u~101"},
		step{release("u", 101, 0), nil, "free"},
		step{acquire(exclusive("a")), nil, "a=104"},
	)
}

func TestSharedPermitsAddUpToTheCapacity(t *testing.T) {
	play(t, semaphore(5),
		step{acquire(shared("s", 3)), nil, "s~100x3"},
		step{acquire(shared("u", 3)), protocol.ErrHeld, "s~100x3"},
		step{acquire(shared("v", 2)), nil, "s~100x3 v~101x2"},
		step{acquire(shared("w", 1)), protocol.ErrHeld, "s~100x3 v~101x2"},
		step{release("s", 100, 0), nil, "v~101x2"},
		step{acquire(shared("u", 3)), nil, "v~101x2 u~103x3"},
	)
}

func TestAnExclusiveHoldOfASemaphoreIsAlone(t *testing.T) {
	play(t, semaphore(5),
		step{acquire(exclusive("a")), nil, "a=100"},
		step{acquire(shared("s", 1)), protocol.ErrHeld, "a=100"},
		step{release("a", 100, 0), nil, "free"},
		step{acquire(shared("s", 1)), nil, "s~102"},
		step{acquire(exclusive("a")), protocol.ErrHeld, "s~102"},
	)
}

func TestHoldsThatNoLongerFitDrainAfterTheCapacityWasLowered(t *testing.T) {
	lower := setSpec(func(s *v1alpha1.DistLockSpec) { s.Capacity = new(int32(2)) })
	play(t, semaphore(6),
		step{acquire(shared("s", 2)), nil, "s~100x2"},
		step{acquire(shared("u", 2)), nil, "s~100x2 u~101x2"},
		step{acquire(shared("v", 2)), nil, "s~100x2 u~101x2 v~102x2"},
		step{lower, nil, "s~100x2 u~101x2 v~102x2"},
		step{acquire(shared("w", 1)), protocol.ErrHeld, "s~100x2 u~101x2 v~102x2"},
		step{renew("s", 100, noon), nil, "s~100x2 u~101x2 v~102x2"},
		step{release("s", 100, 0), nil, "u~101x2 v~102x2"},
		step{acquire(shared("w", 1)), protocol.ErrHeld, "u~101x2 v~102x2"},
		step{release("u", 101, 0), nil, "v~102x2"},
		step{acquire(shared("w", 1)), protocol.ErrHeld, "v~102x2"},
		step{release("v", 102, 0), nil, "free"},
		step{acquire(shared("w", 1)), nil, "w~108"},
	)
}

func TestARequestForMoreThanTheCapacityIsRefusedAsSuch(t *testing.T) {
	raise := setSpec(func(s *v1alpha1.DistLockSpec) { s.Capacity = new(int32(6)) })
	play(t, semaphore(5),
		step{acquire(shared("s", 6)), protocol.ErrTooManyPermits, "free"},
		step{raise, nil, "free"},
		step{acquire(shared("s", 6)), nil, "s~101x6"},
	)
}

func TestAtMost256HoldsShareALockWithoutACapacity(t *testing.T) {
	s := newServer(100, v1alpha1.DistLockSpec{})
	for i := range 256 {
		if err := acquire(shared(fmt.Sprint("s", i), 1000))(s); err != nil {
			t.Fatalf("hold %d: %v", i+1, err)
		}
	}
	if err := acquire(shared("s256", 1))(s); !errors.Is(err, protocol.ErrHeld) {
		t.Fatalf("hold 257: error %v, want %v", err, protocol.ErrHeld)
	}
	if err := release("s7", 107, 0)(s); err != nil {
		t.Fatal(err)
	}
	if err := acquire(shared("s256", 1))(s); err != nil {
		t.Fatalf("hold 256 after a release: %v", err)
	}
}

func TestAnOwnerThatAsksAgainKeepsItsHoldAndToken(t *testing.T) {
	play(t, v1alpha1.DistLockSpec{},
		step{acquire(exclusive("a")), nil, "a=100"},
		step{acquire(exclusive("a")), nil, "a=100"},
		step{queue(exclusive("b")), nil, "a=100 < b"},
		step{acquire(exclusive("a")), nil, "a=100 < b"},
		step{acquire(shared("a", 3)), nil, "a=100 < b"},
	)
}

func TestALateRetryOfAnAcquireChangesNothing(t *testing.T) {
	s := play(t, v1alpha1.DistLockSpec{}, step{acquire(exclusive("a")), nil, "a=100"})
	version := s.version
	if err := acquire(exclusive("a"))(s); err != nil || s.version != version {
		t.Fatalf("error %v, version %d; want none and %d", err, s.version, version)
	}
}

func TestTheSameOwnerGetsAGreaterTokenWithItsNextHold(t *testing.T) {
	play(t, v1alpha1.DistLockSpec{},
		step{acquire(exclusive("a")), nil, "a=100"},
		step{release("a", 100, 0), nil, "free"},
		step{acquire(exclusive("a")), nil, "a=102"},
		step{release("a", 100, 0), protocol.ErrNotHeld, "a=102"},
	)
}

func TestATokenIsTheLargerOfTheVersionAndTheNextInLine(t *testing.T) {
	for _, c := range []struct{ last, version, want int64 }{
		{0, 1, 1},
		{0, 100, 100},
		{99, 100, 100},
		{100, 100, 101},
		{500, 100, 501}, // raised by hand, or after a restore
		{v1alpha1.MaxToken - 1, 100, v1alpha1.MaxToken},
		{0, v1alpha1.MaxToken, v1alpha1.MaxToken},
	} {
		s := protocol.State{Version: c.version, Status: v1alpha1.DistLockStatus{FencingToken: c.last}}
		next, err := s.Grant(exclusive("a"), noon)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if h, _ := next.Hold("a"); h.FencingToken != c.want || next.Status.FencingToken != c.want {
			t.Errorf("%+v: granted %d, recorded %d", c, h.FencingToken, next.Status.FencingToken)
		}
	}
}

func TestNothingIsGrantedWhenNoTokenIsLeft(t *testing.T) {
	for _, s := range []protocol.State{
		{Version: 100, Status: v1alpha1.DistLockStatus{FencingToken: v1alpha1.MaxToken}},
		{Version: v1alpha1.MaxToken + 1},
	} {
		if next, err := s.Grant(exclusive("a"), noon); !errors.Is(err, protocol.ErrTokensExhausted) || len(next.Status.Holders) > 0 {
			t.Errorf("%+v: error %v, %s", s, err, show(next.Status))
		}
		if _, err := s.Acquire(exclusive("a"), noon); !errors.Is(err, protocol.ErrTokensExhausted) {
			t.Errorf("%+v: Acquire: error %v", s, err)
		}
	}
}

func TestHoldsGrantedInOneWriteShareItsToken(t *testing.T) {
	play(t, semaphore(3),
		step{acquire(exclusive("a")), nil, "a=100"},
		step{queue(shared("s", 1), shared("u", 1), shared("v", 1), shared("w", 1)), nil, "a=100 < s u v w"},
		step{release("a", 100, 0), nil, "s~102 u~102 v~102 < w"},
		step{release("u", 102, 0), nil, "s~102 v~102 w~103"},
	)
}

// The first write after the lock was made anew replaces a version that is
// greater than every token granted before, whatever was granted in between.
func TestALockMadeAnewStartsAboveEveryTokenOfItsPredecessor(t *testing.T) {
	play(t, v1alpha1.DistLockSpec{},
		step{acquire(shared("s", 1)), nil, "s~100"},
		step{acquire(shared("u", 1)), nil, "s~100 u~101"},
		step{acquire(shared("v", 1)), nil, "s~100 u~101 v~102"},
		step{recreate(), nil, "free"}, // written in 104 and 105
		step{acquire(exclusive("a")), nil, "a=105"},
	)
}

func TestADirectTryDoesNotOvertakeTheStoredQueue(t *testing.T) {
	play(t, v1alpha1.DistLockSpec{},
		step{queue(exclusive("a"), exclusive("b")), nil, "free < a b"},
		step{acquire(exclusive("c")), protocol.ErrQueued, "free < a b"},
		step{acquire(shared("s", 1)), protocol.ErrQueued, "free < a b"},
		step{acquire(exclusive("b")), protocol.ErrQueued, "free < a b"},
		step{acquire(exclusive("a")), nil, "a=101 < b"},
		step{acquire(exclusive("c")), protocol.ErrHeld, "a=101 < b"},
		step{acquire(exclusive("b")), protocol.ErrHeld, "a=101 < b"},
	)
}

func TestADirectTryBesideSharedHoldsDoesNotOvertakeAnExclusiveRequest(t *testing.T) {
	play(t, v1alpha1.DistLockSpec{},
		step{acquire(shared("s", 1)), nil, "s~100"},
		step{queue(exclusive("a")), nil, "s~100 < a"},
		step{acquire(shared("u", 1)), protocol.ErrQueued, "s~100 < a"},
	)
}

func TestADirectTryTakesTheWholeStoredQueueInFrontOfItAlong(t *testing.T) {
	play(t, semaphore(3),
		step{queue(shared("s", 1), shared("u", 1), shared("v", 1)), nil, "free < s u v"},
		step{acquire(shared("v", 1)), nil, "s~101 u~101 v~101"},
	)
}

func TestADirectTryIsServedBehindTheStoredQueueWhereThereIsRoom(t *testing.T) {
	play(t, semaphore(3),
		step{queue(shared("s", 1), shared("u", 1)), nil, "free < s u"},
		step{acquire(shared("v", 2)), protocol.ErrQueued, "free < s u"},
		step{acquire(shared("w", 1)), nil, "s~101 u~101 w~101"},
	)
}

func TestAGrantTakesItsRequestOutOfTheQueue(t *testing.T) {
	grant := transition(func(s protocol.State) (protocol.State, error) { return s.Grant(exclusive("b"), noon) })
	play(t, v1alpha1.DistLockSpec{},
		step{queue(exclusive("a"), exclusive("b"), exclusive("c")), nil, "free < a b c"},
		step{grant, nil, "b=101 < a c"},
	)
}

func TestTwoThatDecideFromTheSameVersionCannotBothWrite(t *testing.T) {
	s := newServer(100, v1alpha1.DistLockSpec{})
	a, errA := s.read().Acquire(exclusive("a"), noon)
	b, errB := s.read().Acquire(exclusive("b"), noon)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	if err := s.update(a); err != nil {
		t.Fatal(err)
	}
	if err := s.update(b); !errors.Is(err, errConflict) || show(s.lock.Status) != "a=100" {
		t.Fatalf("error %v, %s", err, show(s.lock.Status))
	}
}
