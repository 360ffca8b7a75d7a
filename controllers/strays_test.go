package controllers_test

import (
	"net/http"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// A Job that runs without the lock is deleted while somebody holds it: there is no
// hold that would last until its pods have ended.
func TestNobodyIsGrantedTheLockBesideThePodsOfAnIntruderThatIsDeleted(t *testing.T) {
	t.Parallel()
	for name, suspendFirst := range map[string]bool{"after it was suspended": true, "while it runs": false} {
		for _, propagation := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
			t.Run(name+" in the "+string(propagation), func(t *testing.T) {
				t.Parallel()
				ns := lawlessNamespace(t)
				c := startController(t, ns)
				lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
				holder := untilClaim(t, claimOn(t, ns, "holder", "nightly", nil), v1alpha1.ReasonGranted)
				later, intruder := jobOn(t, ns, "later", "nightly"), jobOn(t, ns, "intruder", "nightly")
				untilQueued(t, ns, "nightly", 2)
				found, letGo := c.holdUp(writes(http.MethodPatch, "/jobs/intruder"))
				defer letGo()
				patchAsController(t, intruder, `{"spec":{"suspend":false}}`)
				await(t, found, "the suspension")
				pod := podOf(t, intruder)
				if suspendFirst {
					letGo()
					untilJob(t, ns, "intruder", "known to be suspended", isStopped)
				}
				must(t, admin.Delete(t.Context(), intruder, client.PropagationPolicy(propagation)))
				letGo()
				look(t, ns, "nightly")

				must(t, admin.Delete(t.Context(), holder))
				untilLock(t, ns, "nightly", "let go by the claim", func(l *v1alpha1.DistLock) bool { return !heldByClaim(holder)(l) })
				if l := look(t, ns, "nightly"); heldBy(later)(l) {
					t.Fatalf("the lock went on while the pod was there: %+v", l.Status)
				}
				setPhase(t, pod, corev1.PodFailed)
				setPhase(t, podOf(t, later), corev1.PodSucceeded)
				untilFree(t, ns, "nightly")
			})
		}
	}
}

// patchAsController writes to a Job what the policies let nobody else write: whoever
// takes them away can do the same.
func patchAsController(t *testing.T, j *batchv1.Job, patch string) {
	t.Helper()
	asController, err := client.New(controllerConfig, client.Options{Scheme: admin.Scheme()})
	must(t, err)
	must(t, asController.Patch(t.Context(), j.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch))))
}
