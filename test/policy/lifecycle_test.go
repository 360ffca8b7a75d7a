package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The guards hinder none of those who work on Jobs: here the Job controller,
// the scheduler and the kubelet write what they write.
func TestAGatedJobRunsToItsEndWithItsTokenOnceTheControllerStartsIt(t *testing.T) {
	const name, container = "nightly", "main"
	job := newJob(newNamespace(t), locked, command("sh", "-c", `echo "$DISTLOCK_NAME $DISTLOCK_FENCING_TOKEN $MINE"`),
		variables(corev1.EnvVar{Name: "MINE", Value: "$(DISTLOCK_FENCING_TOKEN)"}))
	if err := author.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	awaitJob(t, job, "is suspended", func() bool { return isTrue(job, batchv1.JobSuspended) })
	if pods := podsOf(t, job); len(pods) != 0 {
		t.Fatalf("%d pods before the grant", len(pods))
	}
	resume(t, job)
	awaitJob(t, job, "is complete", func() bool { return isTrue(job, batchv1.JobComplete) })

	pod := podsOf(t, job)[0]
	if pod.Annotations["distlock.dev/fencing-token"] != "7" || pod.Annotations["distlock.dev/lock"] != name || pod.Labels["distlock.dev/gated"] != "true" {
		t.Errorf("the pod has annotations %v and labels %v", pod.Annotations, pod.Labels)
	}
	said, err := os.ReadFile(controlPlane.Pods.LogFile(&pod, container))
	if err != nil || string(said) != name+" 7 7\n" {
		t.Errorf("the pod said %q, %v", said, err)
	}
}

func TestTheJobControllerSuspendsAGatedJobWhenTheControllerSaysSo(t *testing.T) {
	job := runningJob(t, newNamespace(t))
	patchAs(t, controller, job, `{"spec": {"suspend": true}, "metadata": {"annotations": {"distlock.dev/queued-at": "2026-01-01T00:00:00.000000Z"}}}`)
	awaitJob(t, job, "is suspended", func() bool { return isTrue(job, batchv1.JobSuspended) && job.Status.Active == 0 })
	// And again: the token can be changed now.
	patchAs(t, controller, job, `{"spec": {"suspend": false, "template": {"metadata": {"annotations": {"distlock.dev/fencing-token": "8"}}}}}`)
	awaitJob(t, job, "has a pod", func() bool { return job.Status.Active == 1 })
}

func TestTheGarbageCollectorRemovesAGatedJobAndItsPods(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationForeground, metav1.DeletePropagationBackground} {
		t.Run(string(policy), func(t *testing.T) {
			job := runningJob(t, newNamespace(t))
			if err := author.Delete(t.Context(), job, client.PropagationPolicy(policy)); err != nil {
				t.Fatal(err)
			}
			err := eventually(t.Context(), func(ctx context.Context) error {
				if err := admin.Get(ctx, client.ObjectKeyFromObject(job), job); !apierrors.IsNotFound(err) {
					return cmp.Or(err, errors.New("the Job is still there"))
				}
				pods, err := listPods(ctx, job)
				if err == nil && len(pods) != 0 {
					err = fmt.Errorf("%d pods are still there", len(pods))
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func command(words ...string) edit {
	return func(t *batchv1.JobTemplateSpec) { t.Spec.Template.Spec.Containers[0].Command = words }
}

func isTrue(job *batchv1.Job, condition batchv1.JobConditionType) bool {
	for _, c := range job.Status.Conditions {
		if c.Type == condition {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
