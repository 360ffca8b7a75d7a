package controllers

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

var nightly = types.NamespacedName{Namespace: "reports", Name: "nightly"}

// lineOf puts waiting askers into a line, each with the second it came in and its
// resourceVersion.
func lineOf(as ...asker) *askers {
	s := newAskers()
	for _, a := range as {
		s.put(nightly, a)
	}
	return s
}

func waiter(uid types.UID, second, version int64) asker {
	return asker{kind: kindJob, uid: uid, since: time.Unix(second, 0), version: version, waits: true}
}

func uids(as []asker) (out []types.UID) {
	for _, a := range as {
		out = append(out, a.uid)
	}
	return out
}

func wantLine(t *testing.T, s *askers, want ...types.UID) {
	t.Helper()
	if got := uids(s.after(nightly, asker{}, 100)); !slices.Equal(got, want) {
		t.Errorf("in line: %v, want %v", got, want)
	}
}

func TestAskersStandInLineBySecondThenByVersionAtFirstSight(t *testing.T) {
	s := lineOf(waiter("c", 2, 30), waiter("b", 1, 29), waiter("a", 1, 40))
	wantLine(t, s, "b", "a", "c")

	s.put(nightly, waiter("b", 1, 99)) // it was changed since
	wantLine(t, s, "b", "a", "c")

	s.put(nightly, waiter("b", 3, 100)) // it was revoked, and requeued
	wantLine(t, s, "a", "c", "b")
	if place, of := s.place(nightly, "b"); place != 3 || of != 3 {
		t.Errorf("place %d of %d", place, of)
	}
}

func TestTheLineGoesOnBehindAPlaceThatIsGone(t *testing.T) {
	s := lineOf(waiter("a", 1, 1), waiter("b", 2, 2), waiter("c", 3, 3))
	a, _ := s.find(nightly, "a")
	b, _ := s.find(nightly, "b")
	s.remove(nightly, "b")
	if got := uids(s.after(nightly, b, 5)); !slices.Equal(got, []types.UID{"c"}) {
		t.Errorf("behind b: %v", got)
	}
	if got := uids(s.after(nightly, a, 1)); !slices.Equal(got, []types.UID{"c"}) {
		t.Errorf("behind a: %v", got)
	}
}

func TestWhoWaitsNoMoreLeavesTheLine(t *testing.T) {
	s := lineOf(waiter("a", 1, 1), waiter("b", 2, 2))
	s.put(nightly, waiter("a", 9, 0)) // older than what is known
	wantLine(t, s, "a", "b")
	finished := waiter("a", 1, 9)
	finished.waits = false
	s.put(nightly, finished)
	wantLine(t, s, "b")
	s.note(nightly, "b", func(a *asker) { a.ended = true })
	wantLine(t, s)
	s.put(nightly, waiter("b", 2, 10)) // the watch still shows it waiting
	wantLine(t, s)
}

func TestTheNewTheStrayedAndTheWatchedAreLookedAtWhateverTheirPlace(t *testing.T) {
	leased := waiter("leased", 1, 1)
	leased.kind, leased.leased = kindClaim, true
	running := waiter("running", 3, 3)
	running.watched = true
	s := lineOf(leased, waiter("new", 2, 2), running)
	for _, uid := range []types.UID{"new", "running"} {
		s.note(nightly, uid, func(a *asker) { a.unsettled = false })
	}
	if got := uids(s.aside(nightly)); !slices.Equal(got, []types.UID{"running"}) {
		t.Errorf("aside: %v, want the one that runs", got)
	}
	s.note(nightly, "new", func(a *asker) { a.strayed = true })
	s.put(nightly, waiter("newest", 4, 4))
	got := uids(s.aside(nightly))
	slices.Sort(got)
	if !slices.Equal(got, []types.UID{"new", "newest", "running"}) {
		t.Errorf("aside: %v", got)
	}
}

func TestALockThatNobodyNamesLeavesNothingBehind(t *testing.T) {
	s := lineOf(waiter("a", 1, 1))
	s.remove(nightly, "a")
	s.remove(nightly, "a")
	s.note(nightly, "a", func(a *asker) { a.strayed = true })
	if len(s.locks) != 0 {
		t.Errorf("left: %v", s.locks)
	}
}

func TestAJobThatHadEndedAndIsSuspendedAfterThatWaitsAgain(t *testing.T) {
	s := lineOf(waiter("a", 1, 1), waiter("b", 2, 2))
	s.note(nightly, "a", func(a *asker) { a.ended = true })
	wantLine(t, s, "b")
	s.put(nightly, waiter("a", 1, 3)) // what it says of itself lags
	wantLine(t, s, "b")
	again := waiter("a", 5, 4)
	again.suspended = true
	s.put(nightly, again)
	wantLine(t, s, "b", "a")
}
