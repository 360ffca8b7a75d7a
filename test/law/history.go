// Package law judges what happened in a namespace by the stored versions of its
// locks, Jobs and pods, as a watcher saw them: L1, L2, L5 and L7 of the design.
// It knows nothing of internal/protocol or the controller, so that it cannot
// share their mistakes.
package law

import (
	"cmp"
	"fmt"
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
	slices.SortStableFunc(versions, func(a, b Version) int { return cmp.Compare(a.number(), b.number()) })
	w := world{
		locks:  map[string]*v1alpha1.DistLock{},
		jobs:   map[types.UID]*batchv1.Job{},
		pods:   map[types.UID]*corev1.Pod{},
		tokens: map[string]int64{},
	}
	for _, v := range versions {
		w.at = v.number()
		w.store(v)
	}
	return w.broken
}

// world is what is stored at one point of the replay.
type world struct {
	at     int64
	locks  map[string]*v1alpha1.DistLock // by name
	jobs   map[types.UID]*batchv1.Job
	pods   map[types.UID]*corev1.Pod // those that may run
	tokens map[string]int64          // the greatest token granted, by the lock's name
	broken []string
}

func (w *world) breaks(law, format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf("%s at %d: %s", law, w.at, fmt.Sprintf(format, args...)))
}

func (w *world) store(v Version) {
	switch o := v.Object.(type) {
	case *v1alpha1.DistLock:
		before := w.locks[o.Name]
		if v.Deleted {
			delete(w.locks, o.Name)
			return
		}
		w.exclusion(o, before)
		for _, h := range o.Status.Holders {
			if before == nil || !holds(before, h.Owner, h.FencingToken) {
				w.fencing(o, h)
				w.order(o, h)
			}
		}
		w.tokens[o.Name] = max(w.tokens[o.Name], o.Status.FencingToken)
		w.locks[o.Name] = o
		w.everyPodHolds()
	case *batchv1.Job:
		if w.jobs[o.UID] = o; v.Deleted {
			delete(w.jobs, o.UID)
		}
	case *corev1.Pod:
		if w.pods[o.UID] = o; v.Deleted || o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
			delete(w.pods, o.UID)
		}
		w.everyPodHolds()
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

// everyPodHolds is L5.
func (w *world) everyPodHolds() {
	for _, p := range w.pods {
		name, owner := p.Annotations[v1alpha1.LockAnnotation], metav1.GetControllerOf(p)
		if name == "" || owner == nil {
			continue
		}
		if l := w.locks[name]; l == nil || !slices.ContainsFunc(l.Status.Holders, func(h v1alpha1.Hold) bool {
			return h.Ref != nil && h.Ref.UID == owner.UID
		}) {
			w.breaks("L5", "pod %s may run while Job %s does not hold %s", p.Name, owner.Name, name)
		}
	}
}

// order is L7, for a hold that was not there before, among Jobs that all want
// the lock exclusively. Within a second the order in which the controller saw
// them is its own.
func (w *world) order(l *v1alpha1.DistLock, h v1alpha1.Hold) {
	if h.Ref == nil || h.Mode != v1alpha1.Exclusive {
		return
	}
	granted := w.jobs[h.Ref.UID]
	if granted == nil {
		return
	}
	for _, j := range w.jobs {
		if j.UID != granted.UID && waits(j, l) && joined(j).Before(joined(granted)) {
			w.breaks("L7", "%s was granted to Job %s before Job %s, which had come earlier", l.Name, granted.Name, j.Name)
		}
	}
}

func waits(j *batchv1.Job, l *v1alpha1.DistLock) bool {
	if j.Annotations[v1alpha1.LockAnnotation] != l.Name || j.DeletionTimestamp != nil || !ptr.Deref(j.Spec.Suspend, false) {
		return false
	}
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return false
		}
	}
	return !slices.ContainsFunc(l.Status.Holders, func(h v1alpha1.Hold) bool { return h.Ref != nil && h.Ref.UID == j.UID })
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
