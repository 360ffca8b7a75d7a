package controllers_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

func TestFault03TheNextJobWaitsUntilARevokedOnesPodHasEnded(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	pod := podOf(t, a)
	b := jobOn(t, ns, "b", "nightly")
	untilQueued(t, ns, "nightly", 1)

	revoke(t, ns, "nightly", ownerOf(a))
	untilPod(t, pod, "told to end", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	untilJob(t, ns, "a", "known to be suspended", isStopped)
	for range 3 {
		if l := look(t, ns, "nightly"); !heldBy(a)(l) {
			t.Fatalf("the lock went on while the pod of a was terminating: %+v", l.Status)
		}
	}
	if pods := podsOf(t, b); len(pods) > 0 {
		t.Fatalf("b has %d pods beside a's", len(pods))
	}
	setPhase(t, pod, corev1.PodFailed)
	setPhase(t, podOf(t, b), corev1.PodSucceeded)
	untilLock(t, ns, "nightly", "held by a again", heldBy(a))
}

// The holder is a process that ignores SIGTERM: the file alive is there for as
// long as it runs, and the next holder looks whether it is.
func TestFault03ARealProcessIgnoresSIGTERM(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	dir := t.TempDir()
	a := jobOn(t, ns, "a", "nightly", runs(
		`trap "" TERM; touch alive; while ! [ -e end ]; do sleep 0.05; done; rm alive; exit 1`, dir))
	pod := untilPod(t, firstPodOf(t, a), "running", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	b := jobOn(t, ns, "b", "nightly", runs(`! [ -e alive ]`, dir))
	untilQueued(t, ns, "nightly", 1)

	revoke(t, ns, "nightly", ownerOf(a))
	untilPod(t, pod, "told to end", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	untilJob(t, ns, "a", "known to be suspended", isStopped)
	if l := look(t, ns, "nightly"); !heldBy(a)(l) {
		t.Fatalf("the lock went on while the process of a ran: %+v", l.Status)
	}
	must(t, os.WriteFile(filepath.Join(dir, "end"), nil, 0o600))
	untilJob(t, ns, b.Name, "completed: its process found that of a gone", completed)
	untilStarted(t, ns, "a")
}

// runs makes a Job's pods real processes, in a folder.
func runs(script, dir string) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		pod := &j.Spec.Template.Spec
		pod.SchedulerName = corev1.DefaultSchedulerName
		pod.TerminationGracePeriodSeconds = new(int64(600))
		pod.Containers[0].Command = []string{"sh", "-c", `cd "$0" && ` + script, dir}
	}
}

func TestFault04ADeletedPodIsNotReplacedBeforeItHasEnded(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	pod := podOf(t, a)
	jobOn(t, ns, "b", "nightly")
	held := untilQueued(t, ns, "nightly", 1)
	ungated := jobOn(t, ns, "ungated", "") // its pod is replaced when it has been told to end
	ungatedPod := podOf(t, ungated)

	must(t, admin.Delete(t.Context(), pod))
	untilJob(t, ns, "a", "known to have a pod that terminates", func(j *batchv1.Job) bool { return ptr.Deref(j.Status.Terminating, 0) == 1 })
	must(t, admin.Delete(t.Context(), ungatedPod))
	podOf(t, ungated)
	if pods := podsOf(t, a); len(pods) != 1 {
		t.Errorf("a has %d pods, want the one that terminates", len(pods))
	}
	setPhase(t, pod, corev1.PodFailed)
	untilJob(t, ns, "a", "between two pods", func(j *batchv1.Job) bool { return j.Status.Failed == 1 })
	if l := look(t, ns, "nightly"); !heldBy(a)(l) || l.Status.FencingToken != held.Status.FencingToken {
		t.Errorf("held by %+v, want a with the token it had: %d", l.Status.Holders, held.Status.FencingToken)
	}
}

// The test plays what makes a node and its pods known to be lost; pod garbage
// collection is the real one.
func TestFault04APodOnALostNodeIsReplacedOnceItIsCalledFailed(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	lost := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "lost-" + ns}}
	must(t, admin.Create(t.Context(), lost))
	t.Cleanup(func() { _ = admin.Delete(context.WithoutCancel(t.Context()), lost) })
	a := jobOn(t, ns, "a", "nightly")
	first := podOn(t, a, lost.Name)
	b := jobOn(t, ns, "b", "nightly")
	untilQueued(t, ns, "nightly", 1)

	lost.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	must(t, admin.Status().Update(t.Context(), lost))
	must(t, admin.Delete(t.Context(), first)) // as the eviction by taint does
	untilJob(t, ns, "a", "known to have a pod that terminates", func(j *batchv1.Job) bool { return ptr.Deref(j.Status.Terminating, 0) == 1 })
	if l := look(t, ns, "nightly"); !heldBy(a)(l) {
		t.Fatalf("the lock went on: %+v", l.Status)
	}
	lost.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	must(t, admin.Update(t.Context(), lost))
	second := podOf(t, a) // nobody but pod garbage collection calls the first Failed
	theyNeverRanTogether(t, a, first, second)
	setPhase(t, second, corev1.PodSucceeded)
	untilStarted(t, ns, b.Name)
}

// theyNeverRanTogether checks, version by version up to now, that of a Job's pods
// at most one might run.
func theyNeverRanTogether(t *testing.T, j *batchv1.Job, first, second *corev1.Pod) {
	t.Helper()
	alive := map[types.UID]bool{}
	ended := false
	eventsSince(t, j, &corev1.PodList{}, func(e watch.Event) bool {
		p := e.Object.(*corev1.Pod)
		if alive[p.UID] = e.Type != watch.Deleted && !isTerminal(p); !alive[p.UID] {
			delete(alive, p.UID)
			ended = ended || p.UID == first.UID
		}
		if len(alive) > 1 {
			t.Errorf("at version %s %d pods of %s may run", p.ResourceVersion, len(alive), j.Name)
		}
		return p.UID == second.UID
	}, client.MatchingLabels{batchv1.ControllerUidLabel: string(j.UID)})
	if !ended {
		t.Errorf("pod %s was replaced by %s before it had ended", first.Name, second.Name)
	}
}

func isTerminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// isStopped reports whether the Job controller knows that the Job is suspended.
func isStopped(j *batchv1.Job) bool {
	for _, c := range j.Status.Conditions {
		if c.Type == batchv1.JobSuspended {
			return c.Status == corev1.ConditionTrue && suspended(j)
		}
	}
	return false
}

func untilPod(t *testing.T, p *corev1.Pod, what string, wanted func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	return until(t, p, &corev1.PodList{}, what, wanted)
}

// firstPodOf waits for a Job's pod and leaves it alone.
func firstPodOf(t *testing.T, j *batchv1.Job) (first *corev1.Pod) {
	t.Helper()
	eventsSince(t, j, &corev1.PodList{}, func(e watch.Event) bool {
		first = e.Object.(*corev1.Pod)
		return true
	}, client.MatchingLabels{batchv1.ControllerUidLabel: string(j.UID)})
	return first
}
