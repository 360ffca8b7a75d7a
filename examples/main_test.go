// Package examples runs the examples, as processes on a local control plane.
package examples

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/hack/assets"
	"github.com/distlock-dev/distlock/hack/process"
	"github.com/distlock-dev/distlock/test/env"
)

var (
	testEnv  *env.Env
	programs string // folder of the examples' programs
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(env.Main(m, func(ctx context.Context, e *env.Env) error {
		testEnv, programs = e, filepath.Join(e.Dir(), "programs")
		if err := build(ctx, ".", programs+"/", "./..."); err != nil {
			return err
		}
		if err := build(ctx, "..", filepath.Join(programs, "manager"), "."); err != nil {
			return err
		}
		if err := build(ctx, "..", filepath.Join(programs, "kubectl-distlock"), "./cmd/kubectl-distlock"); err != nil {
			return err
		}
		if err := addToPath(programs, "container"); err != nil { // where pods find their programs
			return err
		}
		return startController(ctx)
	}, env.Pods))
}

func build(ctx context.Context, dir, to, what string) error {
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", to, what)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stderr, os.Stderr
	return cmd.Run()
}

func addToPath(folders ...string) error {
	path := filepath.SplitList(os.Getenv("PATH"))
	for _, folder := range folders {
		absolute, err := filepath.Abs(folder)
		if err != nil {
			return err
		}
		path = append(path, absolute)
	}
	return os.Setenv("PATH", strings.Join(path, string(os.PathListSeparator)))
}

func startController(ctx context.Context) error {
	kubeconfig, err := testEnv.ServiceAccountKubeconfig(ctx, v1alpha1.ControllerNamespace, v1alpha1.ControllerServiceAccount)
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(programs, "manager"), "--health-probe-bind-address=0") //nolint:noctx // it ends with the tests
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	_, err = process.Start(cmd)
	return err
}

// in returns a command that acts in a namespace, as kubectl does there.
func in(t *testing.T, ns, name string, args ...string) *exec.Cmd {
	t.Helper()
	folder, err := assets.Find(t.Context())
	must(t, err)
	text, err := os.ReadFile(testEnv.Kubeconfig())
	must(t, err)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(kubeconfig, text, 0o600))
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+folder+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.WaitDelay = 30 * time.Second // its children may outlive it
	set := exec.CommandContext(t.Context(), filepath.Join(folder, "kubectl"), "config", "set-context", "--current", "--namespace="+ns)
	set.Env = cmd.Env
	must(t, set.Run())
	return cmd
}

// namespace is one with what a file has in it.
func namespace(t *testing.T, file string) string {
	t.Helper()
	ns := testEnv.Namespace(t)
	out, err := testEnv.Kubectl(t.Context(), "apply", "-n", ns, "-f", file)
	if err != nil {
		t.Fatal(err, string(out))
	}
	return ns
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
