package controllers_test

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
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
	untilToldToWait(t, a)
	c.kill()
	startController(t, ns)
	b := jobOn(t, ns, "b", "nightly")
	if e := untilToldToWait(t, b); e.Note == "" || e.Related == nil || e.Related.Name != "nightly" {
		t.Errorf("event %+v", e)
	}
	var events eventsv1.EventList
	must(t, admin.List(t.Context(), &events, client.InNamespace(ns), client.MatchingFields{"regarding.uid": string(a.UID), "reason": "WaitingForLock"}))
	if len(events.Items) != 1 {
		t.Errorf("%d events on a, want the one: %+v", len(events.Items), events.Items)
	}
}

// untilToldToWait waits for the event that tells a Job that it waits.
func untilToldToWait(t *testing.T, j *batchv1.Job) *eventsv1.Event {
	t.Helper()
	w, err := admin.Watch(t.Context(), &eventsv1.EventList{}, client.InNamespace(j.Namespace), client.MatchingFields{"regarding.uid": string(j.UID)})
	must(t, err)
	defer w.Stop()
	for e := range w.ResultChan() {
		if event, ok := e.Object.(*eventsv1.Event); ok && e.Type == watch.Added && event.Reason == "WaitingForLock" {
			return event
		}
	}
	t.Fatalf("Job %s was never told that it waits", j.Name)
	return nil
}
