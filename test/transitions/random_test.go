package transitions

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// Random operations of the protocol, on a lock of a real API server: it accepts
// all they store. Before each is stored, the write is spoilt in some way and
// tried without storing it: the two laws must agree on that too.
func TestTheAPIServerAgreesWithTheProtocolOnRandomWrites(t *testing.T) {
	accepted, spoilt, refused := 0, 0, 0
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		l, err := newLock(ctx, drawSpec(t))
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 10).Draw(t, "operations") {
			if rapid.IntRange(0, 7).Draw(t, "change the spec") == 0 {
				l.Spec = drawSpec(t)
				if err := admin.Update(ctx, l); err != nil {
					t.Fatal(err)
				}
			}
			state, err := protocol.StateOf(l)
			if err != nil {
				t.Fatal(err)
			}
			next := operate(t, state)
			other := *next.Status.DeepCopy()
			what := spoil(t, &other, state.Status)
			spoilt++
			if agree(ctx, t, what, l, other) != nil {
				refused++
			}
			if rules, err := write(ctx, l, next.Status); err != nil || rules != nil {
				t.Fatalf("a legal write is refused: %v %q", err, rules)
			}
			accepted++
		}
	})
	t.Logf("%d writes of the protocol were accepted; of %d others both laws refused %d", accepted, spoilt, refused)
	if refused == 0 || refused == spoilt {
		t.Error("the spoilt writes test nothing")
	}
}

// agree tries a write without storing it, and returns what both laws say of it.
func agree(ctx context.Context, t *rapid.T, what string, l *v1alpha1.DistLock, st v1alpha1.DistLockStatus) error {
	dry := l.DeepCopy()
	rules, err := write(ctx, dry, st, client.DryRunAll)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	law := protocol.Legal(l.Spec, l.Status, st)
	if (law == nil) != (rules == nil) || law != nil && !slices.Contains(rules, law.Error()) {
		t.Fatalf("%s: the protocol says %v, the API server %q\nbefore %+v\nafter  %+v", what, law, rules, l.Status, st)
	}
	return law
}

func drawSpec(t *rapid.T) v1alpha1.DistLockSpec {
	spec := specOf(rapid.Int32Range(0, 5).Draw(t, "capacity"))
	spec.MinHoldSeconds = rapid.SampledFrom([]int32{0, 0, 5}).Draw(t, "minHoldSeconds")
	spec.LockDelaySeconds = rapid.SampledFrom([]int32{0, 0, 3}).Draw(t, "lockDelaySeconds")
	return spec
}

func drawWaiter(t *rapid.T) v1alpha1.Waiter {
	w := v1alpha1.Waiter{
		Owner:   fmt.Sprint("w", rapid.IntRange(0, 99).Draw(t, "owner")),
		Mode:    rapid.SampledFrom([]v1alpha1.Mode{v1alpha1.Exclusive, v1alpha1.Shared, v1alpha1.Shared}).Draw(t, "mode"),
		Permits: 1,
	}
	if w.Mode == v1alpha1.Shared {
		w.Permits = rapid.Int32Range(1, 3).Draw(t, "permits")
	}
	if rapid.Bool().Draw(t, "leased") {
		w.LeaseDurationSeconds = new(rapid.Int32Range(3, 3600).Draw(t, "lease"))
	}
	return w
}

// operate is one transition of the protocol, or none where it fails.
func operate(t *rapid.T, s protocol.State) (next protocol.State) {
	now := noon.Add(time.Duration(rapid.IntRange(0, 1000).Draw(t, "now")) * time.Millisecond)
	if len(s.Status.Holders) == 0 || rapid.IntRange(0, 2).Draw(t, "decide or not") == 0 {
		next, _ = protocol.Decide(s, drawObserved(t, s), now)
		return next
	}
	h := rapid.SampledFrom(s.Status.Holders).Draw(t, "hold")
	held := time.Duration(rapid.IntRange(0, 6).Draw(t, "held")) * time.Second
	switch rapid.IntRange(0, 5).Draw(t, "operation") {
	case 0:
		next, _ = s.Acquire(drawWaiter(t), now)
	case 1:
		next, _ = s.Renew(h.Owner, h.FencingToken, now)
	case 2:
		next, _ = s.Revoke(h.Owner, now)
	case 3:
		next, _ = s.Release(h.Owner, h.FencingToken, held, now)
	case 4:
		next, _ = s.Expire(h.Owner, h.FencingToken, held, now)
	case 5:
		next = s.Open()
	}
	return next
}

func drawObserved(t *rapid.T, s protocol.State) protocol.Observed {
	o := protocol.Observed{Holds: map[string]protocol.HoldFacts{}, ClosedFor: time.Hour}
	for i := range rapid.IntRange(0, 5).Draw(t, "requests") {
		r := protocol.Request{Waiter: drawWaiter(t), Seen: int64(i), Running: rapid.IntRange(0, 5).Draw(t, "running") == 0}
		r.Owner = fmt.Sprint(i, r.Owner)
		o.Requests = append(o.Requests, r)
	}
	for _, h := range s.Status.Holders {
		o.Holds[h.Owner] = protocol.HoldFacts{
			Ended:    rapid.IntRange(0, 2).Draw(t, "ended") == 0,
			MustStop: rapid.IntRange(0, 2).Draw(t, "must stop") == 0,
		}
	}
	return o
}

// spoil makes another write of one, and says how.
func spoil(t *rapid.T, st *v1alpha1.DistLockStatus, before v1alpha1.DistLockStatus) string {
	if len(st.Holders) == 0 || rapid.IntRange(0, 2).Draw(t, "spoil the lock") == 0 {
		return spoilLock(t, st, before)
	}
	i := rapid.IntRange(0, len(st.Holders)-1).Draw(t, "hold")
	h := &st.Holders[i]
	switch rapid.IntRange(0, 9).Draw(t, "spoil") {
	case 0:
		h.FencingToken++
		return "a hold's token one up"
	case 1:
		h.FencingToken = max(1, h.FencingToken-1)
		return "a hold's token one down"
	case 2:
		h.FencingToken, st.FencingToken = st.FencingToken+1, st.FencingToken+1
		return "a hold granted anew"
	case 3:
		h.Mode = map[v1alpha1.Mode]v1alpha1.Mode{v1alpha1.Exclusive: v1alpha1.Shared, v1alpha1.Shared: v1alpha1.Exclusive}[h.Mode]
		return "a hold in the other mode"
	case 4:
		h.Permits++
		return "a hold with one more permit"
	case 5:
		h.RevokeTime = nil
		return "a hold not revoked"
	case 6:
		h.RenewTime.Time = h.RenewTime.Add(time.Second)
		return "a hold renewed"
	case 7:
		h.Owner += "'"
		return "a hold of another owner"
	case 8:
		st.Holders = append(st.Holders, x(h.Owner+"'", h.FencingToken))
		return "an Exclusive hold more with the same token"
	}
	st.Holders = append(st.Holders, s(h.Owner+"'", h.FencingToken))
	return "a Shared hold more with the same token"
}

func spoilLock(t *rapid.T, st *v1alpha1.DistLockStatus, before v1alpha1.DistLockStatus) string {
	grant := func(token int64) {
		st.FencingToken = max(st.FencingToken, token)
		if token > 0 {
			st.Holders = append(st.Holders, s("new", token))
		}
	}
	switch rapid.IntRange(0, 7).Draw(t, "spoil") {
	case 0:
		st.FencingToken = max(0, before.FencingToken-1)
		return "a lower mark"
	case 1:
		st.FencingToken++
		return "a higher mark"
	case 2:
		*st = v1alpha1.DistLockStatus{}
		return "no status"
	case 3:
		st.Holders = nil
		return "no holds"
	case 4:
		st.Holders = before.Holders
		return "the holds before"
	case 5:
		grant(before.FencingToken)
		return "a hold more with the last token"
	case 6:
		grant(before.FencingToken - 1)
		return "a hold more with an old token"
	}
	grant(st.FencingToken + 1)
	return "a hold more with a new token"
}
