package controllers_test

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// A new leader's caches lack the holder's Job, for as long as it takes: its clock
// is far past every grace. The Job has no pod yet that a LIST would show.
func TestFault36TheHoldersJobIsNotInANewLeadersCache(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	first := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	reached, letGo := holdUpPods(t, ns, "a")
	a := jobOn(t, ns, "a", "nightly")
	b := jobOn(t, ns, "b", "nightly")
	await(t, reached, "the pod of a")
	before := untilQueued(t, ns, "nightly", 1)
	first.kill()

	clk := &steppedClock{}
	blind := startController(t, ns, blindTo(map[string]string{"jobs": "a"}), readsClock(clk))
	for range 2 {
		if l := look(t, ns, "nightly"); !heldBy(a)(l) || l.Status.FencingToken != before.Status.FencingToken {
			t.Fatalf("a live hold was ended: %+v", l.Status)
		}
		clk.step(10 * time.Minute)
	}
	letGo()
	setPhase(t, podOf(t, a), corev1.PodSucceeded)
	untilJob(t, ns, "a", "completed", completed)
	blind.kill()
	startController(t, ns)
	untilStarted(t, ns, b.Name)
}

func TestFault36AWaitersJobIsNotInANewLeadersCache(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	first := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	holder := untilClaim(t, claimOn(t, ns, "holder", "nightly", nil), v1alpha1.ReasonGranted)
	a := jobOn(t, ns, "a", "nightly")
	untilQueued(t, ns, "nightly", 1)
	jobOn(t, ns, "b", "nightly")
	untilQueued(t, ns, "nightly", 2)
	first.kill()

	startController(t, ns, blindTo(map[string]string{"jobs": "a"}))
	look(t, ns, "nightly")
	must(t, admin.Delete(t.Context(), holder))
	untilLock(t, ns, "nightly", "held by a, which waited longest", heldBy(a))
	setPhase(t, podOf(t, a), corev1.PodSucceeded)
	untilJob(t, ns, "a", "completed", completed)
}

func TestFault36TheHoldersClaimIsNotInANewLeadersCache(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	first := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	holder := untilClaim(t, claimOn(t, ns, "holder", "nightly", nil), v1alpha1.ReasonGranted)
	waiter := untilClaim(t, claimOn(t, ns, "waiter", "nightly", nil), v1alpha1.ReasonWaiting)
	first.kill()

	clk := &steppedClock{}
	blind := startController(t, ns, blindTo(map[string]string{"lockclaims": "holder"}), readsClock(clk))
	for range 2 {
		l := look(t, ns, "nightly")
		if len(l.Status.Holders) != 1 || l.Status.FencingToken != holder.Status.FencingToken {
			t.Fatalf("a live hold was ended: %+v", l.Status)
		}
		clk.step(10 * time.Minute)
	}
	must(t, admin.Delete(t.Context(), holder))
	look(t, ns, "nightly")
	untilClaim(t, waiter, v1alpha1.ReasonGranted)
	blind.kill()
}

// Everything that DistLock knows is in the namespace: a lock held by a Job with a
// Job behind it, one held by a claim with a claim behind it, and one held under a
// lease.
func TestFault30ANamespaceIsDeleted(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	pod := podOf(t, a)
	b := jobOn(t, ns, "b", "nightly")
	untilQueued(t, ns, "nightly", 1)
	lockIn(t, ns, "service", v1alpha1.DistLockSpec{})
	untilClaim(t, claimOn(t, ns, "holder", "service", nil), v1alpha1.ReasonGranted)
	untilClaim(t, claimOn(t, ns, "waiter", "service", nil), v1alpha1.ReasonWaiting)
	newHolder(t, ns, "leased", 3600)
	claimOn(t, ns, "leased", "leased", new(int32(3600)))
	lockIn(t, ns, "free", v1alpha1.DistLockSpec{})
	jobOn(t, ns, "lockless", "missing")

	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	must(t, admin.Delete(t.Context(), space))
	pod = untilPod(t, pod, "told to end", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	if pods := podsOf(t, b); len(pods) > 0 {
		t.Errorf("b has %d pods beside a's", len(pods))
	}
	setPhase(t, pod, corev1.PodFailed) // as the kubelet does, and then:
	must(t, client.IgnoreNotFound(admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0))))
	untilGone(t, space)
	for _, list := range []client.ObjectList{&v1alpha1.DistLockList{}, &v1alpha1.LockClaimList{}, &batchv1.JobList{}, &corev1.PodList{}} {
		must(t, admin.List(t.Context(), list, client.InNamespace(ns)))
		if n := meta.LenList(list); n > 0 {
			t.Errorf("%d are left in %T", n, list)
		}
	}
}

// untilGone waits for the end of a namespace that is being deleted.
func untilGone(t *testing.T, space *corev1.Namespace) {
	t.Helper()
	w, err := admin.Watch(t.Context(), &corev1.NamespaceList{}, client.MatchingFields{"metadata.name": space.Name})
	must(t, err)
	defer w.Stop()
	gone := make(chan struct{})
	go func() {
		for e := range w.ResultChan() {
			if e.Type == watch.Deleted {
				close(gone)
				return
			}
		}
	}()
	if apierrors.IsNotFound(admin.Get(t.Context(), client.ObjectKeyFromObject(space), space)) {
		return
	}
	await(t, gone, "the end of the namespace")
}
