package sweep

import (
	"context"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/controllers"
	"github.com/distlock-dev/distlock/test/env"
)

// Deleting dist/install.yaml deletes the CRDs, and with them the locks, while the
// controller still runs.
func TestDeletingTheCRDsStopsNoJobThatRuns(t *testing.T) {
	e, err := env.Start(t.Context(), env.Pods)
	must(t, err)
	t.Cleanup(func() { must(t, e.Stop()) })
	s := stage{e, t, e.Namespace(t)}
	s.lock("ledger")
	seen := s.startInProcess()
	s.worker("holder", "ledger")
	was := s.job("holder", "running", running)
	seen.forget()

	s.kubectl("delete", "crd", "distlocks.distlock.dev", "lockclaims.distlock.dev")
	seen.untilAsked(t, "the deletion of the lock")
	seen.forget()
	s.worker("later", "ledger")
	seen.untilAsked(t, "a Job that came after it")

	if now := s.job("holder", "there", there); suspended(now) || now.Generation != was.Generation {
		t.Errorf("the Job that ran is suspended: %t, generation %d, before %d", suspended(now), now.Generation, was.Generation)
	}
	if now := s.job("later", "there", there); !suspended(now) {
		t.Error("a Job was started without the lock")
	}
	if told := s.kubectl("get", "events", "-n", s.ns, "--field-selector", "reason=LockNotFound", "-o", "name"); told != "" {
		t.Errorf("it was told that the lock is missing: %s", told)
	}
}

// requests tells what the controller does about Jobs without a lock.
type requests struct {
	next  http.RoundTripper
	asked chan struct{} // whether there are locks at all
	wrote chan string
}

// RoundTrip implements http.RoundTripper.
func (r *requests) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.next.RoundTrip(req)
	switch {
	case req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, "/jobs/holder"):
		r.wrote <- req.URL.Path
	case strings.HasSuffix(req.URL.Path, "/customresourcedefinitions/distlocks.distlock.dev"):
		select {
		case r.asked <- struct{}{}:
		default:
		}
	}
	return resp, err
}

// forget what was told so far.
func (r *requests) forget() {
	for {
		select {
		case <-r.asked:
		case <-r.wrote:
		default:
			return
		}
	}
}

func (r *requests) untilAsked(t *testing.T, why string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case <-r.asked:
	case path := <-r.wrote:
		t.Fatalf("after %s: wrote to %s", why, path)
	case <-ctx.Done():
		t.Fatalf("after %s: never asked whether there are locks at all", why)
	}
}

// startInProcess runs the controller with a network that tells what it sends.
func (s stage) startInProcess() *requests {
	s.t.Helper()
	r := &requests{asked: make(chan struct{}, 1), wrote: make(chan string, 100)}
	s.startWith(func(rt http.RoundTripper) http.RoundTripper { r.next = rt; return r })
	return r
}

// startWith runs the controller, with a network of the test's making.
func (s stage) startWith(network func(http.RoundTripper) http.RoundTripper) {
	s.t.Helper()
	cfg, err := s.ControllerConfig(s.t.Context())
	must(s.t, err)
	cfg.Wrap(network)
	controller := controllers.New(clock.RealClock{})
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: env.Scheme(), Cache: controller.CacheOptions(), Client: controllers.ClientOptions(),
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	must(s.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	must(s.t, controller.SetupWithManager(ctx, mgr))
	_, err = controller.WatchPolicies(ctx, mgr, &corev1.ObjectReference{
		APIVersion: "v1", Kind: "ServiceAccount", Namespace: v1alpha1.ControllerNamespace, Name: v1alpha1.ControllerServiceAccount,
	})
	must(s.t, err)
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("controller: %v", err)
		}
	})
}
