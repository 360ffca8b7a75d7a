package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/controllers"
	"github.com/distlock-dev/distlock/test/env"
)

// asPluginEnv makes the test's own binary the plugin, for tests that need it as a
// process.
const asPluginEnv = "DISTLOCK_TEST_AS_PLUGIN"

// patience is how long anything may take that a test waits for.
const patience = 2 * time.Minute

var (
	testEnv *env.Env
	admin   client.WithWatch
)

func TestMain(m *testing.M) {
	if os.Getenv(asPluginEnv) != "" {
		main()
	}
	ctrl.SetLogger(logr.Discard())
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		if signal.Ignored(s) { // as by nohup; the plugin's processes would be, too
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	os.Exit(env.Main(m, setUp, env.Pods))
}

// setUp runs the real controller until the tests end.
func setUp(ctx context.Context, e *env.Env) error {
	testEnv, admin = e, e.Client()
	return runController(ctx, e)
}

func runController(ctx context.Context, e *env.Env) error {
	config, err := e.ControllerConfig(ctx)
	if err != nil {
		return err
	}
	r := controllers.New(clock.RealClock{})
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: env.Scheme(), Cache: r.CacheOptions(), Client: controllers.ClientOptions(),
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
	})
	if err != nil {
		return err
	}
	if err := r.SetupWithManager(ctx, mgr); err != nil {
		return err
	}
	go func() {
		if err := mgr.Start(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "the controller:", err)
		}
	}()
	return nil
}

// result of a command line.
type result struct {
	out, err string
	code     int
}

// distlock runs a command line in a namespace, within this process.
func distlock(t *testing.T, ns string, args ...string) result {
	t.Helper()
	return distlockUntil(t.Context(), ns, args...)
}

func distlockUntil(ctx context.Context, ns string, args ...string) result {
	var out, errOut bytes.Buffer
	all := append([]string{"--kubeconfig", testEnv.Kubeconfig(), "-n", ns}, args...)
	code := execute(ctx, all, genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut})
	return result{out.String(), errOut.String(), code}
}

// ok fails unless the command did what it should.
func (r result) ok(t *testing.T) result {
	t.Helper()
	return r.ends(t, 0)
}

// ends fails unless the command ended with a code and said each of some texts, as
// output or as error.
func (r result) ends(t *testing.T, code int, said ...string) result {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit code %d, want %d; output:\n%s\nerror:\n%s", r.code, code, r.out, r.err)
	}
	for _, s := range said {
		if !strings.Contains(r.out+r.err, s) {
			t.Fatalf("did not say %q; output:\n%s\nerror:\n%s", s, r.out, r.err)
		}
	}
	return r
}

// process is the plugin as a process of its own.
func process(t *testing.T, ns string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), self, append([]string{"--kubeconfig", testEnv.Kubeconfig(), "-n", ns}, args...)...)
	cmd.Env = append(os.Environ(), asPluginEnv+"=1")
	cmd.Stderr = &bytes.Buffer{}
	return cmd
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func lockIn(t *testing.T, ns, name string, change ...func(*v1alpha1.DistLock)) *v1alpha1.DistLock {
	t.Helper()
	l := &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	for _, f := range change {
		f(l)
	}
	must(t, admin.Create(t.Context(), l))
	return l
}

func withCapacity(n int32) func(*v1alpha1.DistLock) {
	return func(l *v1alpha1.DistLock) { l.Spec.Capacity = &n }
}

func claimOn(t *testing.T, ns, name, lock string, change ...func(*v1alpha1.LockClaim)) *v1alpha1.LockClaim {
	t.Helper()
	c := &v1alpha1.LockClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: v1alpha1.LockClaimSpec{LockName: lock}}
	for _, f := range change {
		f(c)
	}
	must(t, admin.Create(t.Context(), c))
	return c
}

// jobOn creates a Job behind a lock, whose pod runs a shell script.
func jobOn(t *testing.T, ns, name, lock, script string, grace int64) *batchv1.Job {
	t.Helper()
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: map[string]string{v1alpha1.LockAnnotation: lock}},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "main", Image: "example.com/work", Command: []string{"sh", "-c", script}}},
		}}},
	}
	must(t, admin.Create(t.Context(), j))
	return j
}

// forever ignores SIGTERM.
const forever = "trap '' TERM; while :; do sleep 0.2; done"

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

func untilClaim(t *testing.T, ns, name, reason string) *v1alpha1.LockClaim {
	t.Helper()
	c := &v1alpha1.LockClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	return until(t, c, &v1alpha1.LockClaimList{}, "Granted for the reason "+reason, func(c *v1alpha1.LockClaim) bool {
		return len(c.Status.Conditions) == 1 && c.Status.Conditions[0].Reason == reason
	})
}

func untilJob(t *testing.T, ns, name, what string, wanted func(*batchv1.Job) bool) *batchv1.Job {
	t.Helper()
	return until(t, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}, &batchv1.JobList{}, what, wanted)
}

func untilRuns(t *testing.T, ns, name string) *batchv1.Job {
	t.Helper()
	return untilJob(t, ns, name, "running", func(j *batchv1.Job) bool { return ptr.Deref(j.Status.Ready, 0) == 1 })
}

// heldBy is whether the first hold of a lock is that of the object of this name.
func heldBy(name string) func(*v1alpha1.DistLock) bool {
	return func(l *v1alpha1.DistLock) bool {
		return len(l.Status.Holders) > 0 && l.Status.Holders[0].Ref != nil && l.Status.Holders[0].Ref.Name == name
	}
}

func waiting(n int) func(*v1alpha1.DistLock) bool {
	return func(l *v1alpha1.DistLock) bool { return len(l.Status.Queue) == n }
}

func isFree(l *v1alpha1.DistLock) bool { return len(l.Status.Holders) == 0 && len(l.Status.Queue) == 0 }

// noClaims fails if a claim is left in a namespace.
func noClaims(t *testing.T, ns string) {
	t.Helper()
	list := &v1alpha1.LockClaimList{}
	must(t, admin.List(t.Context(), list, client.InNamespace(ns)))
	if len(list.Items) > 0 {
		t.Fatalf("left behind: LockClaim %s", list.Items[0].Name)
	}
}
