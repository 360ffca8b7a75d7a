package lock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// ElectionLock lets client-go's leader election, and so a controller-runtime manager
// (LeaderElectionResourceLockInterface), elect on a DistLock instead of a Lease, for
// its fencing token and its queue: a candidate never gets past those that wait for the
// lock in other ways, but has no place of its own among them. The elector renews; for
// the holder to stop before anybody else may take over, its RenewDeadline and
// RetryPeriod together must be at most nine tenths of its LeaseDuration, which its
// defaults are. Without an elector at hand use Lead. Safe for concurrent use.
type ElectionLock struct {
	c        *Client
	view     *view
	name     string
	identity string

	mu      sync.Mutex
	token   int64
	lease   time.Duration
	since   instant
	renewed instant // when the last renewal that succeeded was sent
}

var _ resourcelock.Interface = &ElectionLock{}

// ElectionLock makes one for a lock, which must exist. The identity is the candidate's
// alone, as of this process.
func (c *Client) ElectionLock(name, identity string) (*ElectionLock, error) {
	if identity == "" || len(identity) > 320 {
		return nil, fmt.Errorf("identity: %d characters: must have 1 to 320", len(identity))
	}
	a, err := c.request(name, nil)
	if err != nil {
		return nil, err
	}
	return &ElectionLock{c: c, view: a.view, name: name, identity: identity}, nil
}

// Token is the fencing token of the term that the candidate has, or had last.
func (l *ElectionLock) Token() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token
}

// Get implements resourcelock.Interface, by a live read.
func (l *ElectionLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := l.whileValid(ctx)
	defer cancel()
	lock, _, err := l.view.read(ctx, l.c.now())
	if err != nil {
		return nil, nil, err
	}
	record := &resourcelock.LeaderElectionRecord{}
	if len(lock.Status.Holders) > 0 {
		record = recordOf(lock.Status.Holders[0])
	}
	raw, err := json.Marshal(lock.Status.Holders) // it changes with each renewal
	return record, raw, err
}

func recordOf(h v1alpha1.Hold) *resourcelock.LeaderElectionRecord {
	return &resourcelock.LeaderElectionRecord{
		HolderIdentity:       h.Owner,
		LeaseDurationSeconds: int(protocol.Lease(h) / time.Second),
		AcquireTime:          metav1.Time{Time: h.AcquireTime.Time},
		RenewTime:            metav1.Time{Time: h.RenewTime.Time},
	}
}

// Create implements resourcelock.Interface. It fails with ErrNoLock: locks are not
// created on demand.
func (l *ElectionLock) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	return noLock(l.c.namespace, l.name)
}

// Update implements resourcelock.Interface: it acquires, renews or releases.
func (l *ElectionLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	ctx, cancel := l.whileValid(ctx)
	defer cancel()
	lock := l.view.latest()
	if lock == nil {
		var err error
		if lock, _, err = l.view.read(ctx, l.c.now()); err != nil {
			return err
		}
	}
	sent := l.c.now()
	next, err := l.next(lock, record, sent)
	if errors.Is(err, protocol.ErrNotHeld) {
		return nil // there is nothing to release
	}
	if err != nil {
		return err
	}
	stored, err := l.c.holding.store(ctx, lock, next.Status, requestPatience)
	if apierrors.IsNotFound(err) {
		l.view.gone()
	}
	if err != nil {
		return err // the elector reads
	}
	l.view.show(stored)
	l.mu.Lock()
	defer l.mu.Unlock()
	h, holds := next.Hold(l.identity)
	if !holds {
		l.lease = 0
		return nil
	}
	if h.FencingToken != l.token {
		l.token, l.since = h.FencingToken, sent
	}
	l.lease, l.renewed = protocol.Lease(h), sent
	return nil
}

// whileValid ends while the candidate still leads: an elector that gives up asks once
// more, to release, before it says that it has stopped leading.
func (l *ElectionLock) whileValid(ctx context.Context) (context.Context, context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.lease - protocol.Margin(l.lease) - l.c.now().elapsed(l.renewed)
	if l.lease == 0 || left <= 0 {
		return context.WithTimeout(ctx, requestPatience)
	}
	return context.WithTimeout(ctx, left)
}

// next is the lock as a record wants it.
func (l *ElectionLock) next(lock *v1alpha1.DistLock, record resourcelock.LeaderElectionRecord, now instant) (protocol.State, error) {
	s, err := protocol.StateOf(lock)
	if err != nil {
		return s, err
	}
	h, holds := s.Hold(l.identity)
	switch {
	case record.HolderIdentity == "":
		l.mu.Lock()
		defer l.mu.Unlock()
		return s.Release(l.identity, h.FencingToken, now.observed(l.since), now.wall)
	case holds:
		return s.Renew(l.identity, h.FencingToken, now.wall)
	}
	seconds := min(max(record.LeaseDurationSeconds, 3), 3600)
	w := protocol.NewWaiter(lock.Spec, l.identity, new(v1alpha1.Exclusive), nil, new(int32(seconds)), l.c.me.ref(l.c.namespace))
	s, _ = l.view.overdue(s)
	next, err := s.Acquire(w, now.wall)
	if err != nil {
		return s, heldError(lock, err)
	}
	return next, nil
}

// RecordEvent implements resourcelock.Interface. The lock's status says it.
func (l *ElectionLock) RecordEvent(string) {}

// Identity implements resourcelock.Interface.
func (l *ElectionLock) Identity() string { return l.identity }

// Describe implements resourcelock.Interface.
func (l *ElectionLock) Describe() string { return "DistLock " + l.c.namespace + "/" + l.name }
