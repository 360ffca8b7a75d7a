package controllers_test

import (
	"context"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// Reproductions of what was found wrong.

func TestALockThatIsBeingDeletedIsGrantedToNobody(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	l := &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "nightly", Finalizers: []string{"example.com/f"}}}
	must(t, admin.Create(t.Context(), l))
	must(t, admin.Delete(t.Context(), l))
	jobOn(t, ns, "a", "nightly")
	claim := untilClaim(t, claimOn(t, ns, "claim", "nightly", nil), v1alpha1.ReasonWaiting)
	if held := untilQueued(t, ns, "nightly", 2); len(held.Status.Holders) > 0 {
		t.Errorf("held by %+v", held.Status.Holders)
	}
	must(t, admin.Patch(t.Context(), l, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	untilClaim(t, claim, v1alpha1.ReasonLockNotFound)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	untilStarted(t, ns, "a")
}

func TestALeaseExpiresAlthoughAFinalizerKeepsItsClaim(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	claim := &v1alpha1.LockClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "killed", Finalizers: []string{"example.com/f"}},
		Spec:       v1alpha1.LockClaimSpec{LockName: "nightly", LeaseDurationSeconds: new(int32(3))},
	}
	must(t, admin.Create(t.Context(), claim))
	untilLock(t, ns, "nightly", "held", func(l *v1alpha1.DistLock) bool { return len(l.Status.Holders) == 1 })
	untilClaim(t, claimOn(t, ns, "next", "nightly", nil), v1alpha1.ReasonGranted)
	must(t, admin.Patch(t.Context(), claim, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
}

func TestAStartThatAnotherPolicyRefusesIsToldOnTheJob(t *testing.T) {
	ns := namespace(t)
	c := startController(t, ns)
	refuseJobUpdates(t, ns, "jobs")
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	j := jobOn(t, ns, "a", "nightly")
	untilLock(t, ns, "nightly", "held", heldBy(j))
	untilEvent(t, ns, "JobUpdateRefused")
	if n, ok := c.figure(t, "distlock_refused_job_updates_total", nil); !ok || n < 1 {
		t.Errorf("%v refusals are counted", n)
	}
	must(t, admin.Delete(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
	untilStarted(t, ns, "a")
}

// refuseJobUpdates is a policy of somebody else, with the default reason Invalid,
// for jobs or jobs/status.
func refuseJobUpdates(t *testing.T, ns, resource string) {
	t.Helper()
	probe := jobOn(t, ns, "probe", "")
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{"batch"}, APIVersions: []string{"v1"}, Resources: []string{resource}},
				},
			}}},
			Validations: []admissionregistrationv1.Validation{{Expression: "false", Message: "every Job needs the label team"}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: ns, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			MatchResources: &admissionregistrationv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}},
			},
		},
	}
	for _, o := range []client.Object{policy, binding} {
		must(t, admin.Create(t.Context(), o))
		t.Cleanup(func() { _ = admin.Delete(context.WithoutCancel(t.Context()), o) })
	}
	must(t, wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		var err error
		if _, status := strings.CutSuffix(resource, "/status"); status {
			err = admin.Status().Patch(ctx, probe, client.RawPatch(types.MergePatchType, []byte(`{"status":{"ready":0}}`)), client.DryRunAll)
		} else {
			err = admin.Patch(ctx, probe, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`)), client.DryRunAll)
		}
		return apierrors.IsInvalid(err), client.IgnoreNotFound(ignoreInvalid(err))
	}))
}

func ignoreInvalid(err error) error {
	if apierrors.IsInvalid(err) {
		return nil
	}
	return err
}

func TestARevocationWithAnOldTimeSendsTheJobToTheEndAllTheSame(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	pod := podOf(t, a)
	b := jobOn(t, ns, "b", "nightly")
	untilQueued(t, ns, "nightly", 1)
	revokeAt(t, ns, ownerOf(a), time.Now().Add(-time.Hour))
	untilJob(t, ns, "a", "suspended", suspended)
	setPhase(t, pod, corev1.PodFailed)
	untilLock(t, ns, "nightly", "held by b", heldBy(b))
}

func TestASecondRevocationWithTheSameTimeCounts(t *testing.T) {
	ns := namespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	a := jobOn(t, ns, "a", "nightly")
	for range 2 {
		pod := podOf(t, a)
		revokeAt(t, ns, ownerOf(a), at)
		untilJob(t, ns, "a", "suspended", suspended)
		setPhase(t, pod, corev1.PodFailed)
		untilStarted(t, ns, "a")
	}
}

func revokeAt(t *testing.T, ns, owner string, at time.Time) {
	t.Helper()
	h := &holder{ns: ns, lock: "nightly"}
	must(t, h.write(t.Context(), func(s protocol.State) (protocol.State, error) { return s.Revoke(owner, at) }))
}

func TestNamesThatCannotBeLookedUpAreRefused(t *testing.T) {
	ns := namespace(t)
	for _, name := range []string{"a/b", "..", "Nightly", "a b"} {
		err := admin.Create(t.Context(), &v1alpha1.LockClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "c-"}, Spec: v1alpha1.LockClaimSpec{LockName: name},
		})
		if err == nil || !strings.Contains(err.Error(), "spec.lockName") {
			t.Errorf("a claim on %q: %v, want a refusal that names spec.lockName", name, err)
		}
	}
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	h := &holder{ns: ns, lock: "nightly"}
	err := h.write(t.Context(), func(s protocol.State) (protocol.State, error) {
		s.Status.Queue = []v1alpha1.Waiter{{
			Owner: "x", Mode: v1alpha1.Exclusive, Permits: 1,
			Ref: &v1alpha1.ObjectRef{APIVersion: "batch/v1", Kind: "Job", Name: "", UID: "u"},
		}}
		return s, nil
	})
	if err == nil || !strings.Contains(err.Error(), "ref.name") {
		t.Errorf("a waiter without a name: %v, want a refusal that names ref.name", err)
	}
}

// The API server's clock, by which the others joined the queue, is ahead of the
// controller's.
func TestARevokedJobGoesToTheEndOfTheQueueAlthoughTheControllersClockIsBehind(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	c := &jumpingClock{}
	c.seconds.Add(-3600)
	startController(t, ns, func(s *settings) { s.clock = c })
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	pod := podOf(t, a)
	b := jobOn(t, ns, "b", "nightly")
	untilQueued(t, ns, "nightly", 1)
	revoke(t, ns, "nightly", ownerOf(a))
	untilJob(t, ns, "a", "suspended", suspended)
	setPhase(t, pod, corev1.PodFailed)
	l := untilLock(t, ns, "nightly", "held by the next", func(l *v1alpha1.DistLock) bool {
		return len(l.Status.Holders) == 1 && l.Status.Holders[0].RevokeTime == nil
	})
	if !heldBy(b)(l) {
		t.Errorf("held by %s, and b waits", l.Status.Holders[0].Owner)
	}
}

// A deletion is not guarded by a resourceVersion, and what the cache shows of the
// hold is older than its lease.
func TestTheClaimOfALiveHoldIsNotDeletedAlthoughTheWatchOnItsLockIsStuck(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	c := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	claim := claimOn(t, ns, "holder", "nightly", new(int32(3)))
	l := untilLock(t, ns, "nightly", "held", heldByClaim(claim))
	c.untilFigure(t, "distlock_holds", 1)
	c.gate("distlocks").Lock()
	t.Cleanup(c.gate("distlocks").Unlock)
	h := &holder{ns: ns, lock: "nightly", owner: "claim/" + string(claim.UID), lease: 3, token: l.Status.FencingToken}
	h.renewTimes(t, 6) // more than the lease and its margin
	must(t, admin.Get(t.Context(), client.ObjectKeyFromObject(claim), claim))
}

// The Job's own pod has failed, and the one in its place is under way. The foreign pod
// itself breaks the law: it names the lock, and has no hold.
func TestAPodOfSomebodyElsesThatBearsAJobsUIDEndsNoHold(t *testing.T) {
	t.Parallel()
	ns := lawlessNamespace(t)
	startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	a := jobOn(t, ns, "a", "nightly")
	pod := podOf(t, a)
	next := untilClaim(t, claimOn(t, ns, "next", "nightly", nil), v1alpha1.ReasonWaiting)
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "owner"}}
	must(t, admin.Create(t.Context(), owner))
	foreign := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: "foreign",
			Labels:          map[string]string{v1alpha1.GatedLabel: "true", batchv1.ControllerUidLabel: string(a.UID)},
			Annotations:     map[string]string{v1alpha1.LockAnnotation: "nightly"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: new(true)}},
		},
		Spec: pod.Spec,
	}
	foreign.Spec.NodeName = node
	must(t, admin.Create(t.Context(), foreign))
	setPhase(t, foreign, corev1.PodSucceeded)
	reached, letGo := holdUpPods(t, ns, "a")
	defer letGo()
	setPhase(t, pod, corev1.PodFailed)
	await(t, reached, "the pod in the failed one's place")
	if l := look(t, ns, "nightly"); !heldBy(a)(l) {
		t.Errorf("the hold ended while a pod was under way: %+v", l.Status)
	}
	letGo()
	setPhase(t, podOf(t, a), corev1.PodSucceeded)
	untilClaim(t, next, v1alpha1.ReasonGranted)
}
