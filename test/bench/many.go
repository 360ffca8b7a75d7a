package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

const (
	// manyLocks one process holds, and for as many more it waits.
	manyLocks = 100
	// settled is a few renewals of the holds, and live reads of those that wait.
	settled = 15 * time.Second
)

// hoarder is a process with many locks, as a client of its own in this one.
type hoarder struct {
	*reservoir
	others *lock.Client // of the holders that it waits for
	mine   *lock.Client
	dials  dials
}

// measureMany returns what holding many locks and waiting for as many takes.
func measureMany(ctx context.Context, s *stage) (all []measure, err error) {
	h, err := newHoarder(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	goroutines, memory := usage()
	if err := h.hoard(ctx); err != nil {
		return nil, err
	}
	pause(ctx, settled)
	goroutinesNow, memoryNow := usage()
	what := fmt.Sprintf("%d locks held and %d waited for", manyLocks, manyLocks)
	return []measure{
		{"many-connections", what + ": connections", float64(h.dials.open.Load()), ""},
		{"many-connections-made", what + ": connections made", float64(h.dials.made.Load()), ""},
		{"many-goroutines", what + fmt.Sprintf(": goroutines, with the %d that wait", manyLocks), float64(goroutinesNow - goroutines), ""},
		{"many-memory", what + ": heap and stacks", (memoryNow - memory) / mib, "MiB"},
	}, ctx.Err()
}

// usage is how many goroutines there are, and how many bytes are in use for heap and
// stacks.
func usage() (goroutines int, memory float64) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return runtime.NumGoroutine(), float64(m.HeapAlloc + m.StackInuse)
}

// newHoarder makes the locks, half of them held by others.
func newHoarder(ctx context.Context, s *stage) (*hoarder, error) {
	namespace, err := s.newNamespace(ctx, "many")
	if err != nil {
		return nil, err
	}
	err = s.createAll(ctx, "locks", 2*manyLocks, func(i int) client.Object {
		return &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: numberedLock(i)}}
	})
	if err != nil {
		return nil, err
	}
	h := &hoarder{reservoir: &reservoir{stage: s, namespace: namespace}}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	if h.others, err = lock.NewClient(s.Config(), lock.Namespace(namespace)); err != nil {
		return nil, err
	}
	h.mine, err = lock.NewClient(h.wire.onWire(h.dials.count(s.Config()), lockAgent), lock.Namespace(namespace))
	if err != nil {
		return nil, err
	}
	h.clients = []*lock.Client{h.mine, h.others}
	for i := range manyLocks {
		if _, err := h.others.Acquire(ctx, numberedLock(i)); err != nil {
			return nil, errors.Join(err, h.close(ctx))
		}
	}
	return h, nil
}

// hoard holds one half, and returns when it waits for the other.
func (h *hoarder) hoard(ctx context.Context) error {
	for i := range manyLocks {
		if _, err := h.mine.Acquire(ctx, numberedLock(manyLocks+i)); err != nil {
			return err
		}
		h.group.Go(func() { _, _ = h.mine.Acquire(h.ctx, numberedLock(i)) }) // its end is the end of ctx
	}
	return h.awaitClaims(ctx, manyLocks)
}

// dials are the connections that a client makes.
type dials struct{ made, open atomic.Int64 }

func (d *dials) count(config *rest.Config) *rest.Config {
	dialer := &net.Dialer{}
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		d.made.Add(1)
		d.open.Add(1)
		return &countedConn{Conn: conn, closed: sync.OnceFunc(func() { d.open.Add(-1) })}, nil
	}
	return config
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
