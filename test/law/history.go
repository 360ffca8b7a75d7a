// Package law judges what happened in a namespace by the stored versions of its
// locks, Jobs and pods, as a watcher saw them: L1, L2, L5 and L7 of the design.
// It knows nothing of internal/protocol or the controller, so that it cannot
// share their mistakes.
package law

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// Version is one stored version of an object; Deleted: its last one.
type Version struct {
	Object  client.Object // *v1alpha1.DistLock, *batchv1.Job or *corev1.Pod
	Deleted bool
}

func (v Version) kind() reflect.Type { return reflect.TypeOf(v.Object) }

func (v Version) number() int64 {
	n, err := strconv.ParseInt(v.Object.GetResourceVersion(), 10, 64)
	if err != nil {
		panic(fmt.Sprintf("resourceVersion of %s: %v", v.Object.GetName(), err))
	}
	return n
}

// Check replays versions in the order in which they were stored, and returns
// what broke the law, one line each; none: nothing did.
func Check(versions []Version) []string {
	versions = slices.Clone(versions)
	slices.SortStableFunc(versions, byNumber)
	w := newWorld()
	for _, v := range versions {
		w.store(v)
	}
	return w.broken
}

func byNumber(a, b Version) int { return cmp.Compare(a.number(), b.number()) }

// world is what is stored at one point of the replay.
type world struct {
	at     int64
	locks  map[string]*v1alpha1.DistLock // by name
	jobs   map[types.UID]queued
	pods   map[types.UID]*corev1.Pod // those that may run
	behind map[types.UID]string      // the lock of each Job that was gated, also when the Job is gone
	tokens map[string]int64          // the greatest token granted, by the lock's name
	strays map[types.UID]bool        // pods that were found to run without a hold
	broken []string
}

// queued is a Job, when it joined the queue, and the version that says so.
type queued struct {
	*batchv1.Job
	joined  time.Time
	version int64
}

func newWorld() *world {
	return &world{
		locks:  map[string]*v1alpha1.DistLock{},
		jobs:   map[types.UID]queued{},
		pods:   map[types.UID]*corev1.Pod{},
		behind: map[types.UID]string{},
		tokens: map[string]int64{},
		strays: map[types.UID]bool{},
	}
}

func (w *world) breaks(law, format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf("%s at %d: %s", law, w.at, fmt.Sprintf(format, args...)))
}

// store takes in the next version.
func (w *world) store(v Version) {
	w.at = v.number()
	switch o := v.Object.(type) {
	case *v1alpha1.DistLock:
		w.storeLock(o, v.Deleted)
	case *batchv1.Job:
		w.storeJob(o, v.Deleted)
	case *corev1.Pod:
		if w.pods[o.UID] = o; v.Deleted || o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
			delete(w.pods, o.UID)
			delete(w.strays, o.UID)
		}
		w.everyPodHolds()
	}
}

func (w *world) storeLock(l *v1alpha1.DistLock, deleted bool) {
	before := w.locks[l.Name]
	if deleted {
		delete(w.locks, l.Name)
		return
	}
	w.exclusion(l, before)
	for _, h := range l.Status.Holders {
		if before == nil || !holds(before, h.Owner, h.FencingToken) {
			w.fencing(l, h)
			w.order(l, h)
			w.besidePods(l, h)
		}
	}
	w.tokens[l.Name] = max(w.tokens[l.Name], l.Status.FencingToken)
	w.locks[l.Name] = l
	w.everyPodHolds()
}

func (w *world) storeJob(j *batchv1.Job, deleted bool) {
	if deleted {
		delete(w.jobs, j.UID)
		return
	}
	q := queued{Job: j, joined: joined(j), version: w.at}
	if before, ok := w.jobs[j.UID]; ok && before.joined.Equal(q.joined) {
		q.version = before.version
	}
	w.jobs[j.UID] = q
	if j.Labels[v1alpha1.GatedLabel] == "true" {
		w.behind[j.UID] = j.Annotations[v1alpha1.LockAnnotation]
	}
}

// exclusion is L1.
func (w *world) exclusion(l, before *v1alpha1.DistLock) {
	exclusive, permits, grown := 0, int32(0), false
	for _, h := range l.Status.Holders {
		if h.Mode == v1alpha1.Exclusive {
			exclusive++
		}
		permits += h.Permits
		grown = grown || before == nil || !holds(before, h.Owner, h.FencingToken)
	}
	if exclusive > 0 && len(l.Status.Holders) > 1 {
		w.breaks("L1", "%s is held exclusively and by %d in all", l.Name, len(l.Status.Holders))
	}
	if exclusive == 0 && grown && l.Spec.Capacity != nil && permits > *l.Spec.Capacity {
		w.breaks("L1", "%s was granted up to %d permits of %d", l.Name, permits, *l.Spec.Capacity)
	}
}

// fencing is L2, for a hold that was not there before.
func (w *world) fencing(l *v1alpha1.DistLock, h v1alpha1.Hold) {
	if last := w.tokens[l.Name]; h.FencingToken <= last {
		w.breaks("L2", "%s was granted to %s with token %d after token %d", l.Name, h.Owner, h.FencingToken, last)
	}
	if h.FencingToken > w.at {
		w.breaks("L2", "%s was granted with token %d, greater than its version", l.Name, h.FencingToken)
	}
}

// everyPodHolds is L5. A pod is named once.
func (w *world) everyPodHolds() {
	for _, p := range w.pods {
		name, owner := p.Annotations[v1alpha1.LockAnnotation], metav1.GetControllerOf(p)
		if name == "" || owner == nil || w.strays[p.UID] {
			continue
		}
		if l := w.locks[name]; l == nil || !holdsFor(l, owner.UID) {
			w.strays[p.UID] = true
			w.breaks("L5", "pod %s may run while Job %s does not hold %s", p.Name, owner.Name, name)
		}
	}
}

// besidePods is L5 at a hold that was not there before, for Jobs whose pods do not
// say that they are behind a lock: nobody is granted it beside them. A hold that is
// revoked from the first is no grant; it stands for such pods.
func (w *world) besidePods(l *v1alpha1.DistLock, h v1alpha1.Hold) {
	if h.RevokeTime != nil {
		return
	}
	for _, p := range w.pods {
		job := types.UID(p.Labels[batchv1.ControllerUidLabel])
		if w.behind[job] == l.Name && !slices.ContainsFunc(l.Status.Holders, func(h v1alpha1.Hold) bool { return h.Ref != nil && h.Ref.UID == job }) {
			w.breaks("L5", "%s was granted to %s while pod %s may run, whose Job does not hold it", l.Name, h.Owner, p.Name)
		}
	}
}

// order is L7, for a hold that was not there before, among Jobs: none is granted
// the lock while another waits that had joined in an earlier second. Within a
// second the order in which the controller saw them is its own. A second is told
// when a Job is created, a moment before it is stored; one that was stored later
// nobody could have seen first, whatever second it bears.
func (w *world) order(l *v1alpha1.DistLock, h v1alpha1.Hold) {
	if h.Ref == nil {
		return
	}
	granted, ok := w.jobs[h.Ref.UID]
	if !ok {
		return
	}
	for _, j := range w.jobs {
		if j.UID != granted.UID && j.joined.Before(granted.joined) && j.version < granted.version && waits(j.Job, l) {
			w.breaks("L7", "%s was granted to Job %s before Job %s, which had come earlier", l.Name, granted.Name, j.Name)
		}
	}
}

// waits reports whether a Job wants the lock and could have it.
func waits(j *batchv1.Job, l *v1alpha1.DistLock) bool {
	if j.Annotations[v1alpha1.LockAnnotation] != l.Name || j.DeletionTimestamp != nil || !ptr.Deref(j.Spec.Suspend, false) {
		return false
	}
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return false
		}
	}
	if permits, err := strconv.ParseInt(j.Annotations[v1alpha1.PermitsAnnotation], 10, 32); err == nil &&
		l.Spec.Capacity != nil && permits > int64(*l.Spec.Capacity) && j.Annotations[v1alpha1.ModeAnnotation] != string(v1alpha1.Exclusive) {
		return false
	}
	return !holdsFor(l, j.UID)
}

// joined is the second in which a Job joined the queue.
func joined(j *batchv1.Job) time.Time {
	if t, err := time.Parse(metav1.RFC3339Micro, j.Annotations[v1alpha1.QueuedAtAnnotation]); err == nil {
		return t.Truncate(time.Second)
	}
	return j.CreationTimestamp.Time
}

func holds(l *v1alpha1.DistLock, owner string, token int64) bool {
	return slices.ContainsFunc(l.Status.Holders, func(h v1alpha1.Hold) bool { return h.Owner == owner && h.FencingToken == token })
}

// holdsFor reports whether a lock has a hold with that object behind it.
func holdsFor(l *v1alpha1.DistLock, uid types.UID) bool {
	return slices.ContainsFunc(l.Status.Holders, func(h v1alpha1.Hold) bool { return h.Ref != nil && h.Ref.UID == uid })
}
