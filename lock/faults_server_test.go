package lock_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/hack/cluster"
	"github.com/distlock-dev/distlock/lock"
)

// The lease is longer than a restart takes on a busy machine.
func TestFault22TheAPIServerRestarts(t *testing.T) {
	for name, end := range map[string]func(*cluster.Component){
		"in order": (*cluster.Component).Stop,
		"killed":   (*cluster.Component).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			ns := controlPlane.Namespace(t)
			l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 120})
			clock := &lock.Clock{}
			holder := asHolder(t, ns)
			p, q := newProgramWith(t, ns, clock, holder), newProgram(t, ns, holder)
			h, err := p.Acquire(t.Context(), "ledger")
			must(t, err)
			waiting := acquire(t, q, "ledger")
			q.awaitRequests(t, "GET distlocks", 2)
			enqueue(t, l)
			before := read(t, l)

			end(controlPlane.APIServer)
			clock.Jump(41*time.Second, 41*time.Second) // a renewal is due, and meets nobody
			must(t, controlPlane.APIServer.Start(t.Context()))

			until(t, l, "renewed", func(l *v1alpha1.DistLock) bool {
				return len(l.Status.Holders) == 1 && l.Status.Holders[0].RenewTime.After(before.Status.Holders[0].RenewTime.Time)
			})
			must(t, h.Check(t.Context()))
			waiting.stillWaits(t)
			must(t, h.Release(t.Context()))
			next := waiting.hold(t)
			if next.Token() <= h.Token() {
				t.Errorf("token %d after %d", next.Token(), h.Token())
			}
			must(t, next.Release(t.Context()))
			untilNoClaims(t, ns)
		})
	}
}

// asHolder has a client act as a service account that may do what holders do, and
// nothing else.
func asHolder(t *testing.T, ns string) func(*rest.Config) {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "holder"}}
	must(t, admin.Create(t.Context(), account))
	must(t, admin.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "holder"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "distlock-holder-role"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: "holder"}},
	}))
	config, err := controlPlane.ServiceAccountConfig(t.Context(), ns, "holder")
	must(t, err)
	locks, err := lock.NewClient(config, lock.Namespace(ns))
	must(t, err)
	eventually(t, "in effect", func() bool {
		_, err := locks.TryAcquire(t.Context(), "none")
		return errors.Is(err, lock.ErrNoLock)
	})
	must(t, locks.Close(t.Context()))
	return func(c *rest.Config) {
		c.BearerToken, c.CertData, c.KeyData, c.CertFile, c.KeyFile = config.BearerToken, nil, nil, "", ""
	}
}

const expired = `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","message":"too old","reason":"Expired","code":410}}` + "\n"

// With an hour's lease no safety net catches the waiter: only its watch does.
func TestFault22AWatchThatIsTooOldIsBegunAnew(t *testing.T) {
	for name, answer := range map[string]behaviour{
		"said in the watch": func(_ http.RoundTripper, req *http.Request) (*http.Response, error) {
			a := answered(req, http.StatusOK, http.Header{"Content-Type": []string{"application/json"}})
			a.Body = io.NopCloser(strings.NewReader(expired))
			return a, nil
		},
		"said before it": func(_ http.RoundTripper, req *http.Request) (*http.Response, error) {
			return answered(req, http.StatusGone, nil), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t)
			l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3600})
			p, q := newProgram(t, ns), newProgram(t, ns)
			h, err := p.Acquire(t.Context(), "ledger")
			must(t, err)
			q.once("WATCH distlocks", answer)
			waiting := acquire(t, q, "ledger")
			q.awaitRequests(t, "WATCH distlocks", 2)
			enqueue(t, l)
			must(t, h.Release(t.Context()))
			must(t, waiting.hold(t).Release(t.Context()))
		})
	}
}

// One that has just started does not know yet who may do what.
func TestFault22AWaiterOutlastsAnAPIServerThatRefusesForAMoment(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3600})
	p, q := newProgram(t, ns), newProgram(t, ns)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	q.behave(refusesFor(map[string][]int{"GET distlocks": {2, 3}, "WATCH distlocks": {2}}))
	waiting := acquire(t, q, "ledger")
	q.awaitRequests(t, "WATCH distlocks", 3)
	enqueue(t, l)
	must(t, h.Release(t.Context()))
	must(t, waiting.hold(t).Release(t.Context()))
}

// refusesFor answers the requests of these numbers with 403, and the first watch with
// its end.
func refusesFor(numbers map[string][]int) behaviour {
	var mu sync.Mutex
	asked := map[string]int{}
	return func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		what := described(req)
		mu.Lock()
		asked[what]++
		n := asked[what]
		mu.Unlock()
		switch {
		case slices.Contains(numbers[what], n):
			return answered(req, http.StatusForbidden, nil), nil
		case what == "WATCH distlocks" && n == 1:
			return answered(req, http.StatusOK, http.Header{"Content-Type": []string{"application/json"}}), nil
		}
		return next.RoundTrip(req)
	}
}

func TestAWaiterThatMayNotAnyMoreGivesUp(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3})
	clock := &lock.Clock{}
	p, q := newProgram(t, ns), newProgramWith(t, ns, clock)
	_, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	waiting := acquire(t, q, "ledger")
	q.awaitRequests(t, "GET distlocks", 2)
	q.behave(func(_ http.RoundTripper, req *http.Request) (*http.Response, error) {
		return answered(req, http.StatusForbidden, nil), nil
	})
	eventually(t, "given up", func() bool {
		clock.Jump(10*time.Millisecond, 0)
		return len(waiting.done) > 0
	})
	if got := waiting.result(t); !apierrors.IsForbidden(got.err) {
		t.Errorf("got %v", got.err)
	}
}

func TestFault24AHolderStopsOnItsOwnDeadlineWhileEtcdStalls(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3})
	p := newProgram(t, ns)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	stopped := make(chan time.Time, 1)
	context.AfterFunc(h.Context(), func() { stopped <- time.Now() })
	must(t, controlPlane.Etcd.Pause())
	paused := time.Now()
	resume := func() { must(t, controlPlane.Etcd.Resume()) }
	defer resume()
	select {
	case at := <-stopped:
		t.Logf("it stopped after %s", at.Sub(paused))
		if at.Sub(paused) > 3*time.Second {
			t.Errorf("it stopped after %s, with a lease of 3s", at.Sub(paused))
		}
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	wantIs(t, context.Cause(h.Context()), lock.ErrLost)
	resume()
	if err := h.Release(t.Context()); err != nil {
		wantIs(t, err, lock.ErrNotHeld) // nobody was there to expire it, but its own renewal may have come late
	}
	next, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	if next.Token() <= h.Token() {
		t.Errorf("token %d after %d", next.Token(), h.Token())
	}
	must(t, next.Check(t.Context()))
}
