package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// observations are when this process itself saw things, on its monotonic clock;
// nothing in it comes from a timestamp that another machine wrote (L4). It is
// fed by the watches too, so a standby's observations are as old as the
// leader's. Safe for concurrent use.
type observations struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	locks map[types.UID]map[string]holdSeen
	shut  map[types.UID]closedSeen
	gone  map[types.UID]time.Time
	begun map[types.UID]bool
}

type holdSeen struct {
	object    types.UID // behind the hold; empty: none
	token     int64
	renewTime int64 // Unix microseconds; compared for a change only
	first     time.Time
	changed   time.Time
}

type closedSeen struct {
	token   int64
	seconds int32
	first   time.Time
}

func newObservations(c clock.PassiveClock) *observations {
	return &observations{
		clock: c,
		locks: map[types.UID]map[string]holdSeen{},
		shut:  map[types.UID]closedSeen{},
		gone:  map[types.UID]time.Time{},
		begun: map[types.UID]bool{},
	}
}

// lock takes in a version of a lock, and returns the objects whose hold has ended
// since the last.
func (o *observations) lock(l *v1alpha1.DistLock) (ended []types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.clock.Now()
	before := o.locks[l.UID]
	holds := make(map[string]holdSeen, len(l.Status.Holders))
	for _, h := range l.Status.Holders {
		seen, ok := before[h.Owner]
		if renewed := h.RenewTime.UnixMicro(); !ok || seen.token != h.FencingToken {
			seen = holdSeen{token: h.FencingToken, renewTime: renewed, first: now, changed: now}
			if h.Ref != nil {
				seen.object = h.Ref.UID
			}
		} else if seen.renewTime != renewed {
			seen.renewTime, seen.changed = renewed, now
		}
		holds[h.Owner] = seen
	}
	o.locks[l.UID] = holds
	for owner, was := range before {
		if was.object != "" && holds[owner].token != was.token {
			ended = append(ended, was.object)
		}
	}
	if s := o.shut[l.UID]; s.seconds != l.Status.ClosedSeconds || s.token != l.Status.FencingToken {
		o.shut[l.UID] = closedSeen{token: l.Status.FencingToken, seconds: l.Status.ClosedSeconds, first: now}
	}
	return ended
}

func (o *observations) forgetLock(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.locks, uid)
	delete(o.shut, uid)
}

// hold is how long a hold was seen unchanged, and seen at all.
func (o *observations) hold(lock types.UID, owner string) (unchanged, held time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	seen, ok := o.locks[lock][owner]
	if !ok {
		return 0, 0
	}
	now := o.clock.Now()
	return now.Sub(seen.changed), now.Sub(seen.first)
}

// closedFor is how long the present closedSeconds was seen.
func (o *observations) closedFor(lock types.UID) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	s, ok := o.shut[lock]
	if !ok {
		return 0
	}
	return o.clock.Since(s.first)
}

// goneFor is how long a Job was known to be deleted, from this call at the
// latest.
func (o *observations) goneFor(job types.UID) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	first, ok := o.gone[job]
	if !ok {
		first = o.clock.Now()
		o.gone[job] = first
	}
	return o.clock.Since(first)
}

func (o *observations) forgetGone(job types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.gone, job)
	delete(o.begun, job)
}

// job takes in a version of a Job.
func (o *observations) job(uid types.UID, f jobFacts) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if f.started {
		o.begun[uid] = true
	} else {
		delete(o.begun, uid)
	}
}

// started reports whether a Job, as it was seen last, had started.
func (o *observations) started(job types.UID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.begun[job]
}

func (o *observations) holdsSome(uid types.UID) bool {
	for _, holds := range o.locks {
		for _, h := range holds {
			if h.object == uid {
				return true
			}
		}
	}
	return false
}

// forgetJob drops what was seen of a Job that is gone, unless the end of its hold
// still depends on it.
func (o *observations) forgetJob(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.holdsSome(uid) {
		delete(o.begun, uid)
	}
}
