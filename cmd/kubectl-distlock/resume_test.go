package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/test/env"
)

// On a control plane of its own, from which DistLock is taken away piece by piece:
// as long as one is left, nothing is resumed.
func TestWaitingJobsAreResumedAfterAnUninstall(t *testing.T) {
	e, err := env.Start(t.Context())
	must(t, err)
	t.Cleanup(func() { must(t, e.Stop()) })
	c, ns := e.Client(), e.Namespace(t)
	for _, name := range []string{"one", "two", "three"} {
		must(t, c.Create(t.Context(), gated(ns, name)))
	}
	plugin := func(args ...string) result {
		var out, errOut bytes.Buffer
		all := append([]string{"--kubeconfig", e.Kubeconfig(), "-n", ns}, args...)
		code := execute(t.Context(), all, genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut})
		return result{out.String(), errOut.String(), code}
	}
	kubectl := func(args ...string) {
		t.Helper()
		if _, err := e.Kubectl(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	root := env.Root(t)

	plugin("waiting", "--resume", "--all").ends(t, exitFailed, "CRD distlocks.distlock.dev is there")
	kubectl("delete", "-k", root+"/config/crd")
	plugin("waiting", "--resume", "--all").ends(t, exitFailed, "policy distlock-gate-jobs is there")
	kubectl("delete", "-f", root+"/config/policy/gate-jobs.yaml")
	plugin("waiting", "--resume", "--all").ends(t, exitFailed, "policy distlock-guard-jobs is there")
	kubectl("delete", "-k", root+"/config/policy", "--ignore-not-found")
	controller := deployment()
	must(t, c.Create(t.Context(), controller))
	plugin("waiting", "--resume", "--all").ends(t, exitFailed, "controller distlock-controller-manager is there")
	must(t, c.Delete(t.Context(), controller))

	plugin("list").ends(t, exitFailed, "not installed")
	if out := plugin("waiting").ok(t).out; !strings.Contains(out, "one") || strings.Count(out, "\n") != 4 {
		t.Errorf("lists\n%s", out)
	}
	resumed(t, func() result { return plugin("waiting", "--resume", "two") })
	wantSuspended(t, c, ns, map[string]bool{"one": true, "two": false, "three": true})
	plugin("waiting", "--resume", "two").ends(t, exitFailed, "JOB")
	plugin("waiting", "--resume", "--all").ends(t, 0, "job.batch/one", "job.batch/three")
	wantSuspended(t, c, ns, map[string]bool{"one": false, "two": false, "three": false})
	plugin("waiting", "--resume", "--all").ends(t, 0, "no Jobs wait")
}

// resumed waits until the policies that are deleted have no effect any more.
func resumed(t *testing.T, plugin func() result) {
	t.Helper()
	var last result
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		last = plugin()
		if last.code != 0 && !strings.Contains(last.err, "spec.suspend: belongs to DistLock") {
			t.Fatalf("refused for another reason than the guard's: %s", last.err)
		}
		return last.code == 0, nil
	})
	if err != nil {
		t.Fatalf("never resumed: %s", last.err)
	}
}

func wantSuspended(t *testing.T, c client.Client, ns string, want map[string]bool) {
	t.Helper()
	for name, suspended := range want {
		j := &batchv1.Job{}
		must(t, c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, j))
		if ptr.Deref(j.Spec.Suspend, false) != suspended {
			t.Errorf("Job %s is suspended: %t", name, !suspended)
		}
	}
}

func gated(ns, name string) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: map[string]string{v1alpha1.LockAnnotation: "ledger"}},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "main", Image: "example.com/work"}},
		}}},
	}
}

func deployment() *appsv1.Deployment {
	app := map[string]string{"app": "controller"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.ControllerNamespace, Name: v1alpha1.ControllerServiceAccount},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: app},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/controller"}}},
			},
		},
	}
}
