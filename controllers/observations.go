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

	mu     sync.Mutex
	locks  map[types.UID]map[string]holdSeen
	newest map[types.UID]int64 // resourceVersion of a lock
	shut   map[types.UID]closedSeen
	gone   map[types.UID]time.Time
	jobs   map[types.UID]jobSeen
}

// jobSeen is what counts of a Job, as it was seen last, once it is gone.
type jobSeen struct {
	started bool
	gaveUp  string // token of the revoked hold for which it has stopped
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
		clock:  c,
		locks:  map[types.UID]map[string]holdSeen{},
		newest: map[types.UID]int64{},
		shut:   map[types.UID]closedSeen{},
		gone:   map[types.UID]time.Time{},
		jobs:   map[types.UID]jobSeen{},
	}
}

// lock takes in a version of a lock, and returns the objects whose hold has ended
// since the last; what was seen of them as its holders is forgotten.
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
	o.newest[l.UID] = max(o.newest[l.UID], versionOf(l))
	for owner, was := range before {
		if was.object != "" && holds[owner].token != was.token {
			ended = append(ended, was.object)
			o.forget(was.object)
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
	for _, h := range o.locks[uid] {
		o.forget(h.object)
	}
	delete(o.locks, uid)
	delete(o.newest, uid)
	delete(o.shut, uid)
}

func (o *observations) forget(job types.UID) {
	delete(o.gone, job)
	delete(o.jobs, job)
}

// isOld reports whether a newer version of a lock was seen.
func (o *observations) isOld(l *v1alpha1.DistLock) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return versionOf(l) < o.newest[l.UID]
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
	return o.clock.Since(o.noteGone(job))
}

// noteGone returns when a Job was first known to be deleted: now, if it was not.
func (o *observations) noteGone(job types.UID) time.Time {
	first, ok := o.gone[job]
	if !ok {
		first = o.clock.Now()
		o.gone[job] = first
	}
	return first
}

// isThere takes in that a Job is not deleted, whatever the watch said.
func (o *observations) isThere(job types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.gone, job)
}

func (o *observations) forgetGone(job types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forget(job)
}

// job takes in a version of a Job.
func (o *observations) job(uid types.UID, f jobFacts) {
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := jobSeen{started: f.started}
	if f.stopped {
		seen.gaveUp = f.revoked
	}
	if seen == (jobSeen{}) {
		delete(o.jobs, uid)
	} else {
		o.jobs[uid] = seen
	}
	if f.deleted && o.holdsSome(uid) {
		o.noteGone(uid)
	}
}

// started reports whether a Job, as it was seen last, had started.
func (o *observations) started(job types.UID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.jobs[job].started
}

// yielded is jobFacts.yielded of the Job of a hold as it was seen last. It is never
// resumed for that hold again, so it makes no difference what was not seen.
func (o *observations) yielded(h v1alpha1.Hold) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return h.RevokeTime != nil && o.jobs[h.Ref.UID].gaveUp == tokenText(h)
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

// jobGone takes in that a Job is gone, and forgets it, unless the end of its hold, or
// of its pods, still depends on what was seen of it.
func (o *observations) jobGone(uid types.UID, podsLeft bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if podsLeft || o.holdsSome(uid) {
		o.noteGone(uid)
	} else {
		o.forget(uid)
	}
}
