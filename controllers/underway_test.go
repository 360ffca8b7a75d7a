package controllers_test

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// The Job controller creates pods that were under way when it learns that the
// Job was suspended or deleted. The law's judge sees each of them.
func TestFault35AWideJobIsStoppedAMomentAfterItsResume(t *testing.T) {
	wide := func(j *batchv1.Job) { j.Spec.Parallelism, j.Spec.Completions = ptr.To(int32(200)), ptr.To(int32(200)) }
	for name, stop := range map[string]func(*testing.T, *batchv1.Job){
		"suspended": func(t *testing.T, j *batchv1.Job) { revoke(t, j.Namespace, "nightly", ownerOf(j)) },
		"deleted": func(t *testing.T, j *batchv1.Job) {
			must(t, admin.Delete(t.Context(), j, client.PropagationPolicy(metav1.DeletePropagationBackground)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t)
			startController(t, ns)
			lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
			a := jobOn(t, ns, "wide", "nightly", wide)
			b := jobOn(t, ns, "next", "nightly")
			untilJob(t, ns, "wide", "resumed", func(j *batchv1.Job) bool { return !suspended(j) })
			stop(t, a)
			untilStarted(t, ns, b.Name)
			setPhase(t, podOf(t, b), "Succeeded")
			untilLock(t, ns, "nightly", "let go by next", func(l *v1alpha1.DistLock) bool {
				return len(l.Status.Holders) == 0 || strings.HasPrefix(l.Status.Holders[0].Owner, "job/wide/")
			})
		})
	}
}
