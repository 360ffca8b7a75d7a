package controllers_test

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// What is behind a hold was never in the cache of the controller, so that no watch
// tells of its end: it came while the watch was away, and went before it was back.
func TestALockGoesOnAlthoughNoWatchTellsOfItsHoldersEnd(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]struct {
		hidden map[string]string
		hold   func(t *testing.T, ns string) (end func())
	}{
		"a bound claim that is deleted": {map[string]string{"lockclaims": "holder"}, func(t *testing.T, ns string) func() {
			holder := untilClaim(t, claimOn(t, ns, "holder", "nightly", nil), v1alpha1.ReasonGranted)
			return func() { must(t, admin.Delete(t.Context(), holder)) }
		}},
		"a leased claim whose lease runs out": {map[string]string{"lockclaims": "holder"}, func(t *testing.T, ns string) func() {
			holder := claimOn(t, ns, "holder", "nightly", new(int32(3)))
			untilLock(t, ns, "nightly", "held", heldByClaim(holder))
			return func() {}
		}},
		"a Job that completes": {map[string]string{"jobs": "holder"}, func(t *testing.T, ns string) func() {
			holder := jobOn(t, ns, "holder", "nightly", func(j *batchv1.Job) { manyPods["two-at-once"](&j.Spec) })
			pods := somePodsOf(t, holder, 2)
			return func() {
				for _, p := range pods {
					setPhase(t, p, corev1.PodSucceeded)
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := namespace(t)
			first := startController(t, ns)
			lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
			end := r.hold(t, ns)
			next := untilClaim(t, claimOn(t, ns, "next", "nightly", nil), v1alpha1.ReasonWaiting)
			first.kill()
			startController(t, ns, blindTo(r.hidden))
			look(t, ns, "nightly")
			end()
			untilClaim(t, next, v1alpha1.ReasonGranted)
		})
	}
}

// Where the policies are missing anybody can do this.
func TestTheHoldOfAJobThatNamesItsLockNoMoreEndsWithTheJob(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly", func(j *batchv1.Job) { manyPods["two-at-once"](&j.Spec) })
	pods := somePodsOf(t, a, 2)
	next := untilClaim(t, claimOn(t, ns, "next", "nightly", nil), v1alpha1.ReasonWaiting)
	patchAsController(t, a, `{"metadata":{"annotations":{"distlock.dev/lock":null}}}`)
	if l := look(t, ns, "nightly"); !heldBy(a)(l) {
		t.Fatalf("the lock went on while the pods were there: %+v", l.Status)
	}
	for _, p := range pods {
		setPhase(t, p, corev1.PodSucceeded)
	}
	untilClaim(t, next, v1alpha1.ReasonGranted)
}
