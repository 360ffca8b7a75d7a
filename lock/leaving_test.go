package lock_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

// The place in the queue goes first, and then what came of it meanwhile: the other way
// round the claim would be granted the lock, and nobody would know. With an hour's
// lease that would not go by.
func TestARequestThatIsGrantedWhileItLeavesGivesTheHoldBack(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3600})
	startController(t)
	p, q := newProgram(t, ns), newProgram(t, ns)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	leaving := acquire(t, q, "ledger")
	until(t, l, "queued", queued(1))
	heldUp, letGo := held()
	q.behave(only("DELETE lockclaims", heldUp))
	leaving.cancel()
	q.awaitRequest(t, "DELETE lockclaims")
	until(t, l, "queued", queued(1)) // also if it was taken out: its claim is there
	must(t, h.Release(t.Context()))
	until(t, l, "granted", func(l *v1alpha1.DistLock) bool {
		return len(l.Status.Holders) == 1 && l.Status.Holders[0].Owner != h.Owner()
	})
	letGo()
	if got := leaving.result(t); got.err == nil {
		t.Fatal("it has the lock")
	}
	until(t, l, "free", free)
	untilNoClaims(t, ns)
}

// Where many wait in one process, they share a watch that began before: what happens
// between a waiter's read and its taking part would be missed for an hour.
func TestAWaiterByTheSharedWatchMissesNothing(t *testing.T) {
	ns := namespace(t)
	before := len(ownGoroutines())
	p, q := newProgram(t, ns), newProgram(t, ns)
	lease := lock.Lease(time.Hour)
	const n = 50 // two more than have a watch of their own
	all := make([]*acquiring, n)
	var last *v1alpha1.DistLock
	var holds []*lock.Hold
	served := make(chan struct{})
	heldUp, letGo := held()
	for i := range all {
		name := fmt.Sprintf("ledger-%d", i)
		last = lockIn(t, ns, name, v1alpha1.DistLockSpec{})
		h, err := p.Acquire(t.Context(), name, lease)
		must(t, err)
		holds = append(holds, h)
		q.taken()
		if i == n-1 {
			reads := 0
			q.behave(only("GET distlocks", func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
				answer, err := next.RoundTrip(req)
				reads++
				if reads == 2 { // one to try, and one after it takes part
					close(served)
					_, _ = heldUp(roundTripper(func(*http.Request) (*http.Response, error) { return nil, io.EOF }), req)
				}
				return answer, err
			}))
			all[i] = acquire(t, q, name, lease)
			<-served
			break
		}
		all[i] = acquire(t, q, name, lease)
		q.awaitRequests(t, "GET distlocks", 2)
		eventually(t, "settled", func() bool { return q.settled("GET distlocks") })
	}
	if watches := count(q.taken(), "WATCH distlocks"); watches != 0 {
		t.Errorf("the last one began %d watches", watches)
	}
	enqueue(t, last)
	must(t, holds[n-1].Release(t.Context()))
	q.behave(nil)
	letGo()
	all[n-1].hold(t)
	for _, a := range all[:n-1] {
		a.stillWaits(t)
		a.cancel()
	}
	for _, a := range all[:n-1] {
		a.result(t)
	}
	must(t, p.Close(t.Context()))
	must(t, q.Close(t.Context()))
	untilOwnGoroutines(t, before)
}

// A Role for some locks by name allows no watch of all.
func TestWhereTheSharedWatchIsForbiddenEachHasItsOwn(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	p, q := newProgram(t, ns), newProgram(t, ns)
	h, err := p.Acquire(t.Context(), "ledger", lock.Lease(time.Hour))
	must(t, err)
	q.behave(only("WATCH distlocks", func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		if req.URL.Query().Get("fieldSelector") == "" {
			return answered(req, http.StatusForbidden, nil), nil
		}
		return next.RoundTrip(req)
	}))
	const n = 50
	all := make([]*acquiring, n)
	for i := range all {
		all[i] = acquire(t, q, "ledger", lock.Lease(time.Hour))
	}
	q.awaitRequests(t, "WATCH distlocks", n+1)
	enqueue(t, l)
	must(t, h.Release(t.Context()))
	got := make(chan error)
	for _, a := range all {
		go func() {
			r := <-a.done
			if r.err == nil {
				r.err = r.Release(t.Context())
			}
			got <- r.err
		}()
	}
	for range v1alpha1.MaxQueue { // those that are stored
		must(t, <-got)
	}
	eventually(t, "without the claims of those", func() bool {
		var claims v1alpha1.LockClaimList
		must(t, admin.List(t.Context(), &claims, client.InNamespace(ns)))
		return len(claims.Items) == n-v1alpha1.MaxQueue
	})
	enqueue(t, l)
	_, err = p.TryAcquire(t.Context(), "ledger") // hands it to their head
	wantIs(t, err, lock.ErrHeld)
	for range n - v1alpha1.MaxQueue {
		must(t, <-got)
	}
}
