package controllers_test

import (
	"net/http"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

func TestAJobThatIsRevokedBeforeItsResumeWaitsAgainWithoutHavingRun(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	first := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	reached, letGo := first.holdUp(writes(http.MethodPatch, "/jobs/a"))
	defer letGo()
	a := jobOn(t, ns, "a", "nightly")
	await(t, reached, "the resume")
	first.cut()
	letGo()
	first.kill() // between its two writes
	b := jobOn(t, ns, "b", "nightly")
	revoke(t, ns, "nightly", ownerOf(a))

	startController(t, ns)
	untilLock(t, ns, "nightly", "held by b", heldBy(b))
	pod := podOf(t, b)
	eventsSince(t, a, &corev1.PodList{}, func(e watch.Event) bool {
		p := e.Object.(*corev1.Pod)
		if p.Labels[batchv1.ControllerUidLabel] == string(a.UID) {
			t.Errorf("pod %s of a was started", p.Name)
		}
		return p.UID == pod.UID
	})
	setPhase(t, pod, corev1.PodSucceeded)
	untilStarted(t, ns, "a")
}

func TestAJobThatIsRevokedWhileItsResumeIsUnderWayStops(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	c := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	reached, letGo := c.holdUp(writes(http.MethodPatch, "/jobs/a"))
	defer letGo()
	a := jobOn(t, ns, "a", "nightly")
	await(t, reached, "the resume")
	revoke(t, ns, "nightly", ownerOf(a))
	b := jobOn(t, ns, "b", "nightly")
	letGo()
	untilLock(t, ns, "nightly", "held by b", heldBy(b))
	setPhase(t, podOf(t, b), corev1.PodSucceeded)
	untilStarted(t, ns, "a")
}

// Until the Job controller has acknowledged the resume, its Suspended condition
// would say nothing about pods that are under way.
func TestAJobThatIsRevokedBeforeTheJobControllerKnowsOfItsResumeKeepsTheLockUntilItDoes(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	goOn := pauseJobController(t)
	a := jobOn(t, ns, "a", "nightly")
	b := jobOn(t, ns, "b", "nightly")
	untilJob(t, ns, "a", "resumed", func(j *batchv1.Job) bool { return !suspended(j) })
	revoke(t, ns, "nightly", ownerOf(a))
	if l := look(t, ns, "nightly"); !heldBy(a)(l) {
		t.Fatalf("the lock went on: %+v", l.Status)
	}
	if j := untilJob(t, ns, "a", "there", func(*batchv1.Job) bool { return true }); suspended(j) {
		t.Error("a was suspended before its resume was acknowledged")
	}
	goOn()
	untilLock(t, ns, "nightly", "held by b", heldBy(b))
	setPhase(t, podOf(t, b), corev1.PodSucceeded)
	untilStarted(t, ns, "a")
}

func TestRevokingTwiceIsRevokingOnce(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	created := lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	pod := podOf(t, a)
	b := jobOn(t, ns, "b", "nightly")
	untilQueued(t, ns, "nightly", 1)

	revoke(t, ns, "nightly", ownerOf(a))
	untilJob(t, ns, "a", "suspended", suspended)
	revokeAt(t, ns, ownerOf(a), time.Now().Add(time.Hour))
	look(t, ns, "nightly")
	setPhase(t, pod, corev1.PodFailed)
	setPhase(t, podOf(t, b), corev1.PodSucceeded)
	untilStarted(t, ns, "a")

	times := map[string]bool{}
	for _, l := range lockVersions(t, created, func(l *v1alpha1.DistLock) bool { return heldBy(b)(l) }) {
		if heldBy(a)(l) && l.Status.Holders[0].RevokeTime != nil {
			times[l.Status.Holders[0].RevokeTime.String()] = true
		}
	}
	queued := map[string]bool{}
	for _, j := range versions(t, a, &batchv1.JobList{}, func(j *batchv1.Job) bool { return !suspended(j) && j.Annotations[v1alpha1.QueuedAtAnnotation] != "" }) {
		queued[j.Annotations[v1alpha1.QueuedAtAnnotation]] = true
	}
	delete(queued, "")
	if len(times) != 1 || len(queued) != 1 {
		t.Errorf("revoke times %v, places in the queue %v, want one of each", times, queued)
	}
}

func TestRevokingOneSharedHolderLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "licences", v1alpha1.DistLockSpec{Capacity: new(int32(3))})
	var pods []*corev1.Pod
	var jobs []*batchv1.Job
	for _, name := range []string{"one", "two", "three"} {
		jobs = append(jobs, jobOn(t, ns, name, "licences"))
		pods = append(pods, podOf(t, jobs[len(jobs)-1]))
	}
	four := jobOn(t, ns, "four", "licences")
	before := untilQueued(t, ns, "licences", 1)

	revoke(t, ns, "licences", ownerOf(jobs[1]))
	untilJob(t, ns, "two", "known to be suspended", isStopped)
	if l := look(t, ns, "licences"); len(l.Status.Holders) != 3 {
		t.Fatalf("the permit went on while the pod of two was there: %+v", l.Status)
	}
	setPhase(t, pods[1], corev1.PodFailed)
	after := untilLock(t, ns, "licences", "held by four and waited for by two", func(l *v1alpha1.DistLock) bool {
		return holderOf(l, four) != nil && len(l.Status.Queue) == 1 && l.Status.Queue[0].Owner == ownerOf(jobs[1])
	})
	for _, j := range []*batchv1.Job{jobs[0], jobs[2]} {
		was, is := holderOf(before, j), holderOf(after, j)
		if is == nil || is.FencingToken != was.FencingToken || is.RevokeTime != nil {
			t.Errorf("the hold of %s was %+v, is %+v", j.Name, was, is)
		}
		if now := untilJob(t, ns, j.Name, "there", func(*batchv1.Job) bool { return true }); suspended(now) {
			t.Errorf("%s was suspended", j.Name)
		}
	}
	setPhase(t, pods[0], corev1.PodSucceeded)
	untilLock(t, ns, "licences", "held by two again", func(l *v1alpha1.DistLock) bool { return holderOf(l, jobs[1]) != nil })
}

func holderOf(l *v1alpha1.DistLock, j *batchv1.Job) *v1alpha1.Hold {
	for i, h := range l.Status.Holders {
		if h.Owner == ownerOf(j) {
			return &l.Status.Holders[i]
		}
	}
	return nil
}

func TestARevokedJobThatHasNoRetriesWaitsAgain(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly", func(j *batchv1.Job) { j.Spec.BackoffLimit = new(int32(0)) })
	pod := podOf(t, a)
	revoke(t, ns, "nightly", ownerOf(a))
	untilJob(t, ns, "a", "known to be suspended", isStopped)
	setPhase(t, pod, corev1.PodFailed)
	untilJob(t, ns, "a", "started again", func(j *batchv1.Job) bool { return !suspended(j) && j.Status.Active == 1 })
}

// It has acknowledged its suspension, so no pod of it is under way when it is deleted.
func TestAStoppedJobThatIsDeletedKeepsTheLockForItsPodsAlone(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	pod := podOf(t, a)
	b := jobOn(t, ns, "b", "nightly")
	untilQueued(t, ns, "nightly", 1)
	revoke(t, ns, "nightly", ownerOf(a))
	untilJob(t, ns, "a", "known to be suspended", isStopped)
	look(t, ns, "nightly")
	must(t, admin.Delete(t.Context(), a, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	if l := look(t, ns, "nightly"); !heldBy(a)(l) {
		t.Fatalf("the lock went on while the pod was there: %+v", l.Status)
	}
	ended := time.Now()
	setPhase(t, pod, corev1.PodFailed)
	untilStarted(t, ns, b.Name)
	if d := time.Since(ended); d > 40*time.Second {
		t.Errorf("b was started %v after the pod had ended", d)
	}
}
