package controllers_test

import (
	"strconv"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// scenario is a story of the lock "nightly" that ends with the lock free and
// nobody waiting. It relies on what must come about, whichever instance does it.
type scenario struct {
	name      string
	namespace func(*testing.T) string
	arrange   func(t *testing.T, ns string) // before any controller runs
	play      func(t *testing.T, ns string)
	revoked   string // the Job whose hold is taken away
}

var scenarios = []scenario{
	{name: "a Job after another", namespace: namespace, play: playHandover},
	{name: "a revocation", namespace: namespace, play: playRevocation, revoked: "a"},
	{name: "an expiry", namespace: namespace, play: playExpiry},
	{name: "bound claims", namespace: namespace, play: playBoundClaims},
	{name: "an intruder", namespace: lawlessNamespace, arrange: arrangeIntruder, play: playIntruder, revoked: "intruder"},
}

func playHandover(t *testing.T, ns string) {
	a := jobOn(t, ns, "a", "nightly")
	pod := running(t, a)
	b := jobOn(t, ns, "b", "nightly")
	untilQueued(t, ns, "nightly", 1)
	setPhase(t, pod, corev1.PodSucceeded)
	setPhase(t, running(t, b), corev1.PodSucceeded)
}

func playRevocation(t *testing.T, ns string) {
	a := jobOn(t, ns, "a", "nightly")
	running(t, a)
	b := jobOn(t, ns, "b", "nightly")
	untilQueued(t, ns, "nightly", 1)
	revoke(t, ns, "nightly", ownerOf(a))
	stop(t, ns, "a")
	setPhase(t, running(t, b), corev1.PodSucceeded)
	setPhase(t, running(t, a), corev1.PodSucceeded) // its second run
}

func playExpiry(t *testing.T, ns string) {
	dead := claimOn(t, ns, "dead", "nightly", new(int32(3)))
	held := untilLock(t, ns, "nightly", "held by the dead one", heldByClaim(dead))
	next := untilClaim(t, claimOn(t, ns, "next", "nightly", nil), v1alpha1.ReasonGranted)
	if next.Status.FencingToken <= held.Status.FencingToken {
		t.Errorf("token %d after token %d", next.Status.FencingToken, held.Status.FencingToken)
	}
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(dead), dead); !apierrors.IsNotFound(err) {
		t.Errorf("the expired claim: %v, want not found", err)
	}
	must(t, admin.Delete(t.Context(), next))
}

func playBoundClaims(t *testing.T, ns string) {
	first := untilClaim(t, claimOn(t, ns, "first", "nightly", nil), v1alpha1.ReasonGranted)
	second := claimOn(t, ns, "second", "nightly", nil)
	untilQueued(t, ns, "nightly", 1)
	revoke(t, ns, "nightly", "claim/"+string(first.UID))
	untilClaim(t, first, v1alpha1.ReasonRevoked)
	must(t, admin.Delete(t.Context(), first))
	must(t, admin.Delete(t.Context(), untilClaim(t, second, v1alpha1.ReasonGranted)))
}

func arrangeIntruder(t *testing.T, ns string) {
	j := jobOn(t, ns, "intruder", "nightly")
	asController, err := client.New(controllerConfig, client.Options{Scheme: admin.Scheme()})
	must(t, err)
	must(t, asController.Patch(t.Context(), j, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":false}}`))))
	podOf(t, j)
}

func playIntruder(t *testing.T, ns string) {
	later := jobOn(t, ns, "later", "nightly")
	var intruder batchv1.Job
	must(t, admin.Get(t.Context(), types.NamespacedName{Namespace: ns, Name: "intruder"}, &intruder))
	untilLock(t, ns, "nightly", "held by the intruder, who must go", func(l *v1alpha1.DistLock) bool {
		return heldBy(&intruder)(l) && l.Status.Holders[0].RevokeTime != nil
	})
	untilQueued(t, ns, "nightly", 1)
	if j := untilJob(t, ns, "later", "there", func(*batchv1.Job) bool { return true }); !suspended(j) {
		t.Error("another Job was started beside the intruder's pod")
	}
	stop(t, ns, "intruder")
	setPhase(t, running(t, later), corev1.PodSucceeded)
	setPhase(t, running(t, &intruder), corev1.PodSucceeded)
}

// running waits for a pod of a Job and sets it running, with the lock held by the
// Job and the pod bearing the hold's token.
func running(t *testing.T, j *batchv1.Job) *corev1.Pod {
	t.Helper()
	pod := podOf(t, j)
	l := untilLock(t, j.Namespace, "nightly", "held by "+j.Name, heldBy(j))
	if token := strconv.FormatInt(l.Status.Holders[0].FencingToken, 10); pod.Annotations[v1alpha1.TokenAnnotation] != token {
		t.Errorf("the pod of %s bears token %s, its hold %s", j.Name, pod.Annotations[v1alpha1.TokenAnnotation], token)
	}
	return pod
}

func heldByClaim(c *v1alpha1.LockClaim) func(*v1alpha1.DistLock) bool {
	return func(l *v1alpha1.DistLock) bool {
		return len(l.Status.Holders) == 1 && l.Status.Holders[0].Owner == "claim/"+string(c.UID)
	}
}
