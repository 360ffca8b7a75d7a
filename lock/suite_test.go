package lock_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/hack/process"
	"github.com/distlock-dev/distlock/lock"
	"github.com/distlock-dev/distlock/test/env"
	"github.com/distlock-dev/distlock/test/law"
)

// patience is how long anything may take that a test waits for.
const patience = 2 * time.Minute

var (
	controlPlane *env.Env
	admin        client.WithWatch
	manager      string // the controller's program
)

func TestMain(m *testing.M) {
	if ns := os.Getenv(programVariable); ns != "" {
		if err := runProgram(ns); err != nil {
			fmt.Fprintln(os.Stderr, "the test program:", err)
			os.Exit(1)
		}
		return
	}
	ctrl.SetLogger(logr.Discard())
	os.Exit(env.Main(m, func(ctx context.Context, e *env.Env) error {
		controlPlane, admin = e, e.Client()
		manager = filepath.Join(e.Dir(), "manager")
		build := exec.CommandContext(ctx, "go", "build", "-o", manager, "..")
		build.Stderr = os.Stderr
		return build.Run()
	}))
}

// namespace makes a namespace in which the law is enforced from its stored versions.
func namespace(t *testing.T) string {
	t.Helper()
	ns := controlPlane.Namespace(t)
	law.Enforce(t, admin, ns)
	return ns
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

// startController starts the controller, which leads at once, until the test ends or
// the function returned is called.
func startController(t *testing.T) (kill func()) {
	t.Helper()
	kubeconfig, err := controlPlane.ServiceAccountKubeconfig(t.Context(), v1alpha1.ControllerNamespace, v1alpha1.ControllerServiceAccount)
	must(t, err)
	logFile := filepath.Join(t.TempDir(), "manager.log")
	log, err := os.Create(logFile)
	must(t, err)
	defer func() { _ = log.Close() }() // the process has its own
	cmd := exec.Command(manager, "--metrics-bind-address=0", "--health-probe-bind-address=0")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := process.Start(cmd)
	must(t, err)
	kill = sync.OnceFunc(func() { p.Stop(10 * time.Second) })
	t.Cleanup(func() {
		kill()
		if text, err := os.ReadFile(logFile); t.Failed() {
			t.Logf("the controller's log (error %v):\n%s", err, text)
		}
	})
	return kill
}

// program is a client and the network between it and the API server.
type program struct {
	*lock.Client
	*network
	t *testing.T
}

func newProgram(t *testing.T, ns string, change ...func(*rest.Config)) *program {
	t.Helper()
	return newProgramWith(t, ns, nil, change...)
}

// newProgramWith is newProgram with a clock of its own; nil: the machine's.
func newProgramWith(t *testing.T, ns string, clock *lock.Clock, change ...func(*rest.Config)) *program {
	t.Helper()
	p := &program{network: newNetwork(), t: t}
	config := controlPlane.Config()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) { return p.pass(next, req) })
	})
	for _, f := range change {
		f(config)
	}
	options := []lock.ClientOption{lock.Namespace(ns)}
	if clock != nil {
		options = append(options, lock.WithClock(clock))
	}
	c, err := lock.NewClient(config, options...)
	must(t, err)
	p.Client = c
	t.Cleanup(func() {
		p.behave(nil)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("closing a client: %v", err)
		}
	})
	return p
}

// until watches a lock until it is as wanted, and returns it.
func until(t *testing.T, l *v1alpha1.DistLock, what string, wanted func(*v1alpha1.DistLock) bool) *v1alpha1.DistLock {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := admin.Watch(ctx, &v1alpha1.DistLockList{}, client.InNamespace(l.Namespace), client.MatchingFields{"metadata.name": l.Name})
	must(t, err)
	defer w.Stop()
	for e := range w.ResultChan() {
		if now, ok := e.Object.(*v1alpha1.DistLock); ok && e.Type != watch.Deleted {
			if l = now; wanted(now) {
				return now
			}
		}
	}
	t.Fatalf("DistLock %s: never %s; last seen as %+v", l.Name, what, l.Status)
	return nil
}

func free(l *v1alpha1.DistLock) bool { return len(l.Status.Holders) == 0 && len(l.Status.Queue) == 0 }

func read(t *testing.T, l *v1alpha1.DistLock) *v1alpha1.DistLock {
	t.Helper()
	now := &v1alpha1.DistLock{}
	must(t, admin.Get(t.Context(), client.ObjectKeyFromObject(l), now))
	return now
}

func listFrom(version string) *metav1.ListOptions {
	return &metav1.ListOptions{ResourceVersion: version}
}
