package controllers

import (
	"context"
	"fmt"
	"sync"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// told remembers, per Job or claim, what it was told last, so that it is told once.
// Safe for concurrent use.
type told struct {
	mu       sync.Mutex
	reason   map[types.UID]string
	recalled map[string]bool // namespaces
}

// beside is told beside why a Job waits, and is set apart in told by these, so that
// they are not told in turns.
var beside = map[string]types.UID{
	eventRefused:    "/refused",
	eventClosed:     "/closed",
	eventBadRequest: "/bad",
}

func newTold() *told { return &told{reason: map[types.UID]string{}, recalled: map[string]bool{}} }

// news reports whether a reason is another one than was told last.
func (t *told) news(job types.UID, reason string) bool {
	job += beside[reason]
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reason[job] == reason {
		return false
	}
	t.reason[job] = reason
	return true
}

func (t *told) forget(job types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.reason, job)
	for _, suffix := range beside {
		delete(t.reason, job+suffix)
	}
}

// firstOf reports whether a namespace is asked about for the first time.
func (t *told) firstOf(namespace string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.recalled[namespace] {
		return false
	}
	t.recalled[namespace] = true
	return true
}

// recalls takes in what a Job was told by a controller before this one.
func (t *told) recalls(job types.UID, reason string) {
	job += beside[reason]
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.reason[job]; !known {
		t.reason[job] = reason
	}
}

// recall reads, once for each namespace, what the controller before this one has
// told the Jobs in it: a change of the leader is no news to them.
func (r *Reconciler) recall(ctx context.Context, namespace string) {
	if !r.told.firstOf(namespace) {
		return
	}
	last := map[types.UID]eventSeen{} // by Job and what it is set apart by
	for next := ""; ; {
		page := &eventsv1.EventList{} // each page is let go
		if err := r.Live.List(ctx, page, client.InNamespace(namespace), client.Limit(500), client.Continue(next),
			client.MatchingFields{"reportingController": v1alpha1.ControllerServiceAccount, "regarding.kind": "Job"}); err != nil {
			log.FromContext(ctx).Error(fmt.Errorf("listing the events in %s: %w", namespace, err), "Jobs that wait may be told so again")
			break
		}
		for i := range page.Items {
			e := &page.Items[i]
			key := e.Regarding.UID + beside[e.Reason]
			if version := versionOf(e); last[key].version < version {
				last[key] = eventSeen{e.Regarding.UID, version, e.Reason}
			}
		}
		if next = page.Continue; next == "" {
			break
		}
	}
	for _, e := range last {
		r.told.recalls(e.job, e.reason)
	}
}

// eventSeen is what counts of an event.
type eventSeen struct {
	job     types.UID
	version int64
	reason  string
}
