package controllers

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// lockFigures are the figures of one lock.
type lockFigures struct {
	uid          types.UID
	holds        map[string]*holdFigures // by owner
	waiting      int
	waitingSince time.Time // of the first in the queue; zero: nobody waits
	closed       int32     // seconds

	grants, releases, expiries uint64
	revocations                [byOthers + 1]uint64
}

// holdFigures are the figures of one hold.
type holdFigures struct {
	token     int64
	object    types.UID // behind the hold; empty: none
	acquired  time.Time // as written by whoever granted it
	since     time.Time // when its grant was seen
	renewTime time.Time // as written; compared for a change only
	renewed   time.Time // when renewTime was first seen
	lease     time.Duration
	revoked   bool
	why       revoker
}

// revoker is who asked a holder to stop.
type revoker int

const (
	byMaxHold revoker = iota // the controller, for spec.maxHoldSeconds
	byJob                    // the controller, because the Job behind the hold does not do what the hold stands for
	byOthers                 // an administrator
)

// String is the label.
func (r revoker) String() string {
	switch r {
	case byMaxHold:
		return "maxHold"
	case byJob:
		return "job"
	case byOthers:
		return "admin"
	}
	return ""
}

func (f *lockFigures) hold(h v1alpha1.Hold) *holdFigures {
	if f == nil {
		return nil
	}
	if was := f.holds[h.Owner]; was != nil && was.token == h.FencingToken {
		return was
	}
	return nil
}

// oldest is when the oldest hold was granted, as written by whoever granted it;
// zero: there is none.
func (f *lockFigures) oldest() (first time.Time) {
	for _, h := range f.holds {
		if first.IsZero() || h.acquired.Before(first) {
			first = h.acquired
		}
	}
	return first
}

// figures are a lock's; nil where the watch has not shown it, or shows it no more.
func (m *metrics) figures(l *v1alpha1.DistLock) *lockFigures {
	if f := m.locks[client.ObjectKeyFromObject(l)]; f != nil && f.uid == l.UID {
		return f
	}
	return nil
}

// lock takes in a version of a lock. What it shows at the start was not counted
// by this process and is not.
func (m *metrics) lock(l *v1alpha1.DistLock, atStart bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.figures(l)
	if f == nil {
		f = &lockFigures{uid: l.UID, waiting: int(l.Status.Waiting)}
		m.locks[client.ObjectKeyFromObject(l)] = f
	}
	now := m.clock.Now()
	count := !atStart && m.leads()
	holds := make(map[string]*holdFigures, len(l.Status.Holders))
	for _, h := range l.Status.Holders {
		is := f.hold(h)
		if is == nil {
			is = m.granted(f, l.Namespace, h, now, atStart)
		}
		if !is.renewTime.Equal(h.RenewTime.Time) {
			is.renewTime, is.renewed = h.RenewTime.Time, now
		}
		if h.RevokeTime != nil && !is.revoked {
			is.revoked = true
			if count {
				f.revocations[is.why]++
			}
		}
		holds[h.Owner] = is
	}
	before := f.holds
	f.holds, f.closed = holds, l.Status.ClosedSeconds
	for owner, was := range before {
		if is := holds[owner]; is == nil || is.token != was.token {
			m.ended(f, l.Namespace, was, now)
		}
	}
}

// granted takes in a hold that was not there before.
func (m *metrics) granted(f *lockFigures, namespace string, h v1alpha1.Hold, now time.Time, atStart bool) *holdFigures {
	is := &holdFigures{token: h.FencingToken, acquired: h.AcquireTime.Time, since: now, lease: protocol.Lease(h), why: byOthers}
	if h.RevokeTime != nil {
		is.why = byJob // it ran before it held the lock
	}
	if h.Ref != nil {
		is.object = h.Ref.UID
	}
	if atStart {
		is.since = is.acquired
		return is
	}
	if m.leads() {
		f.grants++
		if since, waited := m.since[is.object]; waited {
			m.wait.WithLabelValues(namespace).Observe(seconds(now.Sub(since)))
		}
	}
	return is
}

// ended takes in that a hold is there no more: expired, where a lease was seen to
// run out unrenewed, else released. Who waits again does so from now on.
func (m *metrics) ended(f *lockFigures, namespace string, was *holdFigures, now time.Time) {
	if _, there := m.since[was.object]; there {
		m.since[was.object] = now
	}
	if !m.leads() {
		return
	}
	if was.lease > 0 && now.Sub(was.renewed) >= was.lease {
		f.expiries++
	} else {
		f.releases++
	}
	m.hold.WithLabelValues(namespace).Observe(seconds(now.Sub(was.since)))
}

// forgetLock drops a lock's series, and with its last lock a namespace's.
func (m *metrics) forgetLock(o client.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := client.ObjectKeyFromObject(o)
	if f := m.locks[key]; f == nil || f.uid != o.GetUID() {
		return
	}
	delete(m.locks, key)
	for other := range m.locks {
		if other.Namespace == key.Namespace {
			return
		}
	}
	m.wait.DeleteLabelValues(key.Namespace)
	m.hold.DeleteLabelValues(key.Namespace)
}

// joined is since when a Job or claim that was there before waits, as written.
func joined(o client.Object) time.Time {
	if job, ok := o.(*batchv1.Job); ok {
		if t, err := time.Parse(metav1.RFC3339Micro, job.Annotations[v1alpha1.QueuedAtAnnotation]); err == nil {
			return t
		}
	}
	return o.GetCreationTimestamp().Time
}

// seconds of a duration; one that another machine's clock made negative is none.
func seconds(d time.Duration) float64 { return max(0, d.Seconds()) }
