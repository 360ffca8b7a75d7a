package controllers_test

import (
	"context"
	"maps"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

func TestAJobIsToldOnceThatItWaitsAlsoByTheNextController(t *testing.T) {
	ns := namespace(t)
	c := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	untilClaim(t, claimOn(t, ns, "holder", "nightly", nil), v1alpha1.ReasonGranted)
	a := jobOn(t, ns, "a", "nightly")
	untilTold(t, a, "WaitingForLock")
	c.kill()
	startController(t, ns)
	b := jobOn(t, ns, "b", "nightly")
	if e := untilTold(t, b, "WaitingForLock"); e.Note == "" || e.Related == nil || e.Related.Name != "nightly" {
		t.Errorf("event %+v", e)
	}
	wantTold(t, a, map[string]int{"WaitingForLock": 1})
}

// What was told last is not why it waits.
func TestTheJobAtTheHeadOfAClosedLockIsToldOnceAlsoByTheNextController(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	c := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{MinHoldSeconds: 3600})
	first := untilClaim(t, claimOn(t, ns, "first", "nightly", nil), v1alpha1.ReasonGranted)
	a := jobOn(t, ns, "a", "nightly")
	untilTold(t, a, "WaitingForLock")
	must(t, admin.Delete(t.Context(), first))
	untilTold(t, a, "LockClosed")
	c.kill()
	startController(t, ns)
	untilTold(t, jobOn(t, ns, "b", "nightly"), "WaitingForLock")
	wantTold(t, a, map[string]int{"WaitingForLock": 1, "LockClosed": 1})
}

func TestARevocationOfAClaimIsToldOnceAlsoByTheNextController(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	c := startController(t, ns)
	l := lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	claim := untilClaim(t, claimOn(t, ns, "holder", "nightly", nil), v1alpha1.ReasonGranted)
	revoke(t, ns, "nightly", "claim/"+string(claim.UID))
	untilTold(t, l, "LockRevoked")
	c.kill()
	startController(t, ns)
	untilTold(t, jobOn(t, ns, "b", "nightly"), "WaitingForLock")
	wantTold(t, l, map[string]int{"LockRevoked": 1})
}

// A Job that runs without its lock and asks for what cannot be is told both, and not
// in turns.
func TestAnIntruderWithABadRequestIsToldEachOfBothOnce(t *testing.T) {
	t.Parallel()
	ns := lawlessNamespace(t)
	c := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	untilClaim(t, claimOn(t, ns, "holder", "nightly", nil), v1alpha1.ReasonGranted)
	a := jobOn(t, ns, "a", "nightly")
	untilQueued(t, ns, "nightly", 1)
	found, letGo := c.holdUp(writes(http.MethodPatch, "/jobs/a"))
	defer letGo()
	patchAsController(t, a, `{"metadata":{"annotations":{"distlock.dev/mode":"none"}},"spec":{"suspend":false}}`)
	await(t, found, "the suspension")
	pod := podOf(t, a)
	letGo()
	untilTold(t, a, "BadLockRequest")
	for range 3 {
		look(t, ns, "nightly")
	}
	untilTold(t, jobOn(t, ns, "b", "nightly"), "WaitingForLock")
	wantTold(t, a, map[string]int{"WaitingForLock": 1, "RunningWithoutLock": 1, "BadLockRequest": 1})
	setPhase(t, pod, corev1.PodFailed)
}

// untilTold waits for an event about an object.
func untilTold(t *testing.T, o client.Object, reason string) *eventsv1.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := admin.Watch(ctx, &eventsv1.EventList{}, client.InNamespace(o.GetNamespace()), client.MatchingFields{"regarding.uid": string(o.GetUID())})
	must(t, err)
	defer w.Stop()
	for e := range w.ResultChan() {
		if event, ok := e.Object.(*eventsv1.Event); ok && e.Type == watch.Added && event.Reason == reason {
			return event
		}
	}
	t.Fatalf("%s was never told %s", o.GetName(), reason)
	return nil
}

// wantTold compares how often the controller told an object what. Whatever was told before the
// last that was waited for is stored: events are sent in their order.
func wantTold(t *testing.T, o client.Object, want map[string]int) {
	t.Helper()
	var events eventsv1.EventList
	must(t, admin.List(t.Context(), &events, client.InNamespace(o.GetNamespace()),
		client.MatchingFields{"regarding.uid": string(o.GetUID()), "reportingController": v1alpha1.ControllerServiceAccount}))
	told := map[string]int{}
	for _, e := range events.Items {
		told[e.Reason]++
		if e.Series != nil {
			told[e.Reason] += int(e.Series.Count)
		}
	}
	if !maps.Equal(told, want) {
		t.Errorf("%s was told %v, want %v", o.GetName(), told, want)
	}
}
