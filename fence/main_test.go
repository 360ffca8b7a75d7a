package fence_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/hack/assets"
	"github.com/distlock-dev/distlock/test/env"
)

var testEnv *env.Env

// TestMain installs the policy, too: it concerns labelled objects only.
func TestMain(m *testing.M) {
	os.Exit(env.Main(m, func(ctx context.Context, e *env.Env) error {
		testEnv = e
		tree, err := assets.Root()
		if err != nil {
			return err
		}
		if _, err := e.Kubectl(ctx, "apply", "--server-side", "-k", filepath.Join(tree, "config", "fence")); err != nil {
			return err
		}
		return e.AwaitPolicies(ctx)
	}))
}

// A configMap is one object of the test's own.
type configMap struct {
	corev1client.ConfigMapInterface
	namespace string
}

const objectName = "report"

// newConfigMap creates an object without a token; fenced has the API server guard it.
func newConfigMap(t *testing.T, fenced bool) configMap {
	t.Helper()
	clientset, err := kubernetes.NewForConfig(testEnv.Config())
	if err != nil {
		t.Fatal(err)
	}
	ns := testEnv.Namespace(t)
	c := configMap{clientset.CoreV1().ConfigMaps(ns), ns}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: objectName}}
	if fenced {
		object.Labels = map[string]string{v1alpha1.FencedLabel: "true"}
	}
	if _, err := c.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c configMap) read(t *testing.T) *corev1.ConfigMap {
	t.Helper()
	object, err := c.Get(t.Context(), objectName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// wantToken is the one that the stored object has to bear; "" is none.
func (c configMap) wantToken(t *testing.T, want string) {
	t.Helper()
	if got := c.read(t).Annotations[v1alpha1.FenceAnnotation]; got != want {
		t.Errorf("the object bears the token %q, want %q", got, want)
	}
}
