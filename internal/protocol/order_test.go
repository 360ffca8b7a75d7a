package protocol_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// Two controllers that take turns first saw the requests of one second in
// different orders. What one of them has stored, the other does not turn round,
// and an earlier second always goes before a later one.
func TestControllersThatSawASecondInDifferentOrdersKeepTheStoredOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{server: newServer(100, v1alpha1.DistLockSpec{})}
		seen := [2]map[string]int64{{}, {}}
		held := map[string]protocol.HoldFacts{}
		decide := func(t *rapid.T) {
			c := rapid.IntRange(0, 1).Draw(t, "controller")
			requests := slices.Clone(w.line)
			for i := range requests {
				requests[i].Seen = seen[c][requests[i].Owner]
			}
			before := w.lock.Status.Queue
			next, e := protocol.Decide(w.read(), protocol.Observed{Requests: requests, Holds: held}, noon)
			if err := w.update(next); err != nil {
				t.Fatal(err)
			}
			clear(held)
			w.checkTurns(t, before, e)
		}
		t.Repeat(map[string]func(*rapid.T){
			"arrive": func(t *rapid.T) {
				w.second += rapid.IntRange(0, 1).Draw(t, "seconds later")
				for range rapid.IntRange(1, 20).Draw(t, "how many") {
					r := ask(w.drawWaiter(t), w.second, 0)
					w.line = append(w.line, r)
					for c := range seen {
						seen[c][r.Owner] = rapid.Int64Range(0, 9).Draw(t, "seen")
					}
				}
			},
			"end": func(*rapid.T) {
				for _, h := range w.lock.Status.Holders {
					held[h.Owner] = protocol.HoldFacts{Ended: true}
				}
			},
			"give up":    w.giveUp,
			"decide":     decide,
			"decide too": decide,
		})
	})
}

// checkTurns compares the order before a decision with the one after it, and
// takes those that were granted out of the line.
func (w *world) checkTurns(t *rapid.T, before []v1alpha1.Waiter, e protocol.Effects) {
	joined := map[string]time.Time{}
	for _, r := range w.line {
		joined[r.Owner] = r.Since
	}
	var turns []string // those of before that have their turn or still wait, in the order they do
	var last time.Time
	take := func(owner string) {
		if joined[owner].Before(last) {
			t.Fatalf("%s, of an earlier second, comes after one of %v", owner, last)
		}
		last = joined[owner]
		if slices.ContainsFunc(before, func(q v1alpha1.Waiter) bool { return q.Owner == owner }) {
			turns = append(turns, owner)
		}
	}
	for _, h := range e.Granted {
		take(h.Owner)
	}
	for _, r := range e.Waiting {
		take(r.Owner)
	}
	i := 0
	for _, q := range before {
		if i < len(turns) && turns[i] == q.Owner {
			i++
		}
	}
	if i < len(turns) {
		t.Fatalf("stored as %s, and served as %v", owners(requestsOf(before)), turns)
	}
	for _, h := range e.Granted {
		w.line = slices.DeleteFunc(w.line, func(r protocol.Request) bool { return r.Owner == h.Owner })
	}
}
