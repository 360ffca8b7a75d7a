package controllers_test

import (
	"net/http"
	"strconv"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

func TestJobsRunOneAfterTheOtherEachWithItsOwnToken(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	jobs := make([]*batchv1.Job, 5)
	for i := range jobs {
		jobs[i] = jobOn(t, ns, "run-"+strconv.Itoa(i), "nightly")
	}
	var last int64
	for range jobs {
		var running *batchv1.Job
		held := untilLock(t, ns, "nightly", "held with a new token", func(l *v1alpha1.DistLock) bool {
			return len(l.Status.Holders) == 1 && l.Status.FencingToken > last
		})
		for _, j := range jobs {
			if heldBy(j)(held) {
				running = j
			}
		}
		last = held.Status.FencingToken
		pod := podOf(t, running)
		if got := pod.Annotations[v1alpha1.TokenAnnotation]; got != strconv.FormatInt(last, 10) {
			t.Errorf("pod of %s has the token %q, its hold %d", running.Name, got, last)
		}
		setPhase(t, pod, corev1.PodSucceeded)
		untilJob(t, ns, running.Name, "completed", completed)
	}
	untilFree(t, ns, "nightly")
}

func TestTheHoldOfADeletedJobLastsUntilItsPodHasEnded(t *testing.T) {
	for _, propagation := range []metav1.DeletionPropagation{
		metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan,
	} {
		t.Run(string(propagation), func(t *testing.T) {
			t.Parallel()
			ns := namespace(t)
			c := startController(t, ns)
			lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
			a := jobOn(t, ns, "a", "nightly")
			pod := podOf(t, a)
			b := jobOn(t, ns, "b", "nightly")
			untilQueued(t, ns, "nightly", 1)

			listed := c.answers(writes(http.MethodGet, "/namespaces/"+ns+"/pods"))
			must(t, admin.Delete(t.Context(), a, client.PropagationPolicy(propagation)))
			await(t, listed, "the look for pods") // after the five seconds
			if l := untilQueued(t, ns, "nightly", 1); !heldBy(a)(l) {
				t.Fatalf("the lock went on while the pod was there: %+v", l.Status)
			}
			setPhase(t, pod, corev1.PodFailed)
			untilStarted(t, ns, b.Name)
		})
	}
}

func TestAJobThatIsMadeToLookFinishedKeepsTheLockUntilItsPodHasEnded(t *testing.T) {
	ns := namespace(t)
	c := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	pod := podOf(t, a)
	b := jobOn(t, ns, "b", "nightly")
	untilQueued(t, ns, "nightly", 1)

	listed := c.answers(writes(http.MethodGet, "/namespaces/"+ns+"/pods"))
	now := metav1.Now()
	must(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		must(t, admin.Get(t.Context(), client.ObjectKeyFromObject(a), a))
		a.Status.Conditions = append(a.Status.Conditions,
			batchv1.JobCondition{Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue, LastTransitionTime: now},
			batchv1.JobCondition{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, LastTransitionTime: now})
		a.Status.Active, a.Status.Ready, a.Status.Terminating = 0, new(int32(0)), new(int32(0))
		return admin.Status().Update(t.Context(), a)
	}))
	await(t, listed, "the look for pods")
	if l := untilQueued(t, ns, "nightly", 1); !heldBy(a)(l) {
		t.Fatalf("the lock went on while the pod was there: %+v", l.Status)
	}
	setPhase(t, pod, corev1.PodSucceeded)
	untilStarted(t, ns, b.Name)
}

func TestARevokedJobStopsAndWaitsAgainAtTheEndOfTheQueue(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	pod := podOf(t, a)
	b, c := jobOn(t, ns, "b", "nightly"), jobOn(t, ns, "c", "nightly")
	waiting := untilClaim(t, claimOn(t, ns, "d", "nightly", nil), v1alpha1.ReasonWaiting)
	token := untilQueued(t, ns, "nightly", 3).Status.FencingToken

	revoke(t, ns, "nightly", ownerOf(a))
	untilJob(t, ns, "a", "known to be suspended", func(j *batchv1.Job) bool {
		return suspended(j) && len(j.Status.Conditions) > 0 && j.Status.Conditions[0].Status == corev1.ConditionTrue
	})
	untilEvent(t, ns, "LockRevoked")
	again := untilClaim(t, claimOn(t, ns, "e", "nightly", nil), v1alpha1.ReasonWaiting) // the controller looked at the lock once more
	must(t, admin.Delete(t.Context(), again))
	if l := untilQueued(t, ns, "nightly", 3); !heldBy(a)(l) {
		t.Fatalf("the lock went on while the pod of a was terminating: %+v", l.Status)
	}
	setPhase(t, pod, corev1.PodFailed)

	for _, j := range []*batchv1.Job{b, c} {
		untilLock(t, ns, "nightly", "held by "+j.Name, heldBy(j))
		setPhase(t, podOf(t, j), corev1.PodSucceeded)
	}
	untilClaim(t, waiting, v1alpha1.ReasonGranted)
	must(t, admin.Delete(t.Context(), waiting))
	if l := untilLock(t, ns, "nightly", "held by a again", heldBy(a)); l.Status.FencingToken <= token {
		t.Errorf("granted again with token %d after token %d", l.Status.FencingToken, token)
	}
	untilStarted(t, ns, "a")
}

func TestAJobThatRunsWithoutTheLockIsSuspendedAndNobodyIsGrantedItBesideItsPods(t *testing.T) {
	ns := lawlessNamespace(t)
	c := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	holderPod := podOf(t, a)
	later := jobOn(t, ns, "later", "nightly")
	intruder := jobOn(t, ns, "intruder", "nightly")
	untilQueued(t, ns, "nightly", 2)

	// Whoever can act as the controller can do this, and whoever takes the policies away.
	seen, letGo := c.holdUp(writes(http.MethodPatch, "/jobs/intruder"))
	defer letGo()
	asController, err := client.New(controllerConfig, client.Options{Scheme: admin.Scheme()})
	must(t, err)
	must(t, asController.Patch(t.Context(), intruder, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":false}}`))))
	await(t, seen, "the suspension")
	pod := podOf(t, intruder)
	letGo()
	untilEvent(t, ns, "RunningWithoutLock")
	untilJob(t, ns, "intruder", "suspended again", suspended)
	c.untilFigure(t, "distlock_intruders_total", 1)

	setPhase(t, holderPod, corev1.PodSucceeded)
	drained := untilLock(t, ns, "nightly", "held by the intruder", heldBy(intruder))
	if h := drained.Status.Holders[0]; h.RevokeTime == nil {
		t.Errorf("the intruder's hold is not revoked: %+v", h)
	}
	if j := untilJob(t, ns, "later", "there", func(*batchv1.Job) bool { return true }); !suspended(j) {
		t.Error("another Job was started beside the intruder's pod")
	}
	setPhase(t, pod, corev1.PodFailed)
	untilStarted(t, ns, later.Name)
}

func TestAJobWhoseLockDoesNotExistWaitsUntilItDoes(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	j := jobOn(t, ns, "early", "nightly")
	untilEvent(t, ns, "LockNotFound")
	if pods := podsOf(t, j); len(pods) > 0 {
		t.Fatalf("it has %d pods", len(pods))
	}
	claim := untilClaim(t, claimOn(t, ns, "claim", "nightly", nil), v1alpha1.ReasonLockNotFound)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	untilStarted(t, ns, "early")
	untilClaim(t, claim, v1alpha1.ReasonWaiting)
}

func TestSharedJobsRunTogetherUpToTheCapacity(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "licences", v1alpha1.DistLockSpec{Capacity: new(int32(3))})
	permits := func(n string) func(*batchv1.Job) {
		return func(j *batchv1.Job) { j.Annotations[v1alpha1.PermitsAnnotation] = n }
	}
	one := jobOn(t, ns, "one", "licences")
	jobOn(t, ns, "two", "licences", permits("2"))
	jobOn(t, ns, "three", "licences", permits("2"))
	small := jobOn(t, ns, "small", "licences")
	jobOn(t, ns, "huge", "licences", permits("4"))
	untilStarted(t, ns, "one")
	untilStarted(t, ns, "two")
	l := untilQueued(t, ns, "licences", 2) // small does not overtake three, and huge waits nowhere
	if l.Status.Queue[1].Owner != ownerOf(small) {
		t.Errorf("queue %+v", l.Status.Queue)
	}
	untilEvent(t, ns, "TooManyPermits")
	setPhase(t, podOf(t, one), corev1.PodSucceeded)
	untilLock(t, ns, "licences", "held by two alone, with the others waiting", func(l *v1alpha1.DistLock) bool {
		return len(l.Status.Holders) == 1 && len(l.Status.Queue) == 2
	})
}

// untilEvent waits for an event of a reason in the namespace.
func untilEvent(t *testing.T, ns, reason string) {
	t.Helper()
	w, err := admin.Watch(t.Context(), &eventsv1.EventList{}, client.InNamespace(ns))
	must(t, err)
	defer w.Stop()
	found := make(chan struct{})
	go func() {
		for e := range w.ResultChan() {
			if e, ok := e.Object.(*eventsv1.Event); ok && e.Reason == reason {
				close(found)
				return
			}
		}
	}()
	await(t, found, "the event "+reason)
}
