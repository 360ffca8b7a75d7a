package protocol_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

func TestTheMarginIsATenthOfTheLeaseAndAtLeast250Milliseconds(t *testing.T) {
	for lease, want := range map[time.Duration]time.Duration{
		time.Second:             250 * time.Millisecond,
		2500 * time.Millisecond: 250 * time.Millisecond,
		3 * time.Second:         300 * time.Millisecond,
		15 * time.Second:        1500 * time.Millisecond,
		time.Hour:               6 * time.Minute,
	} {
		if got := protocol.Margin(lease); got != want {
			t.Errorf("%v: margin %v, want %v", lease, got, want)
		}
	}
}

func TestAHoldIsStaleOnceItWasSeenUnchangedForItsLeaseAndTheMargin(t *testing.T) {
	for _, c := range []struct {
		lease     *int32
		unchanged time.Duration
		stale     bool
	}{
		{new(int32(15)), 0, false},
		{new(int32(15)), 15 * time.Second, false},
		{new(int32(15)), 16500*time.Millisecond - 1, false},
		{new(int32(15)), 16500 * time.Millisecond, true},
		{new(int32(3)), 3300*time.Millisecond - 1, false},
		{new(int32(3)), 3300 * time.Millisecond, true},
		{new(int32(3600)), 66*time.Minute - 1, false},
		{new(int32(3600)), 66 * time.Minute, true},
		{nil, 1000 * time.Hour, false},
	} {
		if got := protocol.HoldIsStale(v1alpha1.Hold{LeaseDurationSeconds: c.lease}, c.unchanged); got != c.stale {
			t.Errorf("%v after %v: stale %v", c.lease, c.unchanged, got)
		}
	}
}

// Fault 42. Observers compare renewTime for a change, so every renewal must be
// one, whatever the holder's clock does.
func TestARenewalIsAChangeWhateverTheHoldersClockDoes(t *testing.T) {
	s := play(t, v1alpha1.DistLockSpec{}, step{acquire(exclusive("a")), nil, "a=100"})
	for _, c := range []struct {
		clock string
		now   time.Time
		want  time.Time
	}{
		{"stands still", noon, noon.Add(time.Microsecond)},
		{"still stands", noon, noon.Add(2 * time.Microsecond)},
		{"moves less than a microsecond", noon.Add(2*time.Microsecond + 999), noon.Add(3 * time.Microsecond)},
		{"runs", noon.Add(5 * time.Second), noon.Add(5 * time.Second)},
		{"goes back an hour", noon.Add(-time.Hour), noon.Add(5*time.Second + time.Microsecond)},
		{"is lost", time.Time{}, noon.Add(5*time.Second + 2*time.Microsecond)},
		{"goes ahead an hour", noon.Add(time.Hour), noon.Add(time.Hour)},
		{"comes back", noon.Add(10 * time.Second), noon.Add(time.Hour + time.Microsecond)},
	} {
		version := s.version
		if err := renew("a", 100, c.now)(s); err != nil {
			t.Fatalf("the clock %s: %v", c.clock, err)
		}
		h, _ := s.read().Hold("a")
		if !h.RenewTime.Time.Equal(c.want) || s.version != version+1 {
			t.Errorf("the clock %s: renewed at %v, want %v; %d writes", c.clock, h.RenewTime, c.want, s.version-version)
		}
		if want := c.want.Add(lease * time.Second); !h.ExpiryTime.Time.Equal(want) {
			t.Errorf("the clock %s: expiryTime %v, want %v", c.clock, h.ExpiryTime, want)
		}
		if !h.AcquireTime.Time.Equal(noon) {
			t.Errorf("the clock %s: acquireTime changed to %v", c.clock, h.AcquireTime)
		}
	}
}

func TestTimesAreStoredAsTheyWereDecided(t *testing.T) {
	odd := noon.Add(123456789 * time.Nanosecond)
	s := newServer(100, v1alpha1.DistLockSpec{})
	for _, f := range []func(protocol.State) (protocol.State, error){
		func(s protocol.State) (protocol.State, error) { return s.Acquire(exclusive("a"), odd) },
		func(s protocol.State) (protocol.State, error) { return s.Renew("a", 100, odd.Add(time.Second)) },
		func(s protocol.State) (protocol.State, error) { return s.Revoke("a", odd.Add(2*time.Second)) },
	} {
		next, err := f(s.read())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.update(next); err != nil {
			t.Fatal(err)
		}
		got, want := s.lock.Status.Holders[0], next.Status.Holders[0]
		for _, c := range [][2]*metav1.MicroTime{{&got.AcquireTime, &want.AcquireTime}, {&got.RenewTime, &want.RenewTime}, {got.ExpiryTime, want.ExpiryTime}, {got.RevokeTime, want.RevokeTime}} {
			if !c[0].Equal(c[1]) {
				t.Errorf("decided %v, stored %v", c[1], c[0])
			}
		}
	}
}

func TestOnlyALeasedHoldOfThatTokenIsRenewed(t *testing.T) {
	play(t, v1alpha1.DistLockSpec{},
		step{renew("a", 100, noon), protocol.ErrNotHeld, "free"},
		step{acquire(exclusive("a")), nil, "a=100"},
		step{renew("b", 100, noon), protocol.ErrNotHeld, "a=100"},
		step{renew("a", 99, noon), protocol.ErrNotHeld, "a=100"},
		step{renew("a", 101, noon), protocol.ErrNotHeld, "a=100"},
		step{renew("a", 100, noon), nil, "a=100"},
		step{release("a", 100, 0), nil, "free"},
		step{acquire(bound(exclusive("b"))), nil, "b=103"},
		step{renew("b", 103, noon), protocol.ErrNotLeased, "b=103"},
	)
}

func TestABoundHoldHasNoExpiryTime(t *testing.T) {
	s := play(t, v1alpha1.DistLockSpec{}, step{acquire(bound(exclusive("a"))), nil, "a=100"})
	if h, _ := s.read().Hold("a"); h.ExpiryTime != nil || h.LeaseDurationSeconds != nil {
		t.Errorf("%+v", h)
	}
}

func TestARevokedHoldCannotBeRenewed(t *testing.T) {
	play(t, v1alpha1.DistLockSpec{},
		step{revoke("a"), protocol.ErrNotHeld, "free"},
		step{acquire(exclusive("a")), nil, "a=100"},
		step{renew("a", 100, noon), nil, "a=100"},
		step{revoke("a"), nil, "a=100!"},
		step{renew("a", 100, noon.Add(time.Minute)), protocol.ErrRevoked, "a=100!"},
		step{acquire(exclusive("a")), nil, "a=100!"},
		step{renew("a", 100, noon.Add(time.Minute)), protocol.ErrRevoked, "a=100!"},
		step{acquire(exclusive("b")), protocol.ErrHeld, "a=100!"},
		step{release("a", 100, 0), nil, "free"},
		step{acquire(exclusive("a")), nil, "a=104"},
		step{renew("a", 104, noon), nil, "a=104"},
	)
}

func TestAHoldKeepsTheTimeItWasFirstRevokedAt(t *testing.T) {
	s := play(t, v1alpha1.DistLockSpec{}, step{acquire(exclusive("a")), nil, "a=100"}, step{revoke("a"), nil, "a=100!"})
	version := s.version
	again := transition(func(s protocol.State) (protocol.State, error) { return s.Revoke("a", noon.Add(time.Hour)) })
	if err := again(s); err != nil || s.version != version {
		t.Fatalf("error %v, %d writes", err, s.version-version)
	}
	if h, _ := s.read().Hold("a"); !h.RevokeTime.Time.Equal(noon) {
		t.Errorf("revoked at %v, want %v", h.RevokeTime, noon)
	}
}
