package controllers_test

import (
	"net/http"
	"strconv"
	"sync"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// pauseJobController stops kube-controller-manager until it is let go on. Not for
// parallel tests: it is one for all.
func pauseJobController(t *testing.T) (goOn func()) {
	t.Helper()
	must(t, controlPlane.ControllerManager.Pause())
	resume := sync.OnceFunc(func() { must(t, controlPlane.ControllerManager.Resume()) })
	t.Cleanup(resume)
	return resume
}

func TestFault05AJobIsGrantedBeforeItsSuspendedConditionIsSet(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	goOn := pauseJobController(t)
	a := jobOn(t, ns, "a", "nightly")
	held := untilLock(t, ns, "nightly", "held", heldBy(a))
	resumed := untilJob(t, ns, "a", "resumed", func(j *batchv1.Job) bool { return !suspended(j) })
	if len(resumed.Status.Conditions) > 0 || resumed.Status.StartTime != nil {
		t.Fatalf("the Job controller was there before: %+v", resumed.Status)
	}
	goOn()
	if pod := podOf(t, a); pod.Annotations[v1alpha1.TokenAnnotation] != tokenIn(held) {
		t.Errorf("the pod has the token %q, its hold %s", pod.Annotations[v1alpha1.TokenAnnotation], tokenIn(held))
	}
}

func TestFault05TheJobControllerWritesBetweenTheGrantAndTheResume(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	c := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	reached, letGo := c.holdUp(writes(http.MethodPatch, "/jobs/a"))
	defer letGo()
	jobOn(t, ns, "a", "nightly")
	await(t, reached, "the resume")
	now := untilJob(t, ns, "a", "suspended for the Job controller", isStopped)
	now.Status.Conditions = append(now.Status.Conditions, batchv1.JobCondition{Type: "Written", Status: corev1.ConditionTrue})
	must(t, admin.Status().Update(t.Context(), now)) // once more, so that it is after the controller's reading
	answered := c.answers(writes(http.MethodPatch, "/jobs/a"))
	letGo()
	if code := await(t, answered, "the answer to the resume"); code != http.StatusOK {
		t.Errorf("the resume was answered %d", code)
	}
	untilStarted(t, ns, "a")
}

func TestFault05AResumeThatIsRefusedIsTriedAgain(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	c := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	reached, letGo := c.holdUp(writes(http.MethodPatch, "/jobs/a"))
	defer letGo()
	a := jobOn(t, ns, "a", "nightly")
	await(t, reached, "the resume")
	held := getLock(t, ns, "nightly")
	must(t, admin.Patch(t.Context(), a, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"example.com/note":"x"}}}`))))
	answered := c.answers(writes(http.MethodPatch, "/jobs/a"))
	letGo()
	if code := await(t, answered, "the answer to the resume"); code != http.StatusUnprocessableEntity {
		t.Errorf("the resume was answered %d", code)
	}
	if j := untilStarted(t, ns, "a"); j.Spec.Template.Annotations[v1alpha1.TokenAnnotation] != tokenIn(held) {
		t.Errorf("started with the token %q, granted with %s", j.Spec.Template.Annotations[v1alpha1.TokenAnnotation], tokenIn(held))
	}
}

// While the Job controller has not said that a Job is suspended, its template
// cannot be changed: it could not be resumed with its next token.
func TestFault38ARevokedJobIsResumedOnceItsTemplateCanBeChanged(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	pod := podOf(t, a)
	untilStarted(t, ns, "a")
	goOn := pauseJobController(t)
	revoke(t, ns, "nightly", ownerOf(a))
	untilJob(t, ns, "a", "suspended", suspended)
	setPhase(t, pod, corev1.PodFailed)

	asController, err := client.New(controllerConfig, client.Options{Scheme: admin.Scheme()})
	must(t, err)
	token := []byte(`{"spec":{"template":{"metadata":{"annotations":{"distlock.dev/fencing-token":"1"}}}}}`)
	if err := asController.Patch(t.Context(), a.DeepCopy(), client.RawPatch(types.MergePatchType, token)); !apierrors.IsInvalid(err) {
		t.Fatalf("a change of the template: %v, want Invalid", err)
	}
	held := look(t, ns, "nightly")
	if !heldBy(a)(held) || held.Status.Holders[0].RevokeTime == nil {
		t.Fatalf("the hold ended although the Job controller does not know of the suspension: %+v", held.Status)
	}
	goOn()
	again := untilLock(t, ns, "nightly", "held by a again", func(l *v1alpha1.DistLock) bool {
		return heldBy(a)(l) && l.Status.FencingToken > held.Status.FencingToken
	})
	if pod := podOf(t, a); pod.Annotations[v1alpha1.TokenAnnotation] != tokenIn(again) {
		t.Errorf("the pod has the token %q, its hold %s", pod.Annotations[v1alpha1.TokenAnnotation], tokenIn(again))
	}
}

// manyPods are Jobs whose hold no single pod's success ends.
var manyPods = map[string]func(*batchv1.JobSpec){
	"indexed": func(s *batchv1.JobSpec) {
		s.CompletionMode, s.Parallelism, s.Completions = ptr.To(batchv1.IndexedCompletion), new(int32(2)), new(int32(2))
	},
	"two-at-once": func(s *batchv1.JobSpec) { s.Parallelism, s.Completions = new(int32(2)), new(int32(2)) },
	"work-queue":  func(s *batchv1.JobSpec) { s.Parallelism = new(int32(2)) },
	"one-by-one":  func(s *batchv1.JobSpec) { s.Completions = new(int32(2)) },
	"indexed-alone": func(s *batchv1.JobSpec) {
		s.CompletionMode, s.Completions = ptr.To(batchv1.IndexedCompletion), new(int32(1))
	},
	"success-policy": func(s *batchv1.JobSpec) {
		s.CompletionMode, s.Parallelism, s.Completions = ptr.To(batchv1.IndexedCompletion), new(int32(2)), new(int32(2))
		s.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededCount: new(int32(1))}}}
	},
}

// All pods of these Jobs have ended, one with success, and what the Job
// controller makes of it is not known yet: it may start another pod.
func TestFault39NoPodsSuccessEndsTheHoldOfAJobWithSeveral(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	jobs, pods := map[string]*batchv1.Job{}, map[string][]*corev1.Pod{}
	for name, kind := range manyPods {
		lockIn(t, ns, name, v1alpha1.DistLockSpec{})
		jobs[name] = jobOn(t, ns, name, name, func(j *batchv1.Job) { kind(&j.Spec) })
		pods[name] = somePodsOf(t, jobs[name], int(ptr.Deref(jobs[name].Spec.Parallelism, 1)))
	}
	goOn := pauseJobController(t)
	for name, j := range jobs {
		before := getLock(t, ns, name)
		for i, p := range pods[name] {
			if i == 0 {
				setPhase(t, p, corev1.PodSucceeded)
			} else {
				setPhase(t, p, corev1.PodFailed)
			}
		}
		if l := look(t, ns, name); !heldBy(j)(l) || tokenIn(l) != tokenIn(before) {
			t.Errorf("%s: the hold ended before the Job did: %+v", name, l.Status)
		}
	}
	goOn()
	for _, name := range []string{"work-queue", "indexed-alone", "success-policy"} { // these need no other pod
		untilFree(t, ns, name)
	}
}

func TestFault39APodSucceedsWhileAnotherIsToBeReplaced(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"indexed", "two-at-once"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := namespace(t)
			startController(t, ns)
			lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
			a := jobOn(t, ns, "a", "nightly", func(j *batchv1.Job) { manyPods[name](&j.Spec) })
			pods := somePodsOf(t, a, 2)
			jobOn(t, ns, "b", "nightly")
			before := untilQueued(t, ns, "nightly", 1)
			reached, letGo := holdUpPods(t, ns, "a")
			setPhase(t, pods[0], corev1.PodFailed)
			setPhase(t, pods[1], corev1.PodSucceeded)
			await(t, reached, "the pod in the failed one's place")
			if l := look(t, ns, "nightly"); !heldBy(a)(l) || tokenIn(l) != tokenIn(before) {
				t.Errorf("the hold ended while a pod was to be replaced: %+v", l.Status)
			}
			letGo()
			setPhase(t, podOf(t, a), corev1.PodSucceeded)
			untilStarted(t, ns, "b")
		})
	}
}

func TestFault40AnAuthorsOwnSuspendIsOverridden(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]*bool{"true": new(true), "false": new(false)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := namespace(t)
			startController(t, ns)
			lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
			first := jobOn(t, ns, "first", "nightly")
			pod := podOf(t, first)
			j := jobOn(t, ns, "a", "nightly", func(j *batchv1.Job) { j.Spec.Suspend = value })
			if !suspended(j) {
				t.Fatal("it was admitted unsuspended")
			}
			untilQueued(t, ns, "nightly", 1)
			setPhase(t, pod, corev1.PodSucceeded)
			untilStarted(t, ns, "a")
		})
	}
}

// somePodsOf sets so many pods of a Job running that has no others.
func somePodsOf(t *testing.T, j *batchv1.Job, n int) []*corev1.Pod {
	t.Helper()
	untilJob(t, j.Namespace, j.Name, "with its pods", func(j *batchv1.Job) bool { return int(j.Status.Active) == n })
	var pods []*corev1.Pod
	for _, p := range podsOf(t, j) {
		run(t, &p, node)
		pods = append(pods, &p)
	}
	return pods
}

func tokenIn(l *v1alpha1.DistLock) string { return strconv.FormatInt(l.Status.FencingToken, 10) }
