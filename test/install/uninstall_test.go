// Package install does what the README tells a user to do, with the README's own
// commands.
package install

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/test/env"
)

const patience = time.Minute

var testEnv *env.Env

func TestMain(m *testing.M) {
	os.Exit(env.Main(m, func(_ context.Context, e *env.Env) error { testEnv = e; return nil }, env.Pods))
}

func TestUninstallingLeavesEveryJobAsItWas(t *testing.T) {
	ns := testEnv.Namespace(t)
	testEnv.RunController(t)
	create(t, &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "ledger"}})
	for name, lock := range map[string]string{"ordinary": "", "paused": "", "holder": "ledger"} {
		create(t, job(ns, name, lock))
	}
	paused := get(t, ns, "paused", func(*batchv1.Job) bool { return true })
	must(t, testEnv.Client().Patch(t.Context(), paused, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"suspend":true}}`))))
	ordinary := get(t, ns, "ordinary", running)
	holder := get(t, ns, "holder", running)
	create(t, job(ns, "waiter", "ledger"))
	waiter := get(t, ns, "waiter", func(j *batchv1.Job) bool { return len(j.Status.Conditions) > 0 })

	t.Log(testEnv.Shell(t, env.Root(t), ns, env.Commands(t, "README.md", "uninstall")))

	for _, was := range []*batchv1.Job{ordinary, holder, waiter} {
		now := get(t, ns, was.Name, func(*batchv1.Job) bool { return true })
		if now.Generation != was.Generation || suspended(now) != suspended(was) || now.UID != was.UID {
			t.Errorf("%s: generation %d, suspended %t; before %d and %t", was.Name, now.Generation, suspended(now), was.Generation, suspended(was))
		}
	}
	noFinalizers(t, ns)

	dir := t.TempDir()
	if out := testEnv.Shell(t, dir, ns, env.Commands(t, "README.md", "waiting")); out != ns+" waiter\n" {
		t.Errorf("listed as waiting: %q, want only the waiter", out)
	}
	testEnv.Shell(t, dir, ns, env.Commands(t, "README.md", "resume"))
	get(t, ns, "waiter", running)
	if !suspended(get(t, ns, "paused", func(*batchv1.Job) bool { return true })) {
		t.Error("a Job that was never behind a lock was started")
	}
	create(t, job(ns, "later", "ledger"))
	get(t, ns, "later", running) // the annotation means nothing now
}

func job(ns, name, lock string) *batchv1.Job {
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "main", Image: "example.com/work"}},
		}}},
	}
	if lock != "" {
		j.Annotations = map[string]string{v1alpha1.LockAnnotation: lock}
	}
	return j
}

func create(t *testing.T, o client.Object) {
	t.Helper()
	must(t, testEnv.Client().Create(t.Context(), o))
}

// get waits until a Job is as wanted.
func get(t *testing.T, ns, name string, wanted func(*batchv1.Job) bool) *batchv1.Job {
	t.Helper()
	j := &batchv1.Job{}
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := testEnv.Client().Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, j)
		return err == nil && wanted(j), err
	})
	if err != nil {
		t.Fatalf("Job %s: %v; last seen %+v", name, err, j.Status)
	}
	return j
}

func suspended(j *batchv1.Job) bool { return ptr.Deref(j.Spec.Suspend, false) }

func running(j *batchv1.Job) bool { return !suspended(j) && ptr.Deref(j.Status.Ready, 0) > 0 }

// noFinalizers fails for each finalizer of DistLock's.
func noFinalizers(t *testing.T, ns string) {
	t.Helper()
	out, err := testEnv.Kubectl(t.Context(), "get", "jobs,cronjobs,pods", "-n", ns, "-o", "jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.finalizers}{\"\\n\"}{end}")
	must(t, err)
	if strings.Contains(string(out), "distlock") {
		t.Errorf("finalizers: %s", out)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("%w", err))
	}
}
