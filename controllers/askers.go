package controllers

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// asker is a Job or claim that names a lock, as the watch showed it last. It
// says where to look, not what is so: the watch may lag.
type asker struct {
	kind refKinds
	uid  types.UID
	name string
	// since is when it joined, seen its resourceVersion when it was first seen.
	// Those are one number for all objects and only grow, so for one that was
	// seen arriving it is the order of creation, on every replica.
	since   time.Time
	seen    int64
	version int64 // of what it was last read from
	// waits: it wants the lock, or holds it.
	waits bool
	// watched: it must be looked at whatever its place: a Job that may have
	// pods, a claim that was told that it holds the lock.
	watched bool
	// leased: a claim whose holder renews, and watches the lock itself.
	leased bool
	// unsettled: it has not been told yet why it waits.
	unsettled bool
	// underway: a Job of which pods may be under way: it has not acknowledged that
	// it is suspended.
	underway bool
	// deleted: the Job is gone, and is here for its pods.
	deleted bool
	// strayed: it was found running without the lock, and may still have pods.
	strayed bool
	// ended: it has had the lock, and wants it no more, or its pods have ended;
	// what it says of itself may lag.
	ended bool
	// suspended: a Job that has pods no more, or soon: if it had ended, it is
	// finished, and else waits again.
	suspended bool
}

func (a asker) ref() *v1alpha1.ObjectRef {
	ref := &v1alpha1.ObjectRef{Name: a.name, UID: a.uid, APIVersion: "batch/v1", Kind: "Job"}
	if a.kind == kindClaim {
		ref.APIVersion, ref.Kind = v1alpha1.GroupVersion.String(), "LockClaim"
	}
	return ref
}

// before orders askers first come, first served.
func (a asker) before(b asker) int {
	return cmp.Or(
		cmp.Compare(a.since.Unix(), b.since.Unix()),
		cmp.Compare(a.seen, b.seen),
		cmp.Compare(a.uid, b.uid),
	)
}

// askers are the Jobs and claims of each lock, those that wait in their order,
// so that a lock with thousands of them is decided by looking at a few. It is
// fed by the watches, a standby's too, before the cache is: a list that was read
// anew is in it whole before any of it wakes a lock, so that nobody gets past one
// who is shown a moment later. Safe for concurrent use.
type askers struct {
	mu    sync.Mutex
	locks map[types.NamespacedName]*line
}

// line is what asks for one lock.
type line struct {
	byUID   map[types.UID]asker
	waiting []asker                // those that wait, in order
	special map[types.UID]struct{} // those that must be looked at
}

func newAskers() *askers { return &askers{locks: map[types.NamespacedName]*line{}} }

// put takes in what the watch shows of an asker, unless something newer is known;
// what this process noted of it stays.
func (s *askers) put(lock types.NamespacedName, a asker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[lock]
	if l == nil {
		l = &line{byUID: map[types.UID]asker{}, special: map[types.UID]struct{}{}}
		s.locks[lock] = l
	}
	a.seen, a.unsettled = a.version, !a.leased
	if was, known := l.byUID[a.uid]; known {
		if a.version < was.version {
			return
		}
		l.take(was)
		a.seen, a.unsettled, a.strayed, a.ended = was.seen, was.unsettled, was.strayed, was.ended && (!a.suspended || !a.waits)
	}
	l.set(a)
}

// set stores an asker and puts it in its place, where it is not.
func (l *line) set(a asker) {
	waits := a.waits && !a.ended
	a.unsettled = a.unsettled && waits
	l.byUID[a.uid] = a
	if a.watched || a.unsettled || a.underway || a.strayed {
		l.special[a.uid] = struct{}{}
	} else {
		delete(l.special, a.uid)
	}
	i, found := slices.BinarySearchFunc(l.waiting, a, asker.before)
	switch {
	case waits && !found:
		l.waiting = slices.Insert(l.waiting, i, a)
	case !waits && found:
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// take takes an asker out of the order.
func (l *line) take(a asker) {
	if i, found := slices.BinarySearchFunc(l.waiting, a, asker.before); found {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// gone takes in that an asker is deleted, and reports whether it stays all the same:
// a Job does until it is noted that its pods have ended.
func (s *askers) gone(lock types.NamespacedName, uid types.UID) (stays bool) {
	if a, _ := s.find(lock, uid); a.mayHavePods() {
		s.note(lock, uid, func(a *asker) { a.waits, a.deleted = false, true })
		return true
	}
	s.remove(lock, uid)
	return false
}

// holdEnded takes in that the hold of an asker was seen to end. A claim's holder is
// done with it then, and a deleted Job has no pods left: another process made sure.
func (s *askers) holdEnded(lock types.NamespacedName, uid types.UID) {
	if a, _ := s.find(lock, uid); a.deleted {
		s.remove(lock, uid)
	}
	s.note(lock, uid, func(a *asker) { a.ended = a.ended || a.leased })
}

// mayHavePods reports whether pods may be left of a Job that is deleted.
func (a asker) mayHavePods() bool { return (a.underway || a.strayed) && !a.ended }

func (s *askers) remove(lock types.NamespacedName, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[lock]
	if l == nil {
		return
	}
	l.take(l.byUID[uid])
	delete(l.byUID, uid)
	delete(l.special, uid)
	if len(l.byUID) == 0 {
		delete(s.locks, lock)
	}
}

// note changes what this process knows of an asker.
func (s *askers) note(lock types.NamespacedName, uid types.UID, change func(*asker)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.locks[lock]; l != nil {
		if a, ok := l.byUID[uid]; ok {
			change(&a)
			l.set(a)
		}
	}
}

// after returns the first n of a lock that wait behind a place, in order; the
// zero asker is before all.
func (s *askers) after(lock types.NamespacedName, place asker, n int) []asker {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[lock]
	if l == nil {
		return nil
	}
	i := 0
	if place != (asker{}) {
		var found bool
		if i, found = slices.BinarySearchFunc(l.waiting, place, asker.before); found {
			i++
		}
	}
	return slices.Clone(l.waiting[i:min(i+n, len(l.waiting))])
}

// aside returns those of a lock that must be looked at whatever their place.
func (s *askers) aside(lock types.NamespacedName) []asker {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[lock]
	if l == nil {
		return nil
	}
	out := make([]asker, 0, len(l.special))
	for uid := range l.special {
		out = append(out, l.byUID[uid])
	}
	return out
}

// all returns all of a lock.
func (s *askers) all(lock types.NamespacedName) []asker {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[lock]
	if l == nil {
		return nil
	}
	out := make([]asker, 0, len(l.byUID))
	for _, a := range l.byUID {
		out = append(out, a)
	}
	return out
}

// last is when the last of a lock joined; zero: nobody waits or holds it.
func (s *askers) last(lock types.NamespacedName) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.locks[lock]; l != nil && len(l.waiting) > 0 {
		return l.waiting[len(l.waiting)-1].since
	}
	return time.Time{}
}

// find returns the asker of a lock with that uid.
func (s *askers) find(lock types.NamespacedName, uid types.UID) (asker, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.locks[lock]; l != nil {
		a, ok := l.byUID[uid]
		return a, ok
	}
	return asker{}, false
}

// place counts those of a lock that wait, and of them those up to an asker; both
// with its holders.
func (s *askers) place(lock types.NamespacedName, uid types.UID) (place, of int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[lock]
	if l == nil {
		return 0, 0
	}
	i, found := slices.BinarySearchFunc(l.waiting, l.byUID[uid], asker.before)
	if found {
		i++
	}
	return i, len(l.waiting)
}
