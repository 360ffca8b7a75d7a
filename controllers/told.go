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

// These set apart, in told, what is told beside why a Job waits, so that they are
// not told in turns: that others refuse its start, and that the lock is closed.
const (
	refusal = types.UID("/refused")
	closed  = types.UID("/closed")
)

func newTold() *told { return &told{reason: map[types.UID]string{}, recalled: map[string]bool{}} }

// news reports whether a reason is another one than was told last.
func (t *told) news(job types.UID, reason string) bool {
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
	delete(t.reason, job+refusal)
	delete(t.reason, job+closed)
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
	last := map[types.UID]eventSeen{}
	for next := ""; ; {
		page := &eventsv1.EventList{} // each page is let go
		if err := r.Live.List(ctx, page, client.InNamespace(namespace), client.Limit(500), client.Continue(next),
			client.MatchingFields{"reportingController": v1alpha1.ControllerServiceAccount, "regarding.kind": "Job"}); err != nil {
			log.FromContext(ctx).Error(fmt.Errorf("listing the events in %s: %w", namespace, err), "Jobs that wait may be told so again")
			break
		}
		for i := range page.Items {
			e := &page.Items[i]
			if version := versionOf(e); last[e.Regarding.UID].version < version {
				last[e.Regarding.UID] = eventSeen{version, e.Reason}
			}
		}
		if next = page.Continue; next == "" {
			break
		}
	}
	for uid, e := range last {
		r.told.recalls(uid, e.reason)
	}
}

// eventSeen is what counts of an event.
type eventSeen struct {
	version int64
	reason  string
}
