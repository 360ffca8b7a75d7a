// Package restart_test stops and kills the API server under a controller, on a
// control plane that no other test shares.
package restart_test

import (
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/controllers"
	"github.com/distlock-dev/distlock/hack/cluster"
	"github.com/distlock-dev/distlock/internal/protocol"
	"github.com/distlock-dev/distlock/test/env"
)

const (
	patience = 2 * time.Minute
	// lease is longer than a restart takes on a busy machine: a holder whose
	// lease ends while it can renew nothing has lost its hold rightly.
	lease = 120
	node  = "played"
)

var controlPlane *env.Env

func TestMain(m *testing.M) { os.Exit(env.Main(m, setUp)) }

func setUp(ctx context.Context, e *env.Env) error {
	ctrl.SetLogger(logr.Discard())
	controlPlane = e
	return e.Client().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
}

func TestFault22TheAPIServerRestarts(t *testing.T) {
	startController(t)
	for name, end := range map[string]func(*cluster.Component){
		"in order": (*cluster.Component).Stop,
		"killed":   (*cluster.Component).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			ns := controlPlane.Namespace(t)
			for _, lock := range []string{"job", "claim", "program"} {
				create(t, &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: lock}})
			}
			takeLeased(t, ns, "program")
			jobOn(t, ns, "a")
			pod := runningPod(t, ns, "a")
			claims := []*v1alpha1.LockClaim{claimOn(t, ns, "one", "claim"), claimOn(t, ns, "two", "claim"), claimOn(t, ns, "waiter", "program")}
			untilLock(t, ns, "claim", func(l *v1alpha1.DistLock) bool { return len(l.Status.Holders) == 1 && len(l.Status.Queue) == 1 })
			jobOn(t, ns, "b")
			untilLock(t, ns, "job", func(l *v1alpha1.DistLock) bool { return len(l.Status.Queue) == 1 })
			before := untilLock(t, ns, "program", func(l *v1alpha1.DistLock) bool { return len(l.Status.Queue) == 1 })

			end(controlPlane.APIServer)
			if err := controlPlane.APIServer.Start(t.Context()); err != nil {
				t.Fatal(err)
			}

			// The first things that happen, before any watch is back for sure.
			must(t, controlPlane.Client().Delete(t.Context(), claims[0]))
			must(t, setPhase(t.Context(), pod, corev1.PodSucceeded))
			untilLock(t, ns, "claim", func(l *v1alpha1.DistLock) bool {
				return len(l.Status.Holders) == 1 && l.Status.Holders[0].Owner == "claim/"+string(claims[1].UID)
			})
			runningPod(t, ns, "b")
			after := untilLock(t, ns, "program", func(*v1alpha1.DistLock) bool { return true })
			if (protocol.State{Status: after.Status}).Differs(protocol.State{Status: before.Status}) {
				t.Errorf("before the restart %+v, after it %+v", before.Status, after.Status)
			}
			must(t, controlPlane.Client().Delete(t.Context(), claims[2]))
			untilLock(t, ns, "program", func(l *v1alpha1.DistLock) bool { return len(l.Status.Queue) == 0 && len(l.Status.Holders) == 1 })
		})
	}
}

func startController(t *testing.T) {
	t.Helper()
	cfg, err := controlPlane.ControllerConfig(t.Context())
	must(t, err)
	r := controllers.New(clock.RealClock{})
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: env.Scheme(), Cache: r.CacheOptions(), Client: controllers.ClientOptions(),
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	must(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	must(t, r.SetupWithManager(ctx, mgr))
	done := make(chan error)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		must(t, <-done)
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, o client.Object) {
	t.Helper()
	must(t, controlPlane.Client().Create(t.Context(), o))
}

func claimOn(t *testing.T, ns, name, lock string) *v1alpha1.LockClaim {
	t.Helper()
	c := &v1alpha1.LockClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: v1alpha1.LockClaimSpec{LockName: lock}}
	create(t, c)
	return c
}

func jobOn(t *testing.T, ns, name string) {
	t.Helper()
	create(t, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: map[string]string{v1alpha1.LockAnnotation: "job"}},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "main", Image: "example.com/work"}},
		}}},
	})
}

// takeLeased takes a lock as a program does.
func takeLeased(t *testing.T, ns, name string) {
	t.Helper()
	l := untilLock(t, ns, name, func(*v1alpha1.DistLock) bool { return true })
	s, err := protocol.StateOf(l)
	must(t, err)
	s, err = s.Grant(protocol.NewWaiter(s.Spec, "program", nil, nil, new(int32(lease)), nil), time.Now())
	must(t, err)
	l.Status = s.Status
	must(t, controlPlane.Client().Status().Update(t.Context(), l))
}

// untilLock asks again and again, since a watch does not outlive the API server.
func untilLock(t *testing.T, ns, name string, wanted func(*v1alpha1.DistLock) bool) *v1alpha1.DistLock {
	t.Helper()
	l := &v1alpha1.DistLock{}
	eventually(t, func(ctx context.Context) (bool, error) {
		err := controlPlane.Client().Get(ctx, types.NamespacedName{Namespace: ns, Name: name}, l)
		return err == nil && wanted(l), err
	}, func() any { return l.Status })
	return l
}

// runningPod waits for a Job's pod and sets it running on a node.
func runningPod(t *testing.T, ns, job string) *corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	eventually(t, func(ctx context.Context) (bool, error) {
		err := controlPlane.Client().List(ctx, &pods, client.InNamespace(ns), client.MatchingLabels{batchv1.JobNameLabel: job})
		return len(pods.Items) == 1, err
	}, func() any { return job + " has no pod" })
	p := &pods.Items[0]
	must(t, controlPlane.Client().SubResource("binding").Create(t.Context(), p.DeepCopy(), &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}))
	must(t, setPhase(t.Context(), p, corev1.PodRunning))
	return p
}

func setPhase(ctx context.Context, p *corev1.Pod, phase corev1.PodPhase) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"phase": phase}})
	if err != nil {
		return err
	}
	return controlPlane.Client().Status().Patch(ctx, p.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
}

// eventually polls a condition, over errors.
func eventually(t *testing.T, condition wait.ConditionWithContextFunc, last func() any) {
	t.Helper()
	var failed error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (ok bool, _ error) {
		ok, failed = condition(ctx)
		return ok && failed == nil, nil
	})
	if err != nil {
		t.Fatalf("%v; last error: %v; last seen: %+v", err, failed, last())
	}
}
