package protocol_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// eyes are an observer's: when it saw each hold, and that the lock is closed,
// change last. They compare renewTime for a change and nothing else.
type eyes struct {
	holds  map[string]sighting
	closed sighting
}

type sighting struct {
	what           string
	first, changed time.Duration
}

// see takes in a version, and returns what is known at that time.
func (e *eyes) see(st v1alpha1.DistLockStatus, now time.Duration) protocol.Observed {
	o := protocol.Observed{Holds: map[string]protocol.HoldFacts{}}
	before := e.holds
	e.holds = map[string]sighting{}
	for _, h := range st.Holders {
		hold, seen := fmt.Sprint(h.Owner, h.FencingToken), sighting{fmt.Sprint(h.RenewTime.UnixNano()), now, now}
		if old, ok := before[hold]; ok {
			seen.first = old.first
			if old.what == seen.what {
				seen = old
			}
		}
		e.holds[hold] = seen
		o.Holds[h.Owner] = protocol.HoldFacts{Unchanged: now - seen.changed, Held: now - seen.first}
	}
	if closed := fmt.Sprint(st.ClosedSeconds, st.FencingToken); closed != e.closed.what {
		e.closed = sighting{closed, now, now}
	}
	o.ClosedFor = now - e.closed.changed
	return o
}

// night is a lock's life with one controller, which acts at every write and at
// the deadlines it set itself, and at no other time. Holders have wall clocks of
// their own; the controller's time is monotonic.
type night struct {
	*server
	eyes     eyes
	now, due time.Duration // due 0: nothing is
	requests []protocol.Request
	ended    map[string]bool // holds whose object came to its end
	log      []string        // what was stored, with its time
	noted    string          // the last of it
}

type event struct {
	at time.Duration
	do func(*night) error
}

// run plays events, which must be in order, and what the controller does between
// and after them.
func run(t *testing.T, spec v1alpha1.DistLockSpec, events ...event) *night {
	t.Helper()
	n := &night{server: newServer(100, spec), ended: map[string]bool{}, noted: "free"}
	for len(events) > 0 || n.due > 0 {
		if n.due > 0 && (len(events) == 0 || n.due < events[0].at) {
			n.now, n.due = n.due, 0
		} else {
			e := events[0]
			events, n.now = events[1:], e.at
			if err := e.do(n); err != nil {
				t.Fatalf("%v: %v", n.now, err)
			}
			n.note()
		}
		if err := n.control(); err != nil {
			t.Fatalf("%v: the controller: %v", n.now, err)
		}
		if len(n.log) > 1000 {
			t.Fatal("the controller does not come to rest")
		}
	}
	return n
}

// note writes down what is stored, where it is not what was noted last.
func (n *night) note() {
	if line := show(n.lock.Status); line != n.noted {
		n.noted = line
		n.log = append(n.log, fmt.Sprintf("%v: %s", n.now, line))
	}
}

// control decides until there is nothing to write.
func (n *night) control() error {
	for {
		for _, h := range n.lock.Status.Holders {
			n.leave(h.Owner)
		}
		o := n.eyes.see(n.lock.Status, n.now)
		o.Requests = n.requests
		for owner := range n.ended {
			f := o.Holds[owner]
			f.Ended = true
			o.Holds[owner] = f
		}
		version := n.version
		next, e := protocol.Decide(n.read(), o, noon.Add(n.now))
		if err := n.update(next); err != nil {
			return err
		}
		n.note()
		if n.version == version {
			if n.due = 0; e.Next > 0 {
				n.due = n.now + e.Next
			}
			return nil
		}
	}
}

// leave takes a request away: it holds the lock.
func (n *night) leave(owner string) {
	n.requests = slices.DeleteFunc(n.requests, func(r protocol.Request) bool { return r.Owner == owner })
}

func try(do operation) func(*night) error {
	return func(n *night) error { return do(n.server) }
}

// fails is an operation that must fail.
func fails(do operation, want error) func(*night) error {
	return func(n *night) error {
		if err := do(n.server); !errors.Is(err, want) {
			return fmt.Errorf("error %w, want %w", err, want)
		}
		return nil
	}
}

func wait(ws ...v1alpha1.Waiter) func(*night) error {
	return func(n *night) error {
		for _, w := range ws {
			n.requests = append(n.requests, protocol.Request{Waiter: w, Since: noon.Add(n.now), Seen: int64(len(n.log)*100 + len(n.requests))})
		}
		return nil
	}
}

func end(owner string) func(*night) error {
	return func(n *night) error { n.ended[owner] = true; return nil }
}

// endAndWaitAgain is a Job that was suspended and goes to the end of the queue.
func endAndWaitAgain(w v1alpha1.Waiter) func(*night) error {
	return func(n *night) error {
		n.ended[w.Owner] = true
		if err := n.control(); err != nil {
			return err
		}
		delete(n.ended, w.Owner)
		return wait(w)(n)
	}
}

func expectLog(t *testing.T, n *night, want ...string) {
	t.Helper()
	if got, want := strings.Join(n.log, "\n"), strings.Join(want, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

const second = time.Second

func TestALeaseIsWatchedAndExpiredAndTheLockHandedOnAfterTheDelay(t *testing.T) {
	backwards := noon.Add(-time.Hour) // the holder's clock, and it stands still
	n := run(t, v1alpha1.DistLockSpec{LockDelaySeconds: 5},
		event{0, try(acquire(exclusive("a")))},
		event{1 * second, wait(exclusive("b"))},
		event{2 * second, wait(exclusive("c"))},
		event{5 * second, try(renew("a", 100, backwards))},
		event{10 * second, try(renew("a", 100, backwards))}, // and dies
		event{35 * second, fails(release("a", 100, 35*second), protocol.ErrNotHeld)},
		event{36 * second, fails(renew("a", 100, noon), protocol.ErrNotHeld)},
		event{40 * second, try(renew("b", 106, noon))},
		event{41 * second, try(revoke("b"))},
		event{42 * second, fails(renew("b", 106, noon.Add(time.Hour)), protocol.ErrRevoked)},
		event{70 * second, try(release("c", 110, 8*second))},
	)
	expectLog(t, n,
		"0s: a=100",
		"1s: a=100 < b",
		"2s: a=100 < b c",
		"26.5s: free closed 5s < b c",
		"31.5s: b=106 < c",
		"41s: b=106! < c",
		"56.5s: free closed 5s < c",
		"1m1.5s: c=110",
		"1m10s: free",
	)
}

// Faults 20 and 42.
func TestAHolderThatRenewsIsNeverExpiredWhateverItsClockDoes(t *testing.T) {
	clocks := []time.Time{noon, noon, noon.Add(-time.Hour), noon.Add(time.Hour), noon, {}, noon.Add(time.Minute)}
	events := []event{{0, try(acquire(exclusive("a")))}, {0, wait(exclusive("b"))}}
	for at := 5 * second; at <= time.Hour; at += 5 * second {
		events = append(events, event{at, try(renew("a", 100, clocks[int(at/second/5)%len(clocks)]))})
	}
	n := run(t, v1alpha1.DistLockSpec{}, events...)
	expectLog(t, n,
		"0s: a=100",
		"0s: a=100 < b",
		fmt.Sprintf("%v: b=%d", time.Hour+16500*time.Millisecond, n.lock.Status.FencingToken), // not before
		fmt.Sprintf("%v: free", time.Hour+33*second),                                          // b never renewed
	)
}

func TestJobsTakeTurnsAndARevokedOneGoesToTheEnd(t *testing.T) {
	a, b, c := bound(exclusive("a")), bound(exclusive("b")), bound(exclusive("c"))
	n := run(t, v1alpha1.DistLockSpec{MaxHoldSeconds: new(int32(60))},
		event{0, wait(a, b, c)},
		event{61 * second, endAndWaitAgain(a)}, // its pods are gone
		event{70 * second, end("b")},
		event{80 * second, end("c")},
		event{90 * second, end("a")},
	)
	expectLog(t, n,
		"0s: a=100 < b c",
		"1m0s: a=100! < b c",
		"1m1s: b=102 < c",
		"1m1s: b=102 < c a",
		"1m10s: c=104 < a",
		"1m20s: a=105",
		"1m30s: free",
	)
}

func TestARunShorterThanTheClocksDifferIsNotRunTwice(t *testing.T) {
	a, b := bound(exclusive("a")), bound(exclusive("b"))
	n := run(t, v1alpha1.DistLockSpec{MinHoldSeconds: 10},
		event{0, wait(a)},
		event{500 * time.Millisecond, end("a")},
		event{600 * time.Millisecond, fails(acquire(exclusive("x")), protocol.ErrClosed)},
		event{5 * second, wait(b)},
		event{12 * second, fails(acquire(exclusive("x")), protocol.ErrHeld)},
	)
	expectLog(t, n,
		"0s: a=100",
		"500ms: free closed 10s",
		"5s: free closed 10s < b",
		"10.5s: b=103",
	)
}

// An observer that has counted most of a closing starts anew when another hold
// closes the lock again.
func TestObserversCountAnewWhenTheLockIsClosedAgain(t *testing.T) {
	n := run(t, v1alpha1.DistLockSpec{MinHoldSeconds: 10},
		event{0, try(acquire(bound(shared("s", 1))))},
		event{5 * second, try(acquire(bound(shared("u", 1))))},
		event{6 * second, try(release("s", 100, 6*second))},
		event{7 * second, wait(exclusive("a"))},
		event{9900 * time.Millisecond, try(release("u", 101, 4900*time.Millisecond))},
	)
	expectLog(t, n,
		"0s: s~100",
		"5s: s~100 u~101",
		"6s: u~101 closed 4s",
		"7s: u~101 closed 4s < a",
		"9.9s: free closed 6s < a",
		"15.9s: a=105",
		"32.4s: free",
	)
}

func TestALoweredCapacityDrains(t *testing.T) {
	w := func(owner string) v1alpha1.Waiter { return bound(shared(owner, 1)) }
	n := run(t, semaphore(4),
		event{0, wait(w("s"), w("u"), w("v"), w("w"), w("x"), w("y"))},
		event{1 * second, try(setSpec(func(s *v1alpha1.DistLockSpec) { s.Capacity = new(int32(2)) }))},
		event{2 * second, end("s")},
		event{3 * second, end("v")},
		event{4 * second, end("u")},
		event{5 * second, end("w")},
		event{6 * second, try(setSpec(func(s *v1alpha1.DistLockSpec) { s.Capacity = new(int32(3)) }))},
	)
	expectLog(t, n,
		"0s: s~100 u~100 v~100 w~100 < x y",
		"2s: u~100 v~100 w~100 < x y",
		"3s: u~100 w~100 < x y",
		"4s: w~100 x~104 < y",
		"5s: x~104 y~105",
	)
}

// The controller is away: releasers hand the lock down the queue it left.
func TestReleasersHandTheLockDownTheWholeQueueInOrder(t *testing.T) {
	s := newServer(100, v1alpha1.DistLockSpec{})
	var ws []v1alpha1.Waiter
	for i := range 32 {
		ws = append(ws, exclusive(fmt.Sprint("w", i)))
	}
	if err := errors.Join(acquire(exclusive("a"))(s), queue(ws...)(s)); err != nil {
		t.Fatal(err)
	}
	last := s.lock.Status.Holders[0]
	for i, w := range ws {
		if err := release(last.Owner, last.FencingToken, second)(s); err != nil {
			t.Fatal(err)
		}
		h := s.lock.Status.Holders
		if len(h) != 1 || h[0].Owner != w.Owner || s.lock.Status.LastGranted != w.Owner || len(s.lock.Status.Queue) != 31-i {
			t.Fatalf("after release %d: %s, lastGranted %s", i+1, show(s.lock.Status), s.lock.Status.LastGranted)
		}
		last = h[0]
	}
}

// Fault 18, both ways.
func TestOfARenewalAndAnExpiryExactlyOneWins(t *testing.T) {
	for _, renewalFirst := range []bool{true, false} {
		s := newServer(100, v1alpha1.DistLockSpec{})
		if err := acquire(exclusive("a"))(s); err != nil {
			t.Fatal(err)
		}
		renewal, err1 := s.read().Renew("a", 100, noon)
		expiry, err2 := s.read().Expire("a", 100, time.Hour, noon)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		first, second, want := expiry, renewal, "free"
		if renewalFirst {
			first, second, want = renewal, expiry, "a=100"
		}
		if err := s.update(first); err != nil {
			t.Fatal(err)
		}
		if err := s.update(second); !errors.Is(err, errConflict) || show(s.lock.Status) != want {
			t.Errorf("error %v, %s; want %s", err, show(s.lock.Status), want)
		}
	}
}
