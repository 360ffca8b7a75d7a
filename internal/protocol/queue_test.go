package protocol_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// ask is a request that joined in that second after noon and was first seen as
// the nth.
func ask(w v1alpha1.Waiter, second int, seen int64) protocol.Request {
	return protocol.Request{Waiter: w, Since: noon.Add(time.Duration(second) * time.Second), Seen: seen}
}

// running is the request of a Job whose pods run although it holds nothing.
func running(r protocol.Request) protocol.Request {
	r.Running = true
	return r
}

// ofOrder are requests that joined one a second, each asking for the lock alone.
func ofOrder(owners ...string) []protocol.Request {
	var rs []protocol.Request
	for i, o := range owners {
		rs = append(rs, ask(exclusive(o), i, int64(i)))
	}
	return rs
}

func owners(rs []protocol.Request) string {
	var names []string
	for _, r := range rs {
		names = append(names, r.Owner)
	}
	return strings.Join(names, " ")
}

// heldBy is a lock that a bound hold keeps from everyone.
func heldBy(owner string) protocol.State {
	return protocol.State{Version: 100, Status: v1alpha1.DistLockStatus{
		FencingToken: 50, LastGranted: owner,
		Holders: []v1alpha1.Hold{{Owner: owner, Mode: v1alpha1.Exclusive, Permits: 1, FencingToken: 50}},
	}}
}

func waiters(owners ...string) []v1alpha1.Waiter {
	var ws []v1alpha1.Waiter
	for _, o := range owners {
		ws = append(ws, exclusive(o))
	}
	return ws
}

func TestRequestsAreServedInTheOrderTheyCame(t *testing.T) {
	for name, c := range map[string]struct {
		stored   []v1alpha1.Waiter
		requests []protocol.Request
		want     string
	}{
		"by the second they joined, whoever was seen first": {
			requests: []protocol.Request{ask(exclusive("a"), 3, 1), ask(exclusive("b"), 2, 2), ask(exclusive("c"), 1, 3)},
			want:     "c b a",
		},
		"within a second as first seen": {
			requests: []protocol.Request{ask(exclusive("a"), 1, 3), ask(exclusive("b"), 1, 2), ask(exclusive("c"), 1, 1)},
			want:     "c b a",
		},
		"seen together, by owner": {
			requests: []protocol.Request{ask(exclusive("c"), 1, 1), ask(exclusive("a"), 1, 1), ask(exclusive("b"), 1, 1)},
			want:     "a b c",
		},
		"within a second as another controller stored them": {
			stored:   waiters("b", "c"),
			requests: []protocol.Request{ask(exclusive("a"), 1, 1), ask(exclusive("c"), 1, 2), ask(exclusive("b"), 1, 3)},
			want:     "b c a",
		},
		"but an earlier second goes before what was stored": {
			stored:   waiters("b", "c"),
			requests: []protocol.Request{ask(exclusive("a"), 0, 9), ask(exclusive("b"), 1, 1), ask(exclusive("c"), 1, 2)},
			want:     "a b c",
		},
		"fractions of a second do not count": {
			requests: []protocol.Request{
				{Waiter: exclusive("a"), Since: noon.Add(900 * time.Millisecond), Seen: 1},
				{Waiter: exclusive("b"), Since: noon.Add(100 * time.Millisecond), Seen: 2},
			},
			want: "a b",
		},
		"those whose pods run go first": {
			stored:   waiters("a", "b"),
			requests: []protocol.Request{ask(exclusive("a"), 1, 1), ask(exclusive("b"), 2, 2), running(ask(exclusive("c"), 3, 3))},
			want:     "c a b",
		},
		"a revoked Job goes behind all that came before it was revoked": {
			stored:   waiters("a", "b", "c"),
			requests: []protocol.Request{ask(exclusive("a"), 60, 1), ask(exclusive("b"), 2, 2), ask(exclusive("c"), 3, 3)},
			want:     "b c a",
		},
	} {
		for range 10 {
			s := heldBy("h")
			s.Status.Queue = c.stored
			rand.Shuffle(len(c.requests), func(i, j int) { c.requests[i], c.requests[j] = c.requests[j], c.requests[i] })
			_, e := protocol.Decide(s, protocol.Observed{Requests: c.requests}, noon)
			if got := owners(e.Waiting); got != c.want {
				t.Errorf("%s: %s, want %s", name, got, c.want)
				break
			}
		}
	}
}

func TestTheStoredQueueIsWrittenOnlyWhenItIsOff(t *testing.T) {
	var ten []string
	for i := range 10 {
		ten = append(ten, fmt.Sprintf("w%02d", i))
	}
	for name, c := range map[string]struct {
		stored, waiting []string
		want            []string // nil: no write
	}{
		"nobody waits":                                  {nil, nil, nil},
		"the queue is what waits":                       {ten[:3], ten[:3], nil},
		"the first arrival":                             {nil, ten[:1], ten[:1]},
		"an arrival while it is low":                    {ten[:7], ten[:8], ten[:8]},
		"an arrival while it is long enough":            {ten[:8], ten[:9], nil},
		"arrivals while it is long enough":              {ten[:8], ten, nil},
		"it ran low with more waiting":                  {ten[1:8], ten[1:], ten[1:]},
		"it ran low, and nobody else waits":             {ten[1:8], ten[1:8], nil},
		"one in it waits no more":                       {ten[:9], ten[1:9], ten[1:9]},
		"the last in it waits no more":                  {ten[:9], ten[:8], ten[:8]},
		"nobody in it waits any more":                   {ten[:2], nil, []string{}},
		"one waits no more while there are others":      {ten[:8], append(ten[:3:3], ten[4:]...), append(ten[:3:3], ten[4:]...)},
		"it is in another order":                        {[]string{"w01", "w00"}, ten[:2], ten[:2]},
		"one came that goes before those who are in it": {ten[1:10], ten, ten},
	} {
		s := heldBy("h")
		s.Status.Queue, s.Status.Waiting = waiters(c.stored...), 77
		next, e := protocol.Decide(s, protocol.Observed{Requests: ofOrder(c.waiting...)}, noon)
		if got, want := owners(e.Waiting), strings.Join(c.waiting, " "); got != want {
			t.Errorf("%s: %q wait, want %q", name, got, want)
		}
		if c.want == nil {
			if !reflect.DeepEqual(next, s) {
				t.Errorf("%s: written as %s", name, show(next.Status))
			}
			continue
		}
		want := heldBy("h").Status
		want.Queue = waiters(c.want...)
		if show(next.Status) != show(want) || int(next.Status.Waiting) != len(c.waiting) {
			t.Errorf("%s: %s, waiting %d", name, show(next.Status), next.Status.Waiting)
		}
	}
}

func TestAWaiterThatAsksForSomethingElseIsStoredAnew(t *testing.T) {
	was, is := shared("a", 1), shared("a", 2)
	s := heldBy("h")
	s.Status.Queue = []v1alpha1.Waiter{was}
	next, _ := protocol.Decide(s, protocol.Observed{Requests: []protocol.Request{ask(is, 1, 1)}}, noon)
	if !reflect.DeepEqual(next.Status.Queue, []v1alpha1.Waiter{is}) {
		t.Errorf("%+v", next.Status.Queue)
	}
}

func TestTheQueueIsWrittenAlongWithAnythingElse(t *testing.T) {
	s := heldBy("h")
	s.Status.Queue = waiters("w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8")
	requests := ofOrder("w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9")
	next, _ := protocol.Decide(s, protocol.Observed{Requests: requests, Holds: map[string]protocol.HoldFacts{"h": {Ended: true}}}, noon)
	if got, want := show(next.Status), "w0=100 < w1 w2 w3 w4 w5 w6 w7 w8 w9"; got != want || next.Status.Waiting != 9 {
		t.Errorf("%s, waiting %d; want %s", got, next.Status.Waiting, want)
	}
}

func TestTheStoredQueueHasTheFirst32AndTheirNumberAll(t *testing.T) {
	var all []string
	for i := range 100 {
		all = append(all, fmt.Sprintf("w%02d", i))
	}
	next, e := protocol.Decide(heldBy("h"), protocol.Observed{Requests: ofOrder(all...)}, noon)
	if len(next.Status.Queue) != 32 || next.Status.Queue[31].Owner != "w31" || next.Status.Waiting != 100 || len(e.Waiting) != 100 {
		t.Errorf("%s, waiting %d, %d", show(next.Status), next.Status.Waiting, len(e.Waiting))
	}
}

func TestAHandoverTakesItsWaitersOffTheirNumber(t *testing.T) {
	s := play(t, v1alpha1.DistLockSpec{},
		step{acquire(exclusive("a")), nil, "a=100"},
		step{queue(shared("s", 1), shared("u", 1), exclusive("b")), nil, "a=100 < s u b"},
		step{release("a", 100, 0), nil, "s~102 u~102 < b"},
	)
	if s.lock.Status.Waiting != 1 {
		t.Errorf("waiting %d", s.lock.Status.Waiting)
	}
}

func TestAnAcquireOutsideTheQueueLeavesTheNumberOfWaitersAlone(t *testing.T) {
	s := newServer(100, v1alpha1.DistLockSpec{})
	state := s.read()
	state.Status.Waiting = 3 // it lags
	if err := s.update(state); err != nil {
		t.Fatal(err)
	}
	if err := acquire(exclusive("a"))(s); err != nil || s.lock.Status.Waiting != 3 {
		t.Errorf("error %v, waiting %d", err, s.lock.Status.Waiting)
	}
}

func TestARequestThatNamesNoModeFollowsTheLock(t *testing.T) {
	x, sh := v1alpha1.Exclusive, v1alpha1.Shared
	plain, sem := v1alpha1.DistLockSpec{}, semaphore(5)
	for _, c := range []struct {
		spec        v1alpha1.DistLockSpec
		mode        *v1alpha1.Mode
		permits     *int32
		wantMode    v1alpha1.Mode
		wantPermits int32
	}{
		{plain, nil, nil, x, 1},
		{sem, nil, nil, sh, 1},
		{sem, nil, new(int32(3)), sh, 3},
		{plain, nil, new(int32(3)), x, 1},
		{plain, &sh, nil, sh, 1},
		{plain, &sh, new(int32(3)), sh, 3},
		{sem, &x, nil, x, 1},
		{sem, &x, new(int32(3)), x, 1},
	} {
		ref := &v1alpha1.ObjectRef{Name: "j"}
		w := protocol.NewWaiter(c.spec, "o", c.mode, c.permits, new(int32(9)), ref)
		want := v1alpha1.Waiter{Owner: "o", Mode: c.wantMode, Permits: c.wantPermits, LeaseDurationSeconds: new(int32(9)), Ref: ref}
		if !reflect.DeepEqual(w, want) {
			t.Errorf("%+v: %+v", c, w)
		}
	}
}
