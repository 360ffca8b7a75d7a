package protocol_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// verdict is one decision: the lock as it was and what was observed, how the
// lock must look after it, and what must follow (see effects).
type verdict struct {
	spec    v1alpha1.DistLockSpec
	given   []operation
	holds   map[string]protocol.HoldFacts
	waiting []protocol.Request
	closed  time.Duration
	want    string
	effects string
}

func judged(t *testing.T, cases map[string]verdict) {
	t.Helper()
	for name, c := range cases {
		s := newServer(100, c.spec)
		for _, do := range c.given {
			if err := do(s); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		observed := protocol.Observed{Requests: c.waiting, Holds: c.holds, ClosedFor: c.closed}
		_, e := protocol.Decide(s.read(), observed, noon)
		if err := decide(observed)(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := show(s.lock.Status); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
		if got := effects(e); got != c.effects {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.effects)
		}
	}
}

// effects writes Effects as a line, without what is empty.
func effects(e protocol.Effects) string {
	line := ""
	add := func(what string, value any) { line += fmt.Sprintf("; %s %v", what, value) }
	for _, c := range []struct {
		what  string
		holds []v1alpha1.Hold
	}{{"granted", e.Granted}, {"released", e.Released}, {"expired", e.Expired}, {"revoked", e.Revoked}, {"finished", e.Finished}} {
		for _, h := range c.holds {
			add(c.what, show(v1alpha1.DistLockStatus{Holders: []v1alpha1.Hold{h}}))
		}
	}
	if len(e.Waiting) > 0 {
		add("waiting", owners(e.Waiting))
	}
	if e.Why != nil {
		add("because", e.Why)
	}
	if len(e.Impossible) > 0 {
		add("impossible", owners(e.Impossible))
	}
	if e.Next != 0 {
		add("next", e.Next)
	}
	if line == "" {
		return ""
	}
	return line[2:]
}

func given(do ...operation) []operation { return do }

func factsOf(owner string, f protocol.HoldFacts) map[string]protocol.HoldFacts {
	return map[string]protocol.HoldFacts{owner: f}
}

const (
	heldBecause   = "; because the lock is held"
	closedBecause = "; because the lock is closed for a while"
)

func TestAHoldEnds(t *testing.T) {
	a, leased := acquire(bound(exclusive("a"))), acquire(exclusive("a"))
	b := []protocol.Request{ask(exclusive("b"), 1, 1)}
	judged(t, map[string]verdict{
		"not, when nothing is known against it": {given: given(leased), waiting: b,
			want: "a=100 < b", effects: "waiting b" + heldBecause + "; next 16.5s"},
		"not, when it is bound and its object lives": {given: given(a), waiting: b, holds: factsOf("a", protocol.HoldFacts{Unchanged: time.Hour, Held: time.Hour, Claimed: true}),
			want: "a=100 < b", effects: "waiting b" + heldBecause},
		"when the object behind it has ended": {given: given(a), waiting: b, holds: factsOf("a", protocol.HoldFacts{Ended: true}),
			want: "b=101", effects: "granted b=101; released a=100"},
		"when the object behind it has ended, revoked or not": {given: given(a, revoke("a")), waiting: b, holds: factsOf("a", protocol.HoldFacts{Ended: true}),
			want: "b=102", effects: "granted b=102; released a=100!"},
		"not yet, a nanosecond before lease and margin": {given: given(leased), waiting: b, holds: factsOf("a", protocol.HoldFacts{Unchanged: 16500*time.Millisecond - 1, Held: time.Hour}),
			want: "a=100 < b", effects: "waiting b" + heldBecause + "; next 1ns"},
		"when it was unchanged for lease and margin": {given: given(leased), waiting: b, holds: factsOf("a", protocol.HoldFacts{Unchanged: 16500 * time.Millisecond, Held: time.Hour}),
			want: "b=101", effects: "granted b=101; expired a=100"},
		"only after its claim is gone": {given: given(leased), waiting: b, holds: factsOf("a", protocol.HoldFacts{Unchanged: time.Hour, Claimed: true}),
			want: "a=100 < b", effects: "finished a=100; waiting b" + heldBecause},
		"not by a claim that is there while it is renewed": {given: given(leased), holds: factsOf("a", protocol.HoldFacts{Unchanged: time.Second, Claimed: true}),
			want: "a=100", effects: "next 15.5s"},
		"by expiry, when it is revoked and its holder is silent": {given: given(leased, revoke("a")), waiting: b, holds: factsOf("a", protocol.HoldFacts{Unchanged: 16500 * time.Millisecond}),
			want: "b=102", effects: "granted b=102; expired a=100!"},
		"not, when it is bound and revoked": {given: given(a, revoke("a")), waiting: b, holds: factsOf("a", protocol.HoldFacts{Unchanged: time.Hour, Held: time.Hour, MustStop: true}),
			want: "a=100! < b", effects: "waiting b" + heldBecause},
		"not by what is known of another": {given: given(a), waiting: b, holds: factsOf("b", protocol.HoldFacts{Ended: true}),
			want: "a=100 < b", effects: "waiting b" + heldBecause},
	})
}

func TestAHoldIsRevoked(t *testing.T) {
	a, leased := acquire(bound(exclusive("a"))), acquire(exclusive("a"))
	max60 := v1alpha1.DistLockSpec{MaxHoldSeconds: new(int32(60))}
	judged(t, map[string]verdict{
		"when its object must stop":     {given: given(a), holds: factsOf("a", protocol.HoldFacts{MustStop: true}), want: "a=100!", effects: "revoked a=100"},
		"once":                          {given: given(a, revoke("a")), holds: factsOf("a", protocol.HoldFacts{MustStop: true}), want: "a=100!"},
		"not when it has ended already": {given: given(a), holds: factsOf("a", protocol.HoldFacts{MustStop: true, Ended: true}), want: "free", effects: "released a=100"},
		"not before maxHoldSeconds": {spec: max60, given: given(a), holds: factsOf("a", protocol.HoldFacts{Held: time.Minute - 1}),
			want: "a=100", effects: "next 1ns"},
		"after maxHoldSeconds": {spec: max60, given: given(a), holds: factsOf("a", protocol.HoldFacts{Held: time.Minute}),
			want: "a=100!", effects: "revoked a=100"},
		"after maxHoldSeconds, once": {spec: max60, given: given(a, revoke("a")), holds: factsOf("a", protocol.HoldFacts{Held: time.Hour}),
			want: "a=100!"},
		"after maxHoldSeconds though it is renewed, and is watched until it expires": {spec: max60, given: given(leased), holds: factsOf("a", protocol.HoldFacts{Held: time.Hour, Unchanged: time.Second}),
			want: "a=100!", effects: "revoked a=100; next 15.5s"},
		"when it is seen for the first time: not before maxHoldSeconds from then": {spec: max60, given: given(a), holds: nil,
			want: "a=100", effects: "next 1m0s"},
	})
}

func TestTheNextDeadlineIsTheSoonest(t *testing.T) {
	spec := v1alpha1.DistLockSpec{MaxHoldSeconds: new(int32(60)), MinHoldSeconds: 5}
	two := given(acquire(shared("s", 1)), acquire(shared("u", 1)))
	closed := slices.Concat(two, given(acquire(bound(shared("v", 1))), release("v", 102, 0)))
	both := func(s, u protocol.HoldFacts) map[string]protocol.HoldFacts {
		return map[string]protocol.HoldFacts{"s": s, "u": u}
	}
	judged(t, map[string]verdict{
		"of two leases": {spec: spec, given: two, holds: both(protocol.HoldFacts{Unchanged: 2 * time.Second}, protocol.HoldFacts{Unchanged: time.Second}),
			want: "s~100 u~101", effects: "next 14.5s"},
		"of a lease and maxHoldSeconds": {spec: spec, given: two, holds: both(protocol.HoldFacts{}, protocol.HoldFacts{Held: 50 * time.Second}),
			want: "s~100 u~101", effects: "next 10s"},
		"of a lease and the time the lock is closed": {spec: spec, given: closed, holds: both(protocol.HoldFacts{}, protocol.HoldFacts{}), closed: time.Second,
			want: "s~100 u~101 closed 5s", effects: "next 4s"},
		"of the time the lock is closed and a lease": {spec: spec, given: closed, holds: both(protocol.HoldFacts{}, protocol.HoldFacts{Unchanged: 14 * time.Second}), closed: time.Second,
			want: "s~100 u~101 closed 5s", effects: "next 2.5s"},
	})
}

func TestALockThatIsClosedOpensAfterItsTime(t *testing.T) {
	spec := v1alpha1.DistLockSpec{MinHoldSeconds: 10}
	closed := given(acquire(exclusive("a")), release("a", 100, 0))
	b := []protocol.Request{ask(exclusive("b"), 1, 1)}
	judged(t, map[string]verdict{
		"and not before": {spec: spec, given: closed, waiting: b, closed: 10*time.Second - 1,
			want: "free closed 10s < b", effects: "waiting b" + closedBecause + "; next 1ns"},
		"and is granted in the same write": {spec: spec, given: closed, waiting: b, closed: 10 * time.Second,
			want: "b=102", effects: "granted b=102"},
		"also when nobody waits": {spec: spec, given: closed, closed: time.Hour,
			want: "free"},
		"but not in a write that closes it again": {spec: spec, given: given(acquire(shared("s", 1)), acquire(shared("u", 1)), release("s", 100, 0)),
			waiting: b, closed: time.Hour, holds: factsOf("u", protocol.HoldFacts{Unchanged: time.Hour, Held: 8 * time.Second}),
			want: "free closed 11s < b", effects: "expired u~101; waiting b" + closedBecause},
	})
}

func TestAHoldThatEndsClosesTheLock(t *testing.T) {
	spec := v1alpha1.DistLockSpec{MinHoldSeconds: 10, LockDelaySeconds: 7}
	stale := 16500 * time.Millisecond
	three := given(acquire(shared("s", 1)), acquire(shared("u", 1)), acquire(shared("v", 1)))
	judged(t, map[string]verdict{
		"for the rest of minHoldSeconds": {spec: spec, given: given(acquire(exclusive("a"))), holds: factsOf("a", protocol.HoldFacts{Ended: true, Held: 4 * time.Second}),
			want: "free closed 6s", effects: "released a=100"},
		"for lockDelaySeconds when it expires": {spec: spec, given: given(acquire(exclusive("a"))), holds: factsOf("a", protocol.HoldFacts{Unchanged: stale, Held: stale}),
			want: "free closed 7s", effects: "expired a=100"},
		"not for lockDelaySeconds when its object ended": {spec: spec, given: given(acquire(exclusive("a"))), holds: factsOf("a", protocol.HoldFacts{Ended: true, Held: time.Minute}),
			want: "free", effects: "released a=100"},
		"once, for the longest, when many end together": {spec: spec, given: three, holds: map[string]protocol.HoldFacts{
			"s": {Unchanged: stale, Held: stale}, "u": {Unchanged: stale, Held: 2 * time.Second}, "v": {Ended: true, Held: 5 * time.Second}},
			want: "free closed 8s", effects: "released v~102; expired s~100; expired u~101"},
	})
}

func TestTheFirstWaitersThatFitAreGrantedTogether(t *testing.T) {
	rs := func(ws ...v1alpha1.Waiter) (out []protocol.Request) {
		for i, w := range ws {
			out = append(out, ask(w, i, int64(i)))
		}
		return out
	}
	judged(t, map[string]verdict{
		"one that wants it alone": {waiting: rs(exclusive("a"), exclusive("b"), shared("s", 1)),
			want: "a=100 < b s", effects: "granted a=100; waiting b s" + heldBecause},
		"all Shared ones in front": {waiting: rs(shared("s", 1), shared("u", 9), exclusive("a"), shared("v", 1)),
			want: "s~100 u~100x9 < a v", effects: "granted s~100; granted u~100x9; waiting a v" + heldBecause},
		"while there are permits": {spec: semaphore(5), waiting: rs(shared("s", 2), shared("u", 2), shared("v", 2), shared("w", 1)),
			want: "s~100x2 u~100x2 < vx2 w", effects: "granted s~100x2; granted u~100x2; waiting v w" + heldBecause},
		"beside those that hold": {spec: semaphore(5), given: given(acquire(bound(shared("r", 2)))), waiting: rs(shared("s", 2), shared("u", 2)),
			want: "r~100x2 s~101x2 < ux2", effects: "granted s~101x2; waiting u" + heldBecause},
		"nobody, while an Exclusive one waits in front": {given: given(acquire(bound(shared("r", 1)))), waiting: rs(exclusive("a"), shared("s", 1)),
			want: "r~100 < a s", effects: "waiting a s" + heldBecause},
		"but not those that hold already": {given: given(acquire(bound(exclusive("a")))), waiting: rs(exclusive("a"), exclusive("b")),
			want: "a=100 < b", effects: "waiting b" + heldBecause},
		"past those that want more than there is": {spec: semaphore(2), waiting: rs(shared("big", 3), shared("s", 2), exclusive("a")),
			want: "s~100x2 < a", effects: "granted s~100x2; waiting a" + heldBecause + "; impossible big"},
		"nobody, when only the impossible wait": {spec: semaphore(2), waiting: rs(shared("big", 3)),
			want: "free", effects: "impossible big"},
	})
}

func TestThoseWhosePodsRunWithoutTheLockComeFirstAndAreRevokedAtOnce(t *testing.T) {
	wait := []protocol.Request{ask(exclusive("a"), 1, 1), running(ask(bound(exclusive("b")), 2, 2))}
	judged(t, map[string]verdict{
		"on a free lock": {waiting: wait,
			want: "b=100! < a", effects: "granted b=100!; waiting a" + heldBecause},
		"when the holder has ended": {given: given(acquire(bound(exclusive("h")))), waiting: wait, holds: factsOf("h", protocol.HoldFacts{Ended: true}),
			want: "b=101! < a", effects: "granted b=101!; released h=100; waiting a" + heldBecause},
		"not beside a holder": {given: given(acquire(bound(exclusive("h")))), waiting: wait,
			want: "h=100 < b a", effects: "waiting b a" + heldBecause},
		"not on a closed lock": {spec: v1alpha1.DistLockSpec{MinHoldSeconds: 9}, given: given(acquire(exclusive("h")), release("h", 100, 0)), waiting: wait,
			want: "free closed 9s < b a", effects: "waiting b a" + closedBecause + "; next 9s"},
		"with all there is when they asked for more": {spec: semaphore(2), waiting: []protocol.Request{ask(shared("s", 1), 1, 1), running(ask(bound(shared("big", 3)), 2, 2))},
			want: "big~100x2! < s", effects: "granted big~100x2!; waiting s" + heldBecause},
	})
}

func TestAllWaitWhenNoTokenIsLeft(t *testing.T) {
	s := protocol.State{Version: 100, Status: v1alpha1.DistLockStatus{FencingToken: v1alpha1.MaxToken}}
	next, e := protocol.Decide(s, protocol.Observed{Requests: ofOrder("a", "b")}, noon)
	if show(next.Status) != "free < a b" || !errors.Is(e.Why, protocol.ErrTokensExhausted) || owners(e.Waiting) != "a b" {
		t.Errorf("%s; %s", show(next.Status), effects(e))
	}
}

func TestADecisionThatChangesNothingReturnsTheStateThatCameIn(t *testing.T) {
	s := newServer(100, semaphore(4))
	for _, do := range given(acquire(shared("s", 2)), acquire(bound(shared("u", 1))), revoke("u"), queue(shared("v", 2), exclusive("a"))) {
		if err := do(s); err != nil {
			t.Fatal(err)
		}
	}
	state := s.read()
	state.Status.Waiting = 99 // it may lag
	next, e := protocol.Decide(state, protocol.Observed{Requests: []protocol.Request{ask(shared("v", 2), 1, 1), ask(exclusive("a"), 2, 2)}}, noon.Add(time.Hour))
	if !reflect.DeepEqual(next, state) || next.Differs(state) {
		t.Errorf("%s became %s", show(state.Status), show(next.Status))
	}
	if got, want := effects(e), "waiting v a"+heldBecause+"; next 16.5s"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestAStateDiffersWhenThereIsSomethingToWrite(t *testing.T) {
	s := newServer(100, v1alpha1.DistLockSpec{})
	if err := acquire(exclusive("a"))(s); err != nil {
		t.Fatal(err)
	}
	empty := s.read()
	empty.Status.Queue = []v1alpha1.Waiter{}
	if empty.Differs(s.read()) {
		t.Error("an empty queue differs from none")
	}
	renewed, err := s.read().Renew("a", 100, noon)
	if err != nil || !renewed.Differs(s.read()) {
		t.Error("a renewal does not differ", err)
	}
}

func TestAtMost256AreGrantedTogether(t *testing.T) {
	var requests []protocol.Request
	for i := range 300 {
		requests = append(requests, ask(shared(fmt.Sprint("s", i), 1), i, int64(i)))
	}
	s := newServer(100, v1alpha1.DistLockSpec{})
	if err := decide(protocol.Observed{Requests: requests})(s); err != nil {
		t.Fatal(err)
	}
	st := s.lock.Status
	if len(st.Holders) != 256 || st.Holders[255].Owner != "s255" || st.FencingToken != 100 || len(st.Queue) != 32 || st.Queue[0].Owner != "s256" || st.Waiting != 44 {
		t.Errorf("%d holds, token %d, %d of %d waiters stored", len(st.Holders), st.FencingToken, len(st.Queue), st.Waiting)
	}
}
