package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

// shared runs everything and serves the tests that leave it as it was.
var shared *Cluster

func TestMain(m *testing.M) {
	var err error
	if shared, err = Start(context.Background(), Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func TestTwoClustersRunSideBySideAndStopLeavesNothing(t *testing.T) {
	first, second := start(t, Options{}), shared
	makeConfigMap(t, first, "only-here")
	_, err := client(t, second.Config()).CoreV1().ConfigMaps("default").Get(t.Context(), "only-here", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the second cluster has what was made in the first: error %v", err)
	}

	first.ControllerManager.Kill()
	if err := first.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "kube-controller-manager has ended") {
		t.Errorf("after its end: got error %v", err)
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(first.Dir()); !os.IsNotExist(err) {
		t.Errorf("the temporary folder is still there: error %v", err)
	}
	for _, part := range []*Component{first.Etcd, first.APIServer, first.ControllerManager} {
		if !part.child.Exited() {
			t.Errorf("%s still runs", part.Name)
		}
	}
	if err := first.Stop(); err != nil {
		t.Errorf("the second Stop: %v", err)
	}
	makeConfigMap(t, second, "still-alive")
}

func TestTheAPIServerComesBackWithItsData(t *testing.T) {
	c := start(t, Options{NoControllerManager: true, NoPods: true})
	makeConfigMap(t, c, "kept")
	c.APIServer.Stop()
	if _, err := get(t, c, "kept"); err == nil {
		t.Error("the API server answers after Stop")
	}
	c.Etcd.Kill()
	for _, part := range []*Component{c.Etcd, c.APIServer} {
		if err := part.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := get(t, c, "kept"); err != nil {
		t.Error(err)
	}
}

func TestAPausedAPIServerIsSilentUntilItResumes(t *testing.T) {
	c := shared
	if err := c.APIServer.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := c.apiServerReady(ctx); ctx.Err() == nil {
		t.Errorf("it answered: %v", err)
	}
	if err := c.APIServer.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := c.APIServer.waitReady(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAServiceAccountCanDoOnlyWhatItMay(t *testing.T) {
	c := shared
	config, err := c.ServiceAccountConfig(t.Context(), "default", "default")
	if err != nil {
		t.Fatal(err)
	}
	wantIdentity(t, config, "system:serviceaccount:default:default")

	path, err := c.ServiceAccountKubeconfig(t.Context(), "default", "default")
	if err != nil {
		t.Fatal(err)
	}
	if config, err = clientcmd.BuildConfigFromFlags("", path); err != nil {
		t.Fatal(err)
	}
	wantIdentity(t, config, "system:serviceaccount:default:default")

	_, err = client(t, config).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("listing secrets: got error %v, want Forbidden", err)
	}
	if _, err := c.ServiceAccountConfig(t.Context(), "default", "nobody"); !apierrors.IsNotFound(err) {
		t.Errorf("of one that is not there: got error %v, want NotFound", err)
	}
}

func TestKubectlReportsWhatWentWrong(t *testing.T) {
	c := shared
	out, err := c.Kubectl(t.Context(), "version", "-o", "json")
	if err != nil || !strings.Contains(string(out), `"gitVersion"`) {
		t.Errorf("kubectl version: error %v, output %s", err, out)
	}
	if _, err := c.Kubectl(t.Context(), "get", "unheard-of"); err == nil || !strings.Contains(err.Error(), "unheard-of") {
		t.Errorf("got error %v", err)
	}
}

func TestADeletedNamespaceGoesWithAllThatIsInIt(t *testing.T) {
	c := shared
	api := client(t, c.Config()).CoreV1()
	if _, err := api.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"},
		// With a longer grace the namespace controller looks again after half of it.
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To(int64(1)), Containers: []corev1.Container{{Name: "c", Image: "i", Command: []string{"sleep", "600"}}}},
	}
	if _, err := api.Pods("gone").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := api.Namespaces().Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := api.Namespaces().Get(ctx, "gone", metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAFailedStartNamesTheReasonAndLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	_, err := Start(t.Context(), Options{APIServerArgs: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("got error %v, want one that names the flag", err)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*")); left != nil {
		t.Errorf("left behind: %v", left)
	}
	if _, err := Start(t.Context(), Options{Assets: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "kube-apiserver") {
		t.Errorf("with an empty folder of assets: got error %v", err)
	}
}

func start(t *testing.T, o Options) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func client(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func makeConfigMap(t *testing.T, c *Cluster, name string) {
	t.Helper()
	_, err := client(t, c.Config()).CoreV1().ConfigMaps("default").
		Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, c *Cluster, name string) (*corev1.ConfigMap, error) {
	t.Helper()
	return client(t, c.Config()).CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{})
}

func wantIdentity(t *testing.T, config *rest.Config, want string) {
	t.Helper()
	review, err := client(t, config).AuthenticationV1().SelfSubjectReviews().
		Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := review.Status.UserInfo.Username; got != want {
		t.Errorf("acts as %s, want %s", got, want)
	}
}
