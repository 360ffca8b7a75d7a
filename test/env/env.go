// Package env is what the integration tests share: one control plane for each test
// binary, with DistLock installed in it except for the controller.
package env

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/hack/assets"
	"github.com/distlock-dev/distlock/hack/cluster"
)

// patience is how long RBAC may take to come into effect.
const patience = time.Minute

// Env is a control plane with the CRDs, RBAC and policies of config/ in effect.
type Env struct {
	*cluster.Cluster
	client client.WithWatch
}

// Scheme knows Kubernetes' types and DistLock's.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(v1alpha1.AddToScheme(s))
	return s
}

// Main is for TestMain: it runs a package's tests in an Env and returns the exit
// code. By default no pod runs: tests play the scheduler and the kubelet. With the
// option Pods their commands do.
func Main(m *testing.M, setUp func(context.Context, *Env) error, options ...func(*cluster.Options)) int {
	ctx := context.Background()
	e, err := Start(ctx, options...)
	if err == nil {
		defer func() {
			if err := e.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, "stopping the control plane:", err)
			}
		}()
		err = setUp(ctx, e)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "setting up the tests:", err)
		return 1
	}
	return m.Run()
}

// Pods makes pods run.
func Pods(o *cluster.Options) { o.NoPods = false }

// Start starts an Env, for tests that need one of their own; they Stop it.
func Start(ctx context.Context, options ...func(*cluster.Options)) (*Env, error) {
	o := cluster.Options{NoPods: true}
	for _, change := range options {
		change(&o)
	}
	c, err := cluster.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	e := &Env{Cluster: c}
	if err := e.install(ctx); err != nil {
		_ = c.Stop()
		return nil, err
	}
	return e, nil
}

func (e *Env) install(ctx context.Context) error {
	tree, err := assets.Root()
	if err != nil {
		return err
	}
	if err := e.Install(ctx, tree); err != nil {
		return err
	}
	if e.client, err = client.NewWithWatch(e.Config(), client.Options{Scheme: Scheme()}); err != nil {
		return err
	}
	return e.awaitRBAC(ctx)
}

// awaitRBAC returns when the controller's service account may do its work.
func (e *Env) awaitRBAC(ctx context.Context) error {
	config, err := e.ControllerConfig(ctx)
	if err != nil {
		return err
	}
	controller, err := client.New(config, client.Options{Scheme: Scheme()})
	if err != nil {
		return err
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		last = controller.List(ctx, &v1alpha1.DistLockList{})
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the controller's permissions: %w: %w", err, last)
	}
	return nil
}

// Client acts as the admin and can watch.
func (e *Env) Client() client.WithWatch { return e.client }

// ControllerConfig acts as the controller's service account.
func (e *Env) ControllerConfig(ctx context.Context) (*rest.Config, error) {
	return e.ServiceAccountConfig(ctx, v1alpha1.ControllerNamespace, v1alpha1.ControllerServiceAccount)
}

// Namespace makes a namespace of the test's own, which is deleted after the test
// with all that is in it.
func (e *Env) Namespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := e.client.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.client.Delete(context.WithoutCancel(t.Context()), ns); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	return ns.Name
}
