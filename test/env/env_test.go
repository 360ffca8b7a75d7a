package env

import (
	"context"
	"os"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

var shared *Env

func TestMain(m *testing.M) {
	os.Exit(Main(m, func(_ context.Context, e *Env) error { shared = e; return nil }))
}

// With nothing waited for here: it must be in effect from the first test on.
func TestThePoliciesAreInEffect(t *testing.T) {
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: shared.Namespace(t), Name: "gated",
			Annotations: map[string]string{v1alpha1.LockAnnotation: "lock"},
		},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "main", Image: "example.com/work"}},
		}}},
	}
	if err := shared.Client().Create(t.Context(), job, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if !ptr.Deref(job.Spec.Suspend, false) {
		t.Error("the Job was not gated")
	}
	job.Annotations["distlock.dev/unknown"] = "x"
	job.ResourceVersion = ""
	if err := shared.Client().Create(t.Context(), job, client.DryRunAll); err == nil {
		t.Error("an unknown annotation was let through")
	}
}

func TestTheControllerActsUnderItsOwnAccount(t *testing.T) {
	config, err := shared.ControllerConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.List(t.Context(), &v1alpha1.LockClaimList{}); err != nil {
		t.Error(err)
	}
	if err := c.List(t.Context(), &corev1.SecretList{}); err == nil {
		t.Error("it may read Secrets")
	}
}
