package controllers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/test/env"
	"github.com/distlock-dev/distlock/test/law"
)

// node is where the tests play the kubelet, and scheduler the name of the
// scheduler that they play.
const (
	node      = "played"
	scheduler = "played"
)

// patience is how long anything may take that a test waits for.
const patience = 2 * time.Minute

var (
	controlPlane *env.Env
	// admin arranges, watches and plays the kubelet: no pod runs by itself, except
	// where it names the default scheduler.
	admin client.WithWatch
	// kubeconfig is the admin's, for other processes.
	kubeconfig string
	// controllerConfig is that of DistLock's service account.
	controllerConfig *rest.Config
)

// namespace makes a namespace in which the law is enforced from its stored
// versions.
func namespace(t *testing.T) string {
	t.Helper()
	ns := lawlessNamespace(t)
	law.Enforce(t, admin, ns)
	return ns
}

// lawlessNamespace is for tests that break the law themselves.
func lawlessNamespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	must(t, admin.Create(t.Context(), ns))
	return ns.Name
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func lockIn(t *testing.T, ns, name string, spec v1alpha1.DistLockSpec) *v1alpha1.DistLock {
	t.Helper()
	l := &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: spec}
	must(t, admin.Create(t.Context(), l))
	return l
}

// jobOn creates a Job behind a lock; "" is behind none.
func jobOn(t *testing.T, ns, name, lock string, change ...func(*batchv1.Job)) *batchv1.Job {
	t.Helper()
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			SchedulerName: scheduler,
			Containers:    []corev1.Container{{Name: "main", Image: "example.com/work"}},
		}}},
	}
	if lock != "" {
		j.Annotations = map[string]string{v1alpha1.LockAnnotation: lock}
	}
	for _, f := range change {
		f(j)
	}
	must(t, admin.Create(t.Context(), j))
	return j
}

func claimOn(t *testing.T, ns, name, lock string, lease *int32) *v1alpha1.LockClaim {
	t.Helper()
	c := &v1alpha1.LockClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       v1alpha1.LockClaimSpec{LockName: lock, LeaseDurationSeconds: lease},
	}
	must(t, admin.Create(t.Context(), c))
	return c
}

// until watches one object until it is as wanted, and returns it.
func until[T client.Object](t *testing.T, o T, list client.ObjectList, what string, wanted func(T) bool) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := admin.Watch(ctx, list, client.InNamespace(o.GetNamespace()), client.MatchingFields{"metadata.name": o.GetName()})
	must(t, err)
	defer w.Stop()
	last := o
	for e := range w.ResultChan() {
		now, ok := e.Object.(T)
		if !ok {
			t.Fatalf("watching %s: %v", o.GetName(), e.Object)
		}
		if last = now; e.Type != watch.Deleted && wanted(now) {
			return now
		}
	}
	last.SetManagedFields(nil)
	text, _ := json.MarshalIndent(last, "", " ")
	t.Fatalf("%s: never %s; last seen as\n%s", o.GetName(), what, text)
	return last
}

func untilLock(t *testing.T, ns, name, what string, wanted func(*v1alpha1.DistLock) bool) *v1alpha1.DistLock {
	t.Helper()
	return until(t, &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}, &v1alpha1.DistLockList{}, what, wanted)
}

func untilJob(t *testing.T, ns, name, what string, wanted func(*batchv1.Job) bool) *batchv1.Job {
	t.Helper()
	return until(t, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}, &batchv1.JobList{}, what, wanted)
}

func untilClaim(t *testing.T, c *v1alpha1.LockClaim, reason string) *v1alpha1.LockClaim {
	t.Helper()
	return until(t, c, &v1alpha1.LockClaimList{}, "Granted for the reason "+reason, func(c *v1alpha1.LockClaim) bool {
		return len(c.Status.Conditions) == 1 && c.Status.Conditions[0].Reason == reason
	})
}

func untilStarted(t *testing.T, ns, name string) *batchv1.Job {
	t.Helper()
	return untilJob(t, ns, name, "started", func(j *batchv1.Job) bool { return !suspended(j) && j.Status.StartTime != nil })
}

func untilQueued(t *testing.T, ns, lock string, n int) *v1alpha1.DistLock {
	t.Helper()
	return untilLock(t, ns, lock, fmt.Sprintf("with %d in its queue", n), func(l *v1alpha1.DistLock) bool { return len(l.Status.Queue) == n })
}

func untilFree(t *testing.T, ns, lock string) *v1alpha1.DistLock {
	t.Helper()
	return untilLock(t, ns, lock, "free with nobody waiting", func(l *v1alpha1.DistLock) bool {
		return len(l.Status.Holders) == 0 && len(l.Status.Queue) == 0 && l.Status.Waiting == 0
	})
}

func suspended(j *batchv1.Job) bool { return ptr.Deref(j.Spec.Suspend, false) }

func completed(j *batchv1.Job) bool {
	for _, c := range j.Status.Conditions {
		if c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// ownerOf is the owner name of a Job's hold.
func ownerOf(j *batchv1.Job) string { return "job/" + j.Name + "/" + string(j.UID) }

func heldBy(j *batchv1.Job) func(*v1alpha1.DistLock) bool {
	return func(l *v1alpha1.DistLock) bool {
		return len(l.Status.Holders) == 1 && l.Status.Holders[0].Owner == ownerOf(j)
	}
}

// podOf waits for a Job's pod and sets it running on a node, as a kubelet would.
func podOf(t *testing.T, j *batchv1.Job) *corev1.Pod {
	t.Helper()
	return podOn(t, j, node)
}

func podOn(t *testing.T, j *batchv1.Job, node string) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := admin.Watch(ctx, &corev1.PodList{}, client.InNamespace(j.Namespace), client.MatchingLabels{batchv1.ControllerUidLabel: string(j.UID)})
	must(t, err)
	defer w.Stop()
	for e := range w.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok && e.Type == watch.Added && p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodPending {
			run(t, p, node)
			return p
		}
	}
	t.Fatalf("Job %s never got a pod", j.Name)
	return nil
}

// run binds a pod to a node, where it runs until something else is said of it.
func run(t *testing.T, p *corev1.Pod, node string) {
	t.Helper()
	must(t, admin.SubResource("binding").Create(t.Context(), p, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}))
	setPhase(t, p, corev1.PodRunning)
}

// setPhase writes a pod's phase as its kubelet would.
func setPhase(t *testing.T, p *corev1.Pod, phase corev1.PodPhase) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"phase": phase}})
	must(t, err)
	must(t, admin.Status().Patch(t.Context(), p, client.RawPatch(types.MergePatchType, patch)))
}

// podsOf are a Job's pods that may run.
func podsOf(t *testing.T, j *batchv1.Job) []corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	must(t, admin.List(t.Context(), &pods, client.InNamespace(j.Namespace), client.MatchingLabels{batchv1.ControllerUidLabel: string(j.UID)}))
	return pods.Items
}

func TestMain(m *testing.M) {
	if ns := os.Getenv(holderEnv); ns != "" {
		os.Exit(holdUntilKilled(ns))
	}
	os.Exit(env.Main(m, setUp, env.Pods))
}

func setUp(ctx context.Context, e *env.Env) (err error) {
	ctrl.SetLogger(logr.Discard())
	controlPlane, kubeconfig = e, e.Kubeconfig()
	if admin, err = client.NewWithWatch(e.Config(), client.Options{Scheme: env.Scheme()}); err != nil {
		return err
	}
	if controllerConfig, err = e.ControllerConfig(ctx); err != nil {
		return err
	}
	// Pod garbage collection takes pods on a node that does not exist.
	return admin.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
}
