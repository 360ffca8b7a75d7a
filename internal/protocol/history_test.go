package protocol_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// world is a lock with everyone who may write it. Each actor decides from the
// version it read last, and learns of another one only by a conflict or when it
// happens to read. Whatever they do, the server's judge watches L1 and L2, and
// line, below, says what order L7 wants.
type world struct {
	*server
	views  [4]protocol.State
	line   []protocol.Request // who waits, in the order they came
	second int                // of the API server's clock; one request joins in each
	names  int
}

func TestWhateverTheActorsDoTheLawHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{server: newServer(rapid.Int64Range(1, 50).Draw(t, "version"), drawSpec(t))}
		for i := range w.views {
			w.views[i] = w.read()
		}
		t.Repeat(map[string]func(*rapid.T){
			"read":        func(t *rapid.T) { w.views[w.actor(t)] = w.read() },
			"elsewhere":   func(*rapid.T) { w.writeElsewhere() },
			"spec":        func(t *rapid.T) { w.setSpec(drawSpec(t)) },
			"make anew":   func(*rapid.T) { w.makeAnew() },
			"raise":       w.raise,
			"arrive":      w.arrive,
			"give up":     w.giveUp,
			"run ungated": w.runUngated,
			"acquire":     w.acquire,
			"renew": w.onHold(func(s protocol.State, h v1alpha1.Hold, now time.Time) (protocol.State, error) {
				return s.Renew(h.Owner, h.FencingToken, now)
			}),
			"revoke": w.onHold(func(s protocol.State, h v1alpha1.Hold, now time.Time) (protocol.State, error) {
				return s.Revoke(h.Owner, now)
			}),
			"release":     w.release,
			"expire":      w.expire,
			"open":        w.open,
			"control":     w.control,
			"control too": w.control,
		})
	})
}

func drawSpec(t *rapid.T) v1alpha1.DistLockSpec {
	spec := v1alpha1.DistLockSpec{
		MinHoldSeconds:   rapid.SampledFrom([]int32{0, 0, 5}).Draw(t, "minHoldSeconds"),
		LockDelaySeconds: rapid.SampledFrom([]int32{0, 0, 3}).Draw(t, "lockDelaySeconds"),
	}
	if rapid.Bool().Draw(t, "semaphore") {
		spec.Capacity = new(rapid.Int32Range(1, 5).Draw(t, "capacity"))
	}
	return spec
}

func (w *world) actor(t *rapid.T) int { return rapid.IntRange(0, len(w.views)-1).Draw(t, "actor") }

func (w *world) clock(t *rapid.T) time.Time {
	return noon.Add(time.Duration(rapid.IntRange(-3, 3).Draw(t, "clock")) * time.Second)
}

func (w *world) drawWaiter(t *rapid.T) v1alpha1.Waiter {
	w.names++
	waiter := exclusive(fmt.Sprint("w", w.names))
	if rapid.Bool().Draw(t, "shared") {
		waiter = shared(waiter.Owner, rapid.Int32Range(1, 3).Draw(t, "permits"))
	}
	if rapid.Bool().Draw(t, "bound") {
		waiter = bound(waiter)
	}
	return waiter
}

func (w *world) arrive(t *rapid.T) {
	for range rapid.SampledFrom([]int{1, 1, 2, 3, 12, 40}).Draw(t, "how many") {
		w.queueUp(w.drawWaiter(t))
	}
}

func (w *world) queueUp(waiter v1alpha1.Waiter) {
	w.second++
	w.line = append(w.line, protocol.Request{Waiter: waiter, Since: noon.Add(time.Duration(w.second) * time.Second)})
}

func (w *world) giveUp(t *rapid.T) {
	if len(w.line) > 0 {
		i := rapid.IntRange(0, len(w.line)-1).Draw(t, "who")
		w.line = slices.Delete(w.line, i, i+1)
	}
}

func (w *world) runUngated(t *rapid.T) {
	if len(w.line) > 0 {
		r := &w.line[rapid.IntRange(0, len(w.line)-1).Draw(t, "who")]
		r.Running = !r.Running
	}
}

// acquire is tried by somebody new, or by one that waits and does not wait to
// be called.
func (w *world) acquire(t *rapid.T) {
	i, waiter := w.actor(t), w.drawWaiter(t)
	if len(w.line) > 0 && rapid.Bool().Draw(t, "one that waits") {
		waiter = rapid.SampledFrom(w.line).Draw(t, "who").Waiter
	}
	before := w.views[i]
	next, err := before.Acquire(waiter, w.clock(t))
	line := before.Status.Queue
	if !slices.ContainsFunc(line, func(q v1alpha1.Waiter) bool { return q.Owner == waiter.Owner }) {
		line = append(slices.Clone(line), waiter)
	}
	served, _ := serve(before.Spec, before.Status, line)
	_, holds := before.Hold(waiter.Owner)
	if want := holds || slices.Contains(served, waiter.Owner); (err == nil) != want {
		t.Fatalf("%s acquires %s: error %v; L7 serves %v", waiter.Owner, show(before.Status), err, served)
	}
	if err == nil && w.write(t, i, next) && !holds {
		w.expectGranted(t, before.Status, served)
	}
}

func (w *world) onHold(f func(protocol.State, v1alpha1.Hold, time.Time) (protocol.State, error)) func(*rapid.T) {
	return func(t *rapid.T) {
		i := w.actor(t)
		if h, ok := drawHoldOf(t, w.views[i]); ok {
			if next, err := f(w.views[i], h, w.clock(t)); err == nil {
				w.write(t, i, next)
			}
		}
	}
}

func drawHoldOf(t *rapid.T, s protocol.State) (v1alpha1.Hold, bool) {
	if len(s.Status.Holders) == 0 {
		return v1alpha1.Hold{}, false
	}
	return rapid.SampledFrom(s.Status.Holders).Draw(t, "hold"), true
}

func (w *world) release(t *rapid.T) { w.endHold(t, protocol.State.Release) }
func (w *world) expire(t *rapid.T)  { w.endHold(t, protocol.State.Expire) }

// endHold ends a hold that some actor believes in, perhaps with an old token:
// only that hold may be touched, and the stored queue is served.
func (w *world) endHold(t *rapid.T, f func(protocol.State, string, int64, time.Duration, time.Time) (protocol.State, error)) {
	i := w.actor(t)
	h, ok := drawHoldOf(t, w.views[w.actor(t)])
	if !ok {
		return
	}
	before := w.views[i]
	heldFor := time.Duration(rapid.IntRange(0, 10).Draw(t, "held for")) * time.Second
	next, err := f(before, h.Owner, h.FencingToken, heldFor, w.clock(t))
	if now, holds := before.Hold(h.Owner); (err == nil) != (holds && now.FencingToken == h.FencingToken) {
		t.Fatalf("ending %s=%d in %s: error %v", h.Owner, h.FencingToken, show(before.Status), err)
	}
	if err == nil && w.write(t, i, next) {
		rest := without(before.Status, h.Owner)
		rest.ClosedSeconds = w.lock.Status.ClosedSeconds
		served, _ := serve(before.Spec, rest, before.Status.Queue)
		w.expectGranted(t, rest, served)
		if h.RevokeTime != nil && h.LeaseDurationSeconds == nil { // a Job: it waits again
			w.queueUp(v1alpha1.Waiter{Owner: h.Owner, Mode: h.Mode, Permits: h.Permits})
		}
	}
}

// makeAnew deletes the lock and makes it anew. A mark that was raised above the
// server's versions does not survive that: until they have come up to it, nobody
// may.
func (w *world) makeAnew() {
	if w.judge.highest <= w.version {
		spec := w.lock.Spec
		w.delete()
		w.create(spec)
	}
}

// raise raises the mark, as after a restore from a backup.
func (w *world) raise(t *rapid.T) {
	i := w.actor(t)
	next := w.views[i]
	next.Status.FencingToken = max(next.Status.FencingToken, w.version) + rapid.Int64Range(1, 9).Draw(t, "by")
	w.judge.raised = true
	w.write(t, i, next)
}

func (w *world) open(t *rapid.T) {
	i := w.actor(t)
	w.write(t, i, w.views[i].Open())
}

// control is a controller's turn. It knows who waits, by live reads; what it
// knows of the holds is anything.
func (w *world) control(t *rapid.T) {
	i := w.actor(t)
	before := w.views[i]
	o := protocol.Observed{Holds: map[string]protocol.HoldFacts{}, ClosedFor: rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "closed for")}
	for _, h := range before.Status.Holders {
		o.Holds[h.Owner] = protocol.HoldFacts{
			Unchanged: rapid.SampledFrom([]time.Duration{0, 16500*time.Millisecond - 1, 16500 * time.Millisecond}).Draw(t, "unchanged"),
			Held:      time.Duration(rapid.IntRange(0, 9).Draw(t, "held")) * time.Second,
			Ended:     rapid.IntRange(0, 3).Draw(t, "ended") == 0,
			MustStop:  rapid.IntRange(0, 3).Draw(t, "must stop") == 0,
			Claimed:   rapid.Bool().Draw(t, "claimed"),
		}
	}
	line := slices.Clone(w.line)
	cut := rapid.IntRange(0, len(line)).Draw(t, "listed from")
	o.Requests = slices.Concat(line[cut:], line[:cut])
	next, e := protocol.Decide(before, o, w.clock(t))
	if w.write(t, i, next) {
		w.checkDecision(t, before, o, line, e)
	}
}

// checkDecision is what the law says of a decision that is stored (or was found
// to need no write).
func (w *world) checkDecision(t *rapid.T, before protocol.State, o protocol.Observed, line []protocol.Request, e protocol.Effects) {
	after := w.lock.Status
	rest := after
	rest.Holders = nil
	for _, h := range before.Status.Holders {
		f := o.Holds[h.Owner]
		silent := h.LeaseDurationSeconds != nil && f.Unchanged >= 16500*time.Millisecond && !f.Claimed
		if (!f.Ended || f.Claimed) && !silent {
			rest.Holders = append(rest.Holders, h)
		}
	}
	slices.SortStableFunc(line, func(a, b protocol.Request) int { return len(fmt.Sprint(a.Running)) - len(fmt.Sprint(b.Running)) }) // true is shorter
	var waiters []v1alpha1.Waiter
	for _, r := range line {
		if c := before.Spec.Capacity; r.Running && c != nil && r.Mode == v1alpha1.Shared {
			r.Permits = min(r.Permits, *c)
		}
		waiters = append(waiters, r.Waiter)
	}
	served, waiting := serve(before.Spec, rest, waiters)
	w.expectGranted(t, rest, served)
	if got := owners(e.Waiting); got != owners(requestsOf(waiting)) {
		t.Fatalf("waiting %s, L7 says %s", got, owners(requestsOf(waiting)))
	}
	for i, q := range after.Queue {
		if i >= len(waiting) || !reflect.DeepEqual(q, waiting[i]) {
			t.Fatalf("the queue is %s, but %s wait", show(after), owners(requestsOf(waiting)))
		}
	}
	if len(after.Queue) < min(8, len(waiting)) {
		t.Fatalf("%d of %d waiters are stored", len(after.Queue), len(waiting))
	}
	for _, r := range line {
		if h, holds := (protocol.State{Status: after}).Hold(r.Owner); r.Running && slices.Contains(served, r.Owner) && (!holds || h.RevokeTime == nil) {
			t.Fatalf("%s runs without the lock and was granted it for good", r.Owner)
		}
	}
	again, _ := protocol.Decide(w.read(), protocol.Observed{Requests: w.line}, noon)
	if again.Differs(w.read()) {
		t.Fatalf("deciding again made %s of %s", show(again.Status), show(after))
	}
}

// write stores a state, and reports whether it is what is stored now. On a
// conflict the actor reads again.
func (w *world) write(t *rapid.T, actor int, next protocol.State) bool {
	before := w.lock
	if err := protocol.Legal(next.Spec, w.views[actor].Status, next.Status); err != nil {
		t.Fatalf("%s after %s: %v", show(next.Status), show(w.views[actor].Status), err)
	}
	err := w.update(next)
	if err != nil && !errors.Is(err, errConflict) {
		t.Fatal(err)
	}
	for _, h := range w.lock.Status.Holders {
		w.line = slices.DeleteFunc(w.line, func(r protocol.Request) bool { return r.Owner == h.Owner })
	}
	w.views[actor] = w.read()
	if err == nil && before != w.lock && rapid.Bool().Draw(t, "the reply is lost") {
		w.views[actor], _ = protocol.StateOf(before)
	}
	return err == nil
}

// expectGranted compares what was granted in the last write with what L7 wants.
func (w *world) expectGranted(t *rapid.T, before v1alpha1.DistLockStatus, want []string) {
	var got []string
	for _, h := range w.lock.Status.Holders {
		if was, held := (protocol.State{Status: before}).Hold(h.Owner); !held || was.FencingToken != h.FencingToken {
			got = append(got, h.Owner)
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("granted %v, L7 wants %v\nbefore %s\nafter  %s", got, want, show(before), show(w.lock.Status))
	}
}

// serve is L7, and the part of L8 that one write can keep, in their own words:
// the first in line are served while they fit, and nobody behind the first that
// does not. Who wants more than there is does not stand in line.
func serve(spec v1alpha1.DistLockSpec, st v1alpha1.DistLockStatus, line []v1alpha1.Waiter) (served []string, waiting []v1alpha1.Waiter) {
	capacity := 1 << 30
	if spec.Capacity != nil {
		capacity = int(*spec.Capacity)
	}
	holds, used, alone := map[string]bool{}, 0, false
	for _, h := range st.Holders {
		holds[h.Owner], used, alone = true, used+int(h.Permits), h.Mode == v1alpha1.Exclusive
	}
	for _, w := range line {
		if holds[w.Owner] || (w.Mode == v1alpha1.Shared && int(w.Permits) > capacity) {
			continue
		}
		room := len(holds) == 0 || (w.Mode == v1alpha1.Shared && !alone && used+int(w.Permits) <= capacity && len(holds) < 256)
		if len(waiting) > 0 || !room || st.ClosedSeconds > 0 {
			waiting = append(waiting, w)
			continue
		}
		holds[w.Owner], used, alone = true, used+int(w.Permits), w.Mode == v1alpha1.Exclusive
		served = append(served, w.Owner)
	}
	return served, waiting
}

func without(st v1alpha1.DistLockStatus, owner string) v1alpha1.DistLockStatus {
	st.Holders = slices.DeleteFunc(slices.Clone(st.Holders), func(h v1alpha1.Hold) bool { return h.Owner == owner })
	return st
}

func requestsOf(ws []v1alpha1.Waiter) (rs []protocol.Request) {
	for _, w := range ws {
		rs = append(rs, protocol.Request{Waiter: w})
	}
	return rs
}
