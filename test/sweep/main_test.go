// Package sweep takes DistLock's policies and its CRDs away from under a running
// controller, and puts them back.
package sweep

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/hack/assets"
	"github.com/distlock-dev/distlock/hack/process"
	"github.com/distlock-dev/distlock/test/env"
	"github.com/distlock-dev/distlock/test/law"
)

// patience is how long anything may take that a test waits for.
const patience = 2 * time.Minute

var shared *env.Env

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(env.Main(m, func(_ context.Context, e *env.Env) error { shared = e; return nil }, env.Pods))
}

// stage is a namespace in a control plane, and what a test does there.
type stage struct {
	*env.Env
	t  *testing.T
	ns string
}

// newStage is a stage on which the law is enforced from its stored versions.
func newStage(t *testing.T, e *env.Env) stage {
	t.Helper()
	s := stage{e, t, e.Namespace(t)}
	law.Enforce(t, e.Client(), s.ns)
	return s
}

func (s stage) lock(name string) {
	s.t.Helper()
	s.create(&v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name}})
}

// worker is a Job whose pod runs until it is killed, two seconds after it was
// asked to end.
func (s stage) worker(name, lock string, change ...func(*batchv1.Job)) *batchv1.Job {
	s.t.Helper()
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name}, Spec: jobSpec("trap '' TERM; sleep 1000")}
	if lock != "" {
		j.Annotations = map[string]string{v1alpha1.LockAnnotation: lock}
	}
	for _, f := range change {
		f(j)
	}
	s.create(j)
	return j
}

func jobSpec(command string) batchv1.JobSpec {
	return batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		TerminationGracePeriodSeconds: ptr.To(int64(2)),
		Containers:                    []corev1.Container{{Name: "main", Image: "example.com/work", Command: []string{"sh", "-c", command}}},
	}}}
}

func runs(command string) func(*batchv1.Job) {
	return func(j *batchv1.Job) { j.Spec.Template.Spec.Containers[0].Command = []string{"sh", "-c", command} }
}

func paused(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }

// cron is a CronJob that is never due.
func (s stage) cron(name, lock string, change ...func(*batchv1.CronJob)) *batchv1.CronJob {
	s.t.Helper()
	c := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name, Annotations: map[string]string{v1alpha1.LockAnnotation: lock}},
		Spec:       batchv1.CronJobSpec{Schedule: "0 0 31 2 *", JobTemplate: batchv1.JobTemplateSpec{Spec: jobSpec("true")}},
	}
	for _, f := range change {
		f(c)
	}
	s.create(c)
	return c
}

func (s stage) create(o client.Object) {
	s.t.Helper()
	must(s.t, s.Client().Create(s.t.Context(), o))
}

// until reads an object again and again until it is as wanted.
func until[T client.Object](s stage, o T, what string, wanted func(T) bool) T {
	s.t.Helper()
	err := wait.PollUntilContextTimeout(s.t.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := s.Client().Get(ctx, client.ObjectKeyFromObject(o), o)
		return err == nil && wanted(o), client.IgnoreNotFound(err)
	})
	if err != nil {
		s.t.Fatalf("%T %s: never %s: %v; last seen as %+v", o, o.GetName(), what, err, o)
	}
	return o
}

func (s stage) job(name, what string, wanted func(*batchv1.Job) bool) *batchv1.Job {
	s.t.Helper()
	return until(s, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name}}, what, wanted)
}

func (s stage) heldBy(lock string, j *batchv1.Job) *v1alpha1.DistLock {
	s.t.Helper()
	return until(s, &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: lock}}, "held by "+j.Name, func(l *v1alpha1.DistLock) bool {
		return granted(l, j)
	})
}

// granted reports whether a Job holds a lock. The hold by which a Job that was not
// granted it keeps others from it is revoked from the first.
func granted(l *v1alpha1.DistLock, j *batchv1.Job) bool {
	return len(l.Status.Holders) == 1 && l.Status.Holders[0].Ref.UID == j.UID && l.Status.Holders[0].RevokeTime == nil
}

func there(*batchv1.Job) bool { return true }

func running(j *batchv1.Job) bool { return !suspended(j) && ptr.Deref(j.Status.Ready, 0) > 0 }

func suspended(j *batchv1.Job) bool { return ptr.Deref(j.Spec.Suspend, false) }

func gated(j *batchv1.Job) bool { return j.Labels[v1alpha1.GatedLabel] == "true" }

func takenIn(j *batchv1.Job) bool {
	return gated(j) && ptr.Deref(j.Spec.PodReplacementPolicy, "") == batchv1.Failed
}

func complete(j *batchv1.Job) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue
	})
}

// end deletes a Job and its pods.
func (s stage) end(j *batchv1.Job) {
	s.t.Helper()
	must(s.t, s.Client().Delete(s.t.Context(), j, client.PropagationPolicy(metav1.DeletePropagationForeground)))
}

// webhookThatIsDown has the API server refuse each write to a Job or CronJob of the
// namespace with those labels, as long as the webhook does not answer.
func (s stage) webhookThatIsDown(labels map[string]string) client.Object {
	s.t.Helper()
	w := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "down-" + s.ns},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    "down.example.com",
			ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/")},
			FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.ns}},
			ObjectSelector:          &metav1.LabelSelector{MatchLabels: labels},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"batch"}, APIVersions: []string{"v1"}, Resources: []string{"jobs", "cronjobs"}},
			}},
		}},
	}
	s.create(w)
	s.t.Cleanup(func() {
		if err := s.Client().Delete(context.WithoutCancel(s.t.Context()), w); client.IgnoreNotFound(err) != nil {
			s.t.Error(err)
		}
	})
	probe := s.cron("probe", "", func(c *batchv1.CronJob) { c.Annotations, c.Labels = nil, labels })
	err := wait.PollUntilContextTimeout(s.t.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := s.Client().Patch(ctx, probe.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"probe":"`+time.Now().Format(time.RFC3339Nano)+`"}}}`)))
		return err != nil && strings.Contains(err.Error(), "down.example.com"), nil
	})
	if err != nil {
		s.t.Fatalf("the webhook is not asked: %v", err)
	}
	return w
}

// untilEvent waits for an event about an object.
func (s stage) untilEvent(namespace, kind, name, reason, note string) {
	s.t.Helper()
	var last eventsv1.EventList
	err := wait.PollUntilContextTimeout(s.t.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := s.Client().List(ctx, &last, client.InNamespace(namespace))
		return slices.ContainsFunc(last.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Kind == kind && e.Regarding.Name == name && e.Reason == reason && strings.Contains(e.Note, note)
		}), err
	})
	if err != nil {
		s.t.Errorf("no event %s with %q on %s %s: %v", reason, note, kind, name, err)
	}
}

// deletePolicies returns when nothing is gated any more; after the test they are
// there again.
func (s stage) deletePolicies() {
	s.t.Helper()
	s.t.Cleanup(func() {
		if err := s.restore(context.WithoutCancel(s.t.Context())); err != nil {
			s.t.Error(err)
		}
	})
	s.kubectl("delete", "-k", policyFolder(s.t), "--ignore-not-found")
	must(s.t, s.AwaitPolicies(s.t.Context()))
}

// restorePolicies returns when everything is gated.
func (s stage) restorePolicies() {
	s.t.Helper()
	must(s.t, s.restore(s.t.Context()))
}

func (s stage) restore(ctx context.Context) error {
	if _, err := s.Kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-k", policyFolder(s.t)); err != nil {
		return err
	}
	return s.AwaitPolicies(ctx)
}

func policyFolder(t *testing.T) string {
	t.Helper()
	return filepath.Join(root(t), "config", "policy")
}

func (s stage) kubectl(args ...string) string {
	s.t.Helper()
	out, err := s.Kubectl(s.t.Context(), args...)
	must(s.t, err)
	return string(out)
}

// manager is the controller as users run it: its binary, as its service account.
type manager struct {
	t     *testing.T
	log   string
	probe string
}

func (s stage) startManager() manager {
	t := s.t
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "manager")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".")
	build.Dir = root(t)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the controller: %v\n%s", err, out)
	}
	kubeconfig, err := s.ServiceAccountKubeconfig(t.Context(), v1alpha1.ControllerNamespace, v1alpha1.ControllerServiceAccount)
	must(t, err)
	m := manager{t: t, log: filepath.Join(dir, "log"), probe: freeAddress(t)}
	log, err := os.Create(m.log)
	must(t, err)
	defer func() { _ = log.Close() }() // the process has its own
	cmd := exec.Command(binary, "--leader-elect", "--health-probe-bind-address="+m.probe)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := process.Start(cmd)
	must(t, err)
	t.Cleanup(func() {
		p.Stop(10 * time.Second)
		if t.Failed() {
			t.Logf("the controller's log:\n%s", m.logged())
		}
	})
	return m
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func (m manager) logged() string {
	text, err := os.ReadFile(m.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// untilReadyz waits for an answer of one of the manager's readiness checks; "" is
// all of them.
func (m manager) untilReadyz(check string, code int, body string) {
	m.t.Helper()
	last := ""
	err := wait.PollUntilContextTimeout(m.t.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.probe+"/readyz/"+check, http.NoBody)
		if err != nil {
			return false, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			last = err.Error()
			return false, nil
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		last = fmt.Sprint(resp.StatusCode, " ", string(text))
		return resp.StatusCode == code && strings.Contains(string(text), body), err
	})
	if err != nil {
		m.t.Fatalf("/readyz/%s: %v; want %d and %q, last %s", check, err, code, body, last)
	}
}

func (m manager) untilReady() {
	m.t.Helper()
	m.untilReadyz("", http.StatusOK, "ok")
}

// untilLogged waits for a line of the log that has all the parts.
func (m manager) untilLogged(parts ...string) {
	m.t.Helper()
	err := wait.PollUntilContextTimeout(m.t.Context(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		for line := range strings.SplitSeq(m.logged(), "\n") {
			if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		m.t.Errorf("never logged: %q", parts)
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := assets.Root()
	must(t, err)
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
