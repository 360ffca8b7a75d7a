package lock_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

func TestWaitingCostsAClaimAWatchAndAReadNowAndThen(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 4})
	p, q := newProgram(t, ns), newProgram(t, ns)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	began := time.Now()
	waiting := acquire(t, q, "ledger")
	q.awaitRequest(t, "WATCH distlocks")
	enqueue(t, l)
	q.awaitRequests(t, "GET distlocks", 6) // one to try, one after the watch began, and then one in a quarter of a lease and more
	waited := time.Since(began)
	must(t, h.Release(t.Context()))
	next := waiting.hold(t)
	asked := q.taken()
	reads := count(asked, "GET distlocks")
	if others := slices.DeleteFunc(slices.Clone(asked), func(r string) bool { return r == "GET distlocks" }); !slices.Equal(others, []string{"POST lockclaims", "WATCH distlocks"}) {
		t.Errorf("it waited with %q", others)
	}
	if most := 3 + int(waited/time.Second); reads > most {
		t.Errorf("%d reads in %s, with a lease of 4s", reads, waited)
	}
	t.Logf("%d reads in %s, with a lease of 4s", reads, waited)
	must(t, next.Release(t.Context()))
	untilNoClaims(t, ns)
	if released := q.taken(); count(released, "PUT distlocks/status") < 1 || count(released, "DELETE lockclaims") != 1 || count(released, "GET distlocks") > 0 {
		t.Errorf("released with %q", released)
	}
}

// Those that wait in one process share their reads.
func TestOneReadServesAllThatWaitInAProcess(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 8})
	p, q := newProgram(t, ns), newProgram(t, ns)
	_, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	const n = 30
	all := make([]*acquiring, n)
	for i := range all {
		all[i] = acquire(t, q, "ledger")
	}
	q.awaitRequests(t, "WATCH distlocks", n)
	eventually(t, "read", func() bool { return q.settled("GET distlocks") && q.settled("POST lockclaims") })
	q.taken()
	began := time.Now()
	q.awaitRequests(t, "GET distlocks", 4)
	took := time.Since(began)
	reads := count(q.taken(), "GET distlocks")
	t.Logf("%d reads for %d waiters in %s, with a lease of 8s", reads, n, took)
	if most := 3 + int(took/time.Second); reads > most { // in an eighth of a lease one at most, and they began at different times
		t.Errorf("%d reads in %s", reads, took)
	}
	for _, a := range all {
		a.cancel()
	}
	for _, a := range all {
		a.result(t)
	}
	untilNoClaims(t, ns)
}

// countEvents counts the events of a watch as they come over the wire.
type countEvents struct {
	io.ReadCloser
	mu     *sync.Mutex
	events *[]string
}

// Read implements io.Reader.
func (c countEvents) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, kind := range []string{"ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"} {
		for range bytes.Count(b[:n], []byte(`{"type":"`+kind+`"`)) {
			*c.events = append(*c.events, kind)
		}
	}
	return n, err
}

func TestEachWaiterGetsOneEventOfTheLock(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 60})
	startController(t)
	h, err := newProgram(t, ns).Acquire(t.Context(), "ledger")
	must(t, err)
	const n = 20
	var mu sync.Mutex
	events := make([][]string, n)
	all := make([]*acquiring, n)
	for i := range all {
		p := newProgram(t, ns)
		p.behave(only("WATCH distlocks", func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
			answer, err := next.RoundTrip(req)
			if err == nil {
				answer.Body = countEvents{answer.Body, &mu, &events[i]}
			}
			return answer, err
		}))
		all[i] = acquire(t, p, "ledger")
		p.awaitRequests(t, "GET distlocks", 2) // one to try, and one after the watch began
		eventually(t, "waiting", func() bool { return p.settled("GET distlocks") })
	}
	until(t, l, "queued", func(l *v1alpha1.DistLock) bool { return len(l.Status.Queue) > 0 }) // and it is refilled
	must(t, h.Release(t.Context()))
	done := make(chan struct{})
	for _, a := range all {
		go func() {
			defer func() { done <- struct{}{} }()
			if got := a.result(t); got.err != nil {
				t.Error(got.err)
			} else if err := got.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}()
	}
	for range all {
		<-done
	}
	mu.Lock()
	defer mu.Unlock()
	for i, kinds := range events {
		// What is written while it is the one that was granted last, such as a refill of
		// the queue, it may see too before its watch ends.
		if len(kinds) == 0 || len(kinds) > 3 || slices.Contains(kinds[1:], kinds[0]) {
			t.Errorf("waiter %d got %q", i, kinds)
		}
	}
}

func TestAProcessWithManyLocksHasTwoConnections(t *testing.T) {
	ns := namespace(t)
	const n = 100
	var conns connections
	p, q := newProgram(t, ns, func(c *rest.Config) { c.Dial = conns.dial }), newProgram(t, ns)
	goroutines, memory := runtime.NumGoroutine(), allocated()
	lease := lock.Lease(time.Hour)
	var acquiringAll sync.WaitGroup
	for i := range n {
		lockIn(t, ns, fmt.Sprintf("mine-%d", i), v1alpha1.DistLockSpec{})
		lockIn(t, ns, fmt.Sprintf("theirs-%d", i), v1alpha1.DistLockSpec{})
		acquiringAll.Go(func() {
			if _, err := p.Acquire(t.Context(), fmt.Sprintf("mine-%d", i), lease); err != nil {
				t.Error(err)
			}
			if _, err := q.Acquire(t.Context(), fmt.Sprintf("theirs-%d", i), lease); err != nil {
				t.Error(err)
			}
		})
	}
	acquiringAll.Wait()
	holding, holdingMemory := runtime.NumGoroutine(), allocated()
	all := make([]*acquiring, n)
	for i := range all {
		all[i] = acquire(t, p, fmt.Sprintf("theirs-%d", i), lease)
	}
	p.awaitRequests(t, "POST lockclaims", n)
	p.awaitRequests(t, "GET distlocks", 3*n) // one to acquire, one to try, and one after the watch began
	eventually(t, "settled", func() bool { return p.settled("POST lockclaims") && p.settled("GET distlocks") })
	waiting, waitingMemory := runtime.NumGoroutine(), allocated()
	t.Logf("%d locks held and %d held by another client: %d goroutines and %d KiB more; %d waited for: another %d and %d KiB, the test's own included",
		n, n, holding-goroutines, (holdingMemory-memory)>>10, n, waiting-holding, (waitingMemory-holdingMemory)>>10)
	if open, most := conns.count(); open > 2 || most > 2 {
		t.Errorf("%d connections, and %d at most", open, most)
	}
	if more := waiting - goroutines; more > 10*n {
		t.Errorf("%d goroutines more", more)
	}
	watches := count(p.taken(), "WATCH distlocks")
	if watches > 49 {
		t.Errorf("%d watches", watches)
	}
	// Each is woken, those that share a watch, too.
	startController(t)
	for i := range all {
		until(t, &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("theirs-%d", i)}}, "queued", queued(1))
	}
	must(t, q.Close(t.Context()))
	for i, a := range all {
		if h := a.hold(t); h.Name() != fmt.Sprintf("theirs-%d", i) {
			t.Errorf("got %s", h.Name())
		}
	}
}

func allocated() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
