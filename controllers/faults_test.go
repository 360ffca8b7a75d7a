package controllers_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

func TestFault01TheControllerIsKilledAndComesBack(t *testing.T) {
	ns := namespace(t)
	first := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	pod := podOf(t, a)
	b := jobOn(t, ns, "b", "nightly")
	before := untilQueued(t, ns, "nightly", 1)
	leased := newHolder(t, ns, "service", 3)

	first.kill()
	leased.renewTimes(t, 2)
	startController(t, ns)
	claim := claimOn(t, ns, "after", "nightly", nil)
	untilClaim(t, claim, v1alpha1.ReasonWaiting) // the new controller has looked at the lock
	leased.renewTimes(t, 5)                      // more than its lease

	after := untilQueued(t, ns, "nightly", 2)
	if h, was := after.Status.Holders[0], before.Status.Holders[0]; h.Owner != was.Owner || h.FencingToken != was.FencingToken {
		t.Errorf("held by %s with token %d, before by %s with %d", h.Owner, h.FencingToken, was.Owner, was.FencingToken)
	}
	if j := untilJob(t, ns, "b", "there", func(*batchv1.Job) bool { return true }); !suspended(j) {
		t.Error("b was started beside a")
	}
	setPhase(t, pod, corev1.PodSucceeded)
	untilStarted(t, ns, b.Name)
	setPhase(t, podOf(t, b), corev1.PodSucceeded)
	untilClaim(t, claim, v1alpha1.ReasonGranted)
}

func TestFault02AHolderAndTwentyWaitersAreDeletedAtOnce(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	untilStarted(t, ns, jobOn(t, ns, "holder", "nightly").Name)
	for i := range 20 {
		jobOn(t, ns, fmt.Sprintf("waiter-%d", i), "nightly")
	}
	untilLock(t, ns, "nightly", "with waiters", func(l *v1alpha1.DistLock) bool { return len(l.Status.Queue) > 0 })

	must(t, admin.DeleteAllOf(t.Context(), &batchv1.Job{}, client.InNamespace(ns), client.PropagationPolicy(metav1.DeletePropagationBackground)))
	untilFree(t, ns, "nightly")
	untilStarted(t, ns, jobOn(t, ns, "next", "nightly").Name)
}

func TestFault06JobsAreCreatedWhileTheControllerIsDown(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	gated := jobOn(t, ns, "gated", "nightly")
	untilJob(t, ns, "gated", "suspended for the Job controller", func(j *batchv1.Job) bool {
		return len(j.Status.Conditions) > 0 && j.Status.Conditions[0].Type == batchv1.JobSuspended
	})
	free := jobOn(t, ns, "free", "")
	setPhase(t, podOf(t, free), corev1.PodSucceeded)
	untilJob(t, ns, "free", "completed", completed)
	if pods := podsOf(t, gated); len(pods) > 0 {
		t.Fatalf("the gated Job has %d pods and nobody granted it the lock", len(pods))
	}
	startController(t, ns)
	untilStarted(t, ns, "gated")
}

func TestFault08TheTokenRisesWhenTheLockIsDeletedAndMadeAnew(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	var last int64
	for i := range 3 {
		j := jobOn(t, ns, fmt.Sprintf("run-%d", i), "nightly")
		held := untilLock(t, ns, "nightly", "held", heldBy(j))
		if held.Status.FencingToken <= last {
			t.Fatalf("token %d after token %d", held.Status.FencingToken, last)
		}
		last = held.Status.FencingToken
		setPhase(t, podOf(t, j), corev1.PodSucceeded)
		must(t, admin.Delete(t.Context(), untilFree(t, ns, "nightly")))
		lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	}
}

func TestFault18ARenewalAndAnExpiryRace(t *testing.T) {
	t.Run("the renewal comes first", func(t *testing.T) {
		ns := namespace(t)
		c := startController(t, ns)
		holder := newHolder(t, ns, "service", 3)
		put := writes(http.MethodPut, "/distlocks/service/status")
		reached, letGo := c.holdUp(put)
		defer letGo()
		await(t, reached, "the expiry") // decided, and not written yet
		holder.renewTimes(t, 1)
		answered := c.answers(put)
		letGo()
		if code := await(t, answered, "the answer to the expiry"); code != http.StatusConflict {
			t.Errorf("the expiry was answered %d", code)
		}
		untilClaim(t, claimOn(t, ns, "next", "service", nil), v1alpha1.ReasonWaiting)
		l := untilQueued(t, ns, "service", 1)
		if len(l.Status.Holders) != 1 || l.Status.FencingToken != holder.token {
			t.Errorf("the renewed hold is gone: %+v", l.Status)
		}
	})
	t.Run("the expiry comes first", func(t *testing.T) {
		ns := namespace(t)
		startController(t, ns)
		holder := newHolder(t, ns, "service", 3)
		claim := untilClaim(t, claimOn(t, ns, "next", "service", nil), v1alpha1.ReasonGranted)
		if err := holder.renew(t.Context()); err == nil {
			t.Error("an expired hold was renewed")
		}
		if l := untilQueued(t, ns, "service", 0); l.Status.FencingToken != claim.Status.FencingToken || claim.Status.FencingToken <= holder.token {
			t.Errorf("tokens: lock %d, claim %d, expired hold %d", l.Status.FencingToken, claim.Status.FencingToken, holder.token)
		}
	})
	t.Run("of two that write from the same version one wins", func(t *testing.T) {
		ns := namespace(t)
		holder := newHolder(t, ns, "service", 3)
		for range 50 {
			l := untilLock(t, ns, "service", "there", func(*v1alpha1.DistLock) bool { return true })
			s, err := protocol.StateOf(l)
			must(t, err)
			renewed, err := s.Renew(holder.owner, holder.token, time.Now())
			must(t, err)
			expired, err := s.Expire(holder.owner, holder.token, time.Minute, time.Now())
			must(t, err)
			expired, err = expired.Grant(protocol.NewWaiter(l.Spec, "next", nil, nil, new(int32(3)), nil), time.Now())
			must(t, err)
			results := make(chan error, 2)
			for _, next := range []protocol.State{renewed, expired} {
				mine := l.DeepCopy()
				mine.Status = next.Status
				go func() { results <- admin.Status().Update(t.Context(), mine) }()
			}
			one, other := <-results, <-results
			if (one == nil) == (other == nil) || !apierrors.IsConflict(fmt.Errorf("%w", errOf(one, other))) {
				t.Fatalf("results %v and %v, want one success and one conflict", one, other)
			}
			l = untilLock(t, ns, "service", "there", func(*v1alpha1.DistLock) bool { return true })
			holder.owner, holder.token = l.Status.Holders[0].Owner, l.Status.Holders[0].FencingToken
			if len(l.Status.Holders) != 1 {
				t.Fatalf("two holds: %+v", l.Status)
			}
			if holder.owner == "next" {
				holder.takeAnew(t)
			}
		}
	})
}

func TestFault25AGrantIsDecidedFromAStaleCache(t *testing.T) {
	ns := namespace(t)
	c := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	reached, letGo := c.holdUp(writes(http.MethodPut, "/distlocks/nightly/status"))
	defer letGo()
	late := jobOn(t, ns, "late", "nightly")
	await(t, reached, "the grant") // decided from a cache that shows a free lock
	holder := &holder{ns: ns, lock: "nightly", lease: 3600}
	holder.takeAnew(t)
	answered := c.answers(writes(http.MethodPut, "/distlocks/nightly/status"))
	letGo()
	if code := await(t, answered, "the answer to the grant"); code != http.StatusConflict {
		t.Errorf("the grant was answered %d", code)
	}
	l := untilQueued(t, ns, "nightly", 1)
	if len(l.Status.Holders) != 1 || l.Status.FencingToken != holder.token {
		t.Errorf("the hold that the cache did not show is gone: %+v", l.Status)
	}
	if l.Status.Queue[0].Owner != ownerOf(late) {
		t.Errorf("%s waits, want %s", l.Status.Queue[0].Owner, ownerOf(late))
	}
}

func TestFault28ManifestsAreAppliedAgain(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	jobOn(t, ns, "a", "nightly")
	untilStarted(t, ns, "a")
	jobOn(t, ns, "b", "nightly")
	before := untilQueued(t, ns, "nightly", 1)

	manifest := func(more string) []byte {
		return []byte(`{"apiVersion":"distlock.dev/v1alpha1","kind":"DistLock","metadata":{"name":"nightly","namespace":"` + ns + `"},"spec":{"leaseDurationSeconds":20}` + more + `}`)
	}
	for name, apply := range map[string]func() error{
		"server-side apply": func() error {
			return admin.Patch(t.Context(), before.DeepCopy(), client.RawPatch(types.ApplyPatchType, manifest("")), client.FieldOwner("gitops"), client.ForceOwnership)
		},
		"server-side apply with a status": func() error {
			return admin.Patch(t.Context(), before.DeepCopy(), client.RawPatch(types.ApplyPatchType, manifest(`,"status":{"fencingToken":0,"holders":[]}`)), client.FieldOwner("gitops"), client.ForceOwnership)
		},
		"merge patch": func() error {
			return admin.Patch(t.Context(), before.DeepCopy(), client.RawPatch(types.MergePatchType, manifest(`,"status":null`)))
		},
		"replace": func() error {
			return retry.RetryOnConflict(retry.DefaultRetry, func() error {
				l := &v1alpha1.DistLock{}
				if err := admin.Get(t.Context(), client.ObjectKeyFromObject(before), l); err != nil {
					return err
				}
				l.Spec.LeaseDurationSeconds, l.Status = 25, v1alpha1.DistLockStatus{}
				return admin.Update(t.Context(), l)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, apply())
			after := untilQueued(t, ns, "nightly", 1)
			if !protocolEqual(before, after) {
				t.Errorf("status before\n%+v\nafter\n%+v", before.Status, after.Status)
			}
		})
	}
}

func TestFault31AStalledResumeComesAfterTheRevocation(t *testing.T) {
	ns := namespace(t)
	stalled := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	reached, letGo := stalled.holdUp(writes(http.MethodPatch, "/jobs/j1"))
	defer letGo()
	j1 := jobOn(t, ns, "j1", "nightly")
	await(t, reached, "the resume of j1")

	startController(t, ns) // another believes to lead; it resumes j1, and revokes it
	j2 := jobOn(t, ns, "j2", "nightly")
	revoke(t, ns, "nightly", ownerOf(j1))
	stop(t, ns, "j1")
	untilLock(t, ns, "nightly", "held by j2", heldBy(j2))
	untilStarted(t, ns, "j2")
	was := untilJob(t, ns, "j1", "suspended", suspended)

	answered := stalled.answers(writes(http.MethodPatch, "/jobs/j1"))
	letGo()
	if code := await(t, answered, "the late resume"); code != http.StatusUnprocessableEntity {
		t.Errorf("the late resume was answered %d", code)
	}
	now := untilJob(t, ns, "j1", "there", func(*batchv1.Job) bool { return true })
	if !suspended(now) || now.Spec.Template.Annotations[v1alpha1.TokenAnnotation] != was.Spec.Template.Annotations[v1alpha1.TokenAnnotation] {
		t.Errorf("j1 was resumed late: %+v", now.Spec.Suspend)
	}
}

// protocolEqual reports whether holders, queue and token are the same.
func protocolEqual(a, b *v1alpha1.DistLock) bool {
	return !protocol.State{Status: a.Status}.Differs(protocol.State{Status: b.Status})
}

func errOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// await receives from a channel, within the test's patience.
func await[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case v := <-c:
		return v
	case <-ctx.Done():
		t.Fatalf("%s never came", what)
		panic("unreachable")
	}
}
