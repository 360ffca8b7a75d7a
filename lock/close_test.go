package lock_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

// ownGoroutines are the stacks of those goroutines that run something of this
// package, its tests' not included.
func ownGoroutines() []string {
	var all bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&all, 2)
	var own []string
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, "distlock/lock.") {
			own = append(own, stack)
		}
	}
	return own
}

// untilOwnGoroutines waits for goroutines that are on their way out.
func untilOwnGoroutines(t *testing.T, want int) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("there are:\n%s", strings.Join(ownGoroutines(), "\n\n"))
		}
	}()
	eventually(t, fmt.Sprintf("%d goroutines of its own", want), func() bool { return len(ownGoroutines()) == want })
}

// connections counts those that are open, and has been the most.
type connections struct {
	mu         sync.Mutex
	open, most int
}

func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
	c.most = max(c.most, c.open)
	return &countedConn{conn, sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.open--
	})}, nil
}

func (c *connections) count() (open, most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open, c.most
}

type countedConn struct {
	net.Conn
	closed func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

func TestNothingOutlivesAClient(t *testing.T) {
	ns := namespace(t)
	spec := v1alpha1.DistLockSpec{}
	l, m := lockIn(t, ns, "ledger", spec), lockIn(t, ns, "journal", spec)
	var conns connections
	before := len(ownGoroutines())
	p, q := newProgram(t, ns, func(c *rest.Config) { c.Dial = conns.dial }), newProgram(t, ns)
	for _, name := range []string{"ledger", "journal"} { // one it waited for, and one it did not
		if name == "journal" {
			_, err := p.Acquire(t.Context(), name)
			must(t, err)
			continue
		}
		first, err := q.Acquire(t.Context(), name)
		must(t, err)
		waiting := acquire(t, p, name)
		p.awaitRequest(t, "WATCH distlocks")
		enqueue(t, l)
		must(t, first.Release(t.Context()))
		waiting.hold(t)
	}
	holder, err := q.Acquire(t.Context(), "journal", lock.Wait(time.Second)) // it is held
	if err == nil {
		t.Fatalf("held twice: %v", holder)
	}
	must(t, q.Close(t.Context()))
	must(t, p.Close(t.Context()))
	must(t, p.Close(t.Context()))
	untilOwnGoroutines(t, before)
	if open, most := conns.count(); open != 0 || most != 2 {
		t.Errorf("%d connections are open, and there were %d", open, most)
	}
	for _, l := range []*v1alpha1.DistLock{l, m} {
		if now := read(t, l); !free(now) {
			t.Errorf("%s: %+v", l.Name, now.Status)
		}
	}
	untilNoClaims(t, ns)
}

func TestAClosedClientAcquiresNothing(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	p := newProgram(t, ns)
	h, err := p.Acquire(t.Context(), "ledger")
	must(t, err)
	must(t, p.Close(t.Context()))
	if h.Context().Err() == nil || !free(read(t, l)) {
		t.Errorf("held after Close: %+v", read(t, l).Status)
	}
	if h, err := p.Acquire(t.Context(), "ledger"); err == nil {
		t.Errorf("acquired %s after Close", h.Owner())
	}
	if h, err := p.TryAcquire(t.Context(), "ledger"); err == nil {
		t.Errorf("acquired %s after Close", h.Owner())
	}
	must(t, h.Release(t.Context()))
}

// A hold that comes while the Client is being closed is renewed by nobody.
func TestAHoldThatComesWhileTheClientIsClosedIsLost(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	p := newProgram(t, ns)
	heldUp, letGo := held()
	p.behave(heldUp)
	waiting := acquire(t, p, "ledger")
	p.awaitRequest(t, "GET distlocks")
	must(t, p.Close(t.Context()))
	letGo()
	got := waiting.result(t)
	if got.err != nil {
		return
	}
	select {
	case <-got.Lost():
	case <-time.After(patience):
		t.Error("it is never said to be lost")
	}
	must(t, got.Release(t.Context()))
}

func TestCloseIsOverInTimeWhateverTheAPIServerDoes(t *testing.T) {
	ns := namespace(t)
	const n = 20
	p := newProgram(t, ns)
	holds := make([]*lock.Hold, n)
	for i := range n {
		name := fmt.Sprintf("ledger-%d", i)
		lockIn(t, ns, name, v1alpha1.DistLockSpec{})
		var err error
		holds[i], err = p.Acquire(t.Context(), name)
		must(t, err)
	}
	p.behave(unreachable)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	wantIs(t, p.Close(ctx), context.DeadlineExceeded)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	for _, h := range holds {
		if h.Context().Err() == nil {
			t.Errorf("%s is still said to be held", h.Name())
		}
	}
	p.behave(nil)
	must(t, p.Close(t.Context())) // what is left
}
