package law

import (
	"strconv"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func lockAt(version, token int64, holds ...v1alpha1.Hold) Version {
	return Version{Object: &v1alpha1.DistLock{
		ObjectMeta: metav1.ObjectMeta{Name: "l", ResourceVersion: strconv.FormatInt(version, 10)},
		Status:     v1alpha1.DistLockStatus{FencingToken: token, Holders: holds},
	}}
}

func holdBy(job string, token int64, mode v1alpha1.Mode) v1alpha1.Hold {
	return v1alpha1.Hold{Owner: job, Mode: mode, Permits: 1, FencingToken: token, Ref: &v1alpha1.ObjectRef{UID: types.UID(job)}}
}

func jobAt(version int64, name string, second int) Version {
	return Version{Object: &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(name), ResourceVersion: strconv.FormatInt(version, 10),
			CreationTimestamp: metav1.NewTime(start.Add(time.Duration(second) * time.Second)),
			Annotations:       map[string]string{v1alpha1.LockAnnotation: "l"},
		},
		Spec: batchv1.JobSpec{Suspend: new(true)},
	}}
}

func finished(v Version) Version {
	v.Object.(*batchv1.Job).Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	return v
}

// putBack has the Job go to the end of the queue at that second.
func putBack(v Version, second int) Version {
	v.Object.(*batchv1.Job).Annotations[v1alpha1.QueuedAtAnnotation] = start.Add(time.Duration(second) * time.Second).Format(metav1.RFC3339Micro)
	return v
}

func podAt(version int64, job string, phase corev1.PodPhase) Version {
	return Version{Object: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: job + "-pod", UID: types.UID(job + "-pod"), ResourceVersion: strconv.FormatInt(version, 10),
			Annotations:     map[string]string{v1alpha1.LockAnnotation: "l"},
			OwnerReferences: []metav1.OwnerReference{{Name: job, UID: types.UID(job), Controller: new(true)}},
		},
		Status: corev1.PodStatus{Phase: phase},
	}}
}

func gated(v Version) Version {
	v.Object.(*batchv1.Job).Labels = map[string]string{v1alpha1.GatedLabel: "true"}
	return v
}

// unmarked is a pod of a Job that the gate missed.
func unmarked(v Version) Version {
	p := v.Object.(*corev1.Pod)
	p.Annotations, p.Labels = nil, map[string]string{batchv1.ControllerUidLabel: p.OwnerReferences[0].Name}
	return v
}

func TestEachBreakOfTheLawIsFound(t *testing.T) {
	exclusive, shared := v1alpha1.Exclusive, v1alpha1.Shared
	gone := podAt(14, "a", corev1.PodRunning)
	gone.Deleted = true
	for name, c := range map[string]struct {
		versions []Version
		law      string // "": none is broken
	}{
		"one Job after the other": {[]Version{
			jobAt(1, "a", 0), jobAt(2, "b", 1), lockAt(10, 5, holdBy("a", 5, exclusive)), podAt(11, "a", corev1.PodRunning),
			podAt(12, "a", corev1.PodSucceeded), finished(jobAt(13, "a", 0)), lockAt(14, 12, holdBy("b", 12, exclusive)),
		}, ""},
		"a pod that was deleted runs no more": {[]Version{
			lockAt(10, 5, holdBy("a", 5, exclusive)), podAt(11, "a", corev1.PodRunning), gone, lockAt(15, 5),
		}, ""},
		"two holds, one of them exclusive": {[]Version{lockAt(10, 5, holdBy("a", 5, exclusive), holdBy("b", 5, shared))}, "L1"},
		"the same token for a second hold": {[]Version{lockAt(10, 5, holdBy("a", 5, exclusive)), lockAt(11, 5, holdBy("b", 5, exclusive))}, "L2"},
		"a token greater than its version": {[]Version{lockAt(10, 11, holdBy("a", 11, exclusive))}, "L2"},
		"a token of an earlier lock again": {[]Version{lockAt(10, 9, holdBy("a", 9, exclusive)), {Object: lockAt(11, 9).Object, Deleted: true}, lockAt(12, 3, holdBy("b", 3, exclusive))}, "L2"},
		"a pod without a hold":             {[]Version{lockAt(10, 5), podAt(11, "a", corev1.PodPending)}, "L5"},
		"a hold that ends before its pod":  {[]Version{lockAt(10, 5, holdBy("a", 5, exclusive)), podAt(11, "a", corev1.PodRunning), lockAt(12, 5)}, "L5"},
		"a pod beside another Job's hold":  {[]Version{lockAt(10, 5, holdBy("b", 5, exclusive)), podAt(11, "a", corev1.PodRunning)}, "L5"},
		"a grant beside the unmarked pod of a Job that was taken in": {[]Version{
			gated(jobAt(1, "a", 0)), unmarked(podAt(2, "a", corev1.PodRunning)), lockAt(10, 5, holdBy("b", 5, shared)),
		}, "L5"},
		"a grant to a Job that was taken in, after its pod": {[]Version{
			gated(jobAt(1, "a", 0)), unmarked(podAt(2, "a", corev1.PodRunning)), unmarked(podAt(3, "a", corev1.PodFailed)), lockAt(10, 5, holdBy("a", 5, exclusive)),
		}, ""},
		"the later of two Jobs first":                     {[]Version{jobAt(1, "a", 0), jobAt(2, "b", 1), lockAt(10, 5, holdBy("b", 5, exclusive))}, "L7"},
		"a Shared Job past an earlier Exclusive one":      {[]Version{jobAt(1, "a", 0), jobAt(2, "b", 1), lockAt(10, 5, holdBy("b", 5, shared))}, "L7"},
		"an earlier second that was stored later":         {[]Version{jobAt(2, "a", 0), jobAt(1, "b", 1), lockAt(10, 5, holdBy("b", 5, exclusive))}, ""},
		"a Job that was put back to the end of the queue": {[]Version{jobAt(1, "a", 0), jobAt(2, "b", 1), putBack(jobAt(3, "a", 0), 2), lockAt(10, 5, holdBy("b", 5, exclusive))}, ""},
		"a Job past those it was put back behind":         {[]Version{jobAt(1, "a", 0), jobAt(2, "b", 1), putBack(jobAt(3, "a", 0), 2), lockAt(10, 5, holdBy("a", 5, exclusive))}, "L7"},
		"either of two Jobs of the same second":           {[]Version{jobAt(1, "a", 0), jobAt(2, "b", 0), lockAt(10, 5, holdBy("b", 5, exclusive))}, ""},
		"order of the versions does not matter":           {[]Version{lockAt(12, 5), podAt(11, "a", corev1.PodRunning), lockAt(10, 5, holdBy("a", 5, exclusive))}, "L5"},
		"shared holds side by side":                       {[]Version{lockAt(10, 5, holdBy("a", 5, shared), holdBy("b", 5, shared))}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			broken := Check(c.versions)
			if c.law == "" && len(broken) > 0 || c.law != "" && (len(broken) == 0 || !strings.HasPrefix(broken[0], c.law+" ")) {
				t.Errorf("got %q, want a break of %q", broken, c.law)
			}
		})
	}
}

func TestPermitsBeyondTheCapacityAreFoundWhenTheyAreGranted(t *testing.T) {
	capacity := func(v Version, n int32) Version {
		v.Object.(*v1alpha1.DistLock).Spec.Capacity = new(n)
		return v
	}
	a, b := holdBy("a", 5, v1alpha1.Shared), holdBy("b", 7, v1alpha1.Shared)
	if broken := Check([]Version{capacity(lockAt(10, 5, a), 1), capacity(lockAt(11, 7, a, b), 1)}); len(broken) != 1 {
		t.Errorf("two permits of one: got %q, want one break", broken)
	}
	if broken := Check([]Version{capacity(lockAt(10, 5, a), 2), capacity(lockAt(11, 7, a, b), 2), capacity(lockAt(12, 7, a, b), 1)}); len(broken) != 0 {
		t.Errorf("a capacity lowered later: got %q, want none", broken)
	}
}
