package lock

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// version is a lock as it was stored once, with one hold of a lease of a minute.
func version(resourceVersion, owner string, token int64, renewed time.Time) *v1alpha1.DistLock {
	return &v1alpha1.DistLock{
		ObjectMeta: metav1.ObjectMeta{Name: "ledger", ResourceVersion: resourceVersion},
		Status: v1alpha1.DistLockStatus{FencingToken: token, Holders: []v1alpha1.Hold{{
			Owner: owner, Mode: v1alpha1.Exclusive, Permits: 1, FencingToken: token, LeaseDurationSeconds: new(int32(60)),
			RenewTime: metav1.NewMicroTime(renewed),
		}}},
	}
}

func expires(t *testing.T, v *view, l *v1alpha1.DistLock) bool {
	t.Helper()
	s, err := protocol.StateOf(l)
	if err != nil {
		t.Fatal(err)
	}
	next, stale := v.overdue(s)
	if (stale != nil) != next.Differs(s) {
		t.Errorf("expired %+v, and the lock is %+v", stale, next.Status)
	}
	return stale != nil
}

// What was seen of one version says nothing of another one in which the hold was
// renewed or is another.
func TestOnlyAHoldThatWasSeenAsItIsIsOverdue(t *testing.T) {
	clock := &Clock{}
	v := newView(nil, "ledger", clock.read)
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	first := version("10", "a", 7, t0)
	v.show(first)
	clock.Jump(66*time.Second, 0)
	if !expires(t, v, first) {
		t.Fatal("a hold that was seen for a lease and a margin is not overdue")
	}
	for name, l := range map[string]*v1alpha1.DistLock{
		"renewed":                          version("11", "a", 7, t0.Add(time.Microsecond)),
		"renewed with an earlier time":     version("11", "a", 7, t0.Add(-time.Hour)),
		"granted again with another token": version("11", "a", 8, t0),
		"granted to another":               version("11", "b", 7, t0),
	} {
		if expires(t, v, l) {
			t.Errorf("%s: expired by what was seen before", name)
		}
	}
	v.show(version("9", "b", 6, t0)) // it comes late
	if v.latest() != first || !expires(t, v, first) {
		t.Error("an older version changed what was seen of a newer one")
	}
	again := version("12", "a", 8, t0) // the same renewTime
	v.show(again)
	if expires(t, v, again) {
		t.Error("another hold of the same owner is overdue by what was seen of the first")
	}
}

// An observation is of the monotonic clock, from when a version was seen.
func TestAClosedLockIsOpenedAfterItWasSeenClosedForSoLong(t *testing.T) {
	clock := &Clock{}
	v := newView(nil, "ledger", clock.read)
	closed := &v1alpha1.DistLock{
		ObjectMeta: metav1.ObjectMeta{Name: "ledger", ResourceVersion: "10"},
		Status:     v1alpha1.DistLockStatus{FencingToken: 7, ClosedSeconds: 5},
	}
	v.show(closed)
	opens := func(l *v1alpha1.DistLock) bool {
		s, err := protocol.StateOf(l)
		if err != nil {
			t.Fatal(err)
		}
		next, _ := v.overdue(s)
		return next.Status.ClosedSeconds == 0
	}
	clock.Jump(4*time.Second, time.Hour)
	if opens(closed) {
		t.Error("opened after 4 of 5 seconds")
	}
	clock.Jump(time.Second, 0)
	if !opens(closed) {
		t.Error("not opened after 5 seconds")
	}
	longer := closed.DeepCopy()
	longer.ResourceVersion, longer.Status.ClosedSeconds = "11", 4
	if opens(longer) {
		t.Error("opened by what was seen of another closing")
	}
	longer.Status = v1alpha1.DistLockStatus{FencingToken: 8, ClosedSeconds: 5}
	if opens(longer) {
		t.Error("opened by what was seen after another grant")
	}
}
