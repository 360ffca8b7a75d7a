package env

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/hack/assets"
)

// RunController runs the controller as a pod in its namespace, by its Deployment's
// template: whoever deletes the namespace ends it, and waits until it has ended. It
// returns when the pod is stored. The Env must have Pods.
func (e *Env) RunController(t *testing.T) {
	t.Helper()
	kubeconfig, err := e.ServiceAccountKubeconfig(t.Context(), v1alpha1.ControllerNamespace, v1alpha1.ControllerServiceAccount)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile(filepath.Join(Root(t), "config", "manager", "manager.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	deployment := &appsv1.Deployment{}
	if err := yaml.UnmarshalStrict(manifest, deployment); err != nil {
		t.Fatal(err)
	}
	template := deployment.Spec.Template
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace, pod.Name = deployment.Namespace, deployment.Name
	c := &pod.Spec.Containers[0]
	c.Command = []string{buildController(t)}
	c.Args = []string{"--leader-elect", "--health-probe-bind-address=0"} // the ports are this machine's
	c.Env = []corev1.EnvVar{{Name: "KUBECONFIG", Value: kubeconfig}}
	if err := e.client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if log, err := os.ReadFile(e.Pods.LogFile(pod, c.Name)); t.Failed() {
			t.Logf("the controller's log (error %v):\n%s", err, log)
		}
	})
}

func buildController(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "manager")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".")
	build.Dir = Root(t)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the controller: %v\n%s", err, out)
	}
	return binary
}

// Root is the top of the source tree.
func Root(t *testing.T) string {
	t.Helper()
	dir, err := assets.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
