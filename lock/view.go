package lock

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// view is what this process has seen of one lock, and when. All that wait for it
// share it, so that one of them reads for all. Safe for concurrent use.
type view struct {
	conn *connection
	name string
	now  func() instant

	reading chan struct{} // held by the one that reads

	mu      sync.Mutex
	lock    *v1alpha1.DistLock // the newest version; nil: none was seen, or there is none
	version int64
	sent    *instant // when the read that succeeded last was sent
	holds   map[string]holdSeen
	shut    shutSeen
}

// holdSeen is a hold as it was when it was seen to change last.
type holdSeen struct {
	token     int64
	renewTime int64 // Unix microseconds; compared for a change only
	first     instant
	changed   instant
}

type shutSeen struct {
	token   int64
	seconds int32
	first   instant
}

func newView(conn *connection, name string, now func() instant) *view {
	return &view{conn: conn, name: name, now: now, reading: make(chan struct{}, 1), holds: map[string]holdSeen{}}
}

// latest is the newest version seen; nil where none was.
func (v *view) latest() *v1alpha1.DistLock {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.lock
}

// show takes in a version that was read, watched or written. What is shown must not
// be changed any more.
func (v *view) show(l *v1alpha1.DistLock) {
	version, err := strconv.ParseInt(l.ResourceVersion, 10, 64)
	if err != nil {
		return // StateOf says so
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if version <= v.version {
		return
	}
	now := v.now()
	holds := make(map[string]holdSeen, len(l.Status.Holders))
	for _, h := range l.Status.Holders {
		seen, ok := v.holds[h.Owner]
		if renewed := h.RenewTime.UnixMicro(); !ok || seen.token != h.FencingToken {
			seen = holdSeen{token: h.FencingToken, renewTime: renewed, first: now, changed: now}
		} else if seen.renewTime != renewed {
			seen.renewTime, seen.changed = renewed, now
		}
		holds[h.Owner] = seen
	}
	if v.shut.token != l.Status.FencingToken || v.shut.seconds != l.Status.ClosedSeconds {
		v.shut = shutSeen{l.Status.FencingToken, l.Status.ClosedSeconds, now}
	}
	v.lock, v.version, v.holds = l, version, holds
}

// gone takes in that there is no such lock.
func (v *view) gone() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lock, v.holds = nil, map[string]holdSeen{}
}

// read returns the lock by a live read that was sent after an instant, this one's or
// that of another who waits, and when it was sent.
func (v *view) read(ctx context.Context, after instant) (*v1alpha1.DistLock, instant, error) {
	select {
	case v.reading <- struct{}{}:
		defer func() { <-v.reading }()
	case <-ctx.Done():
		return nil, instant{}, ctx.Err()
	}
	v.mu.Lock()
	lock, last := v.lock, v.sent
	v.mu.Unlock()
	if lock != nil && last != nil && last.mono > after.mono {
		return lock, *last, nil
	}
	sent := v.now()
	lock, err := v.conn.get(ctx, v.name, requestPatience)
	if apierrors.IsNotFound(err) {
		v.gone()
	}
	if err != nil {
		return nil, instant{}, fmt.Errorf("reading DistLock %s: %w", v.name, err)
	}
	v.show(lock)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sent = &sent
	return lock, sent, nil
}

// overdue is the lock after what the law lets anybody do who waited for it: one
// hold expired that was seen unchanged for its lease and a margin, and then it is
// returned too; or opened, when it was closed for a while and that is over.
func (v *view) overdue(s protocol.State) (protocol.State, *v1alpha1.Hold) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.now()
	for _, h := range s.Status.Holders {
		seen, ok := v.holds[h.Owner]
		if !ok || seen.token != h.FencingToken || seen.renewTime != h.RenewTime.UnixMicro() {
			continue // it is newer, or older, than what was seen
		}
		if !protocol.HoldIsStale(h, now.observed(seen.changed)) {
			continue
		}
		if next, err := s.Expire(h.Owner, h.FencingToken, now.observed(seen.first), now.wall); err == nil {
			return next, &h
		}
	}
	closed := time.Duration(s.Status.ClosedSeconds) * time.Second
	if closed > 0 && v.shut.token == s.Status.FencingToken && v.shut.seconds == s.Status.ClosedSeconds && now.observed(v.shut.first) >= closed {
		return s.Open(), nil
	}
	return s, nil
}
