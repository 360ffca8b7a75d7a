package podrunner_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/distlock-dev/distlock/hack/cluster"
)

var (
	shared *cluster.Cluster
	client kubernetes.Interface
)

func TestMain(m *testing.M) {
	code := 1
	var err error
	if shared, err = cluster.Start(context.Background(), cluster.Options{}); err == nil {
		if client, err = kubernetes.NewForConfig(shared.Config()); err == nil {
			code = m.Run()
		}
		_ = shared.Stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func TestACommandRunsWithItsEnvironmentAndSucceeds(t *testing.T) {
	pod := run(t, container("main", "sh", "-c", `echo "$TOKEN $NAME $1"`, "sh"), func(p *corev1.Pod) {
		p.Annotations = map[string]string{"distlock.dev/fencing-token": "17"}
		c := &p.Spec.Containers[0]
		c.Args = []string{"lock-$(TOKEN)"}
		c.Env = []corev1.EnvVar{
			{Name: "TOKEN", ValueFrom: fieldRef("metadata.annotations['distlock.dev/fencing-token']")},
			{Name: "NAME", ValueFrom: fieldRef("metadata.name")},
		}
	})
	pod = until(t, pod, ended)
	if pod.Status.Phase != corev1.PodSucceeded || exitCode(pod) != 0 {
		t.Errorf("phase %s, exit code %d", pod.Status.Phase, exitCode(pod))
	}
	wantLog(t, pod, "17 "+pod.Name+" lock-17\n")
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && (condition.Status != corev1.ConditionFalse || condition.Reason != "PodCompleted") {
			t.Errorf("condition Ready is %s for the reason %s", condition.Status, condition.Reason)
		}
	}
}

func TestAFailedCommandReportsItsExitCode(t *testing.T) {
	pod := until(t, run(t, container("main", "sh", "-c", "exit 7")), ended)
	if pod.Status.Phase != corev1.PodFailed || exitCode(pod) != 7 {
		t.Errorf("phase %s, exit code %d", pod.Status.Phase, exitCode(pod))
	}
}

func TestAProgramThatIsNotThereFailsThePod(t *testing.T) {
	pod := until(t, run(t, container("main", "/no/such/program")), ended)
	state := pod.Status.ContainerStatuses[0].State.Terminated
	if pod.Status.Phase != corev1.PodFailed || state.Reason != "StartError" || state.ExitCode != 128 {
		t.Errorf("phase %s, state %+v", pod.Status.Phase, state)
	}
}

func TestInitContainersRunFirstAndInOrder(t *testing.T) {
	pod := run(t, container("main", "sh", "-c", "cat steps"), func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{
			container("first", "sh", "-c", "echo 1 >> steps"), container("image-only"), container("second", "sh", "-c", "echo 2 >> steps"),
		}
	})
	if pod = until(t, pod, ended); pod.Status.Phase != corev1.PodSucceeded {
		t.Errorf("phase %s", pod.Status.Phase)
	}
	wantLog(t, pod, "1\n2\n")
}

func TestAFailedInitContainerFailsThePod(t *testing.T) {
	pod := run(t, container("main", "sh", "-c", "echo ran"), func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{container("init", "false")}
	})
	if pod = until(t, pod, ended); pod.Status.Phase != corev1.PodFailed {
		t.Errorf("phase %s", pod.Status.Phase)
	}
	if _, err := os.Stat(shared.Pods.LogFile(pod, "main")); !os.IsNotExist(err) {
		t.Errorf("the main container was started: %v", err)
	}
}

func TestOnFailureRestartsUntilSuccess(t *testing.T) {
	pod := run(t, container("main", "sh", "-c", "test -e again || { touch again; exit 3; }"), func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	})
	pod = until(t, pod, ended)
	status := pod.Status.ContainerStatuses[0]
	if pod.Status.Phase != corev1.PodSucceeded || status.RestartCount != 1 || status.LastTerminationState.Terminated.ExitCode != 3 {
		t.Errorf("phase %s, status %+v", pod.Status.Phase, status)
	}
}

func TestADeletedPodIsTerminatedInOrder(t *testing.T) {
	pod := run(t, container("main", "sh", "-c", "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.1; done"), keepObject)
	untilLog(t, pod, "ready\n")
	deletePod(t, pod, 60)
	pod = until(t, pod, ended)
	if pod.DeletionTimestamp == nil || pod.Status.Phase != corev1.PodFailed || exitCode(pod) != 5 {
		t.Errorf("deleted %v, phase %s, exit code %d", pod.DeletionTimestamp, pod.Status.Phase, exitCode(pod))
	}
	untilLog(t, pod, "bye\n")
	// The object goes after its final status, and not before others let it.
	pod = until(t, pod, func(p *corev1.Pod) bool { return ptr.Deref(p.DeletionGracePeriodSeconds, -1) == 0 })
	releaseObject(t, pod)
	untilGone(t, pod)
}

func TestAPodThatIgnoresSIGTERMIsKilledAfterItsGrace(t *testing.T) {
	pod := run(t, container("main", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"), keepObject)
	untilLog(t, pod, "ready\n")
	asked := time.Now()
	deletePod(t, pod, 2)
	pod = until(t, pod, ended)
	if took := time.Since(asked); took < 2*time.Second {
		t.Errorf("killed after %s, within its grace period", took)
	}
	if pod.Status.Phase != corev1.PodFailed || exitCode(pod) != 137 {
		t.Errorf("phase %s, exit code %d", pod.Status.Phase, exitCode(pod))
	}
	releaseObject(t, pod)
}

func TestASecondDeletionShortensTheGrace(t *testing.T) {
	pod := run(t, container("main", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"))
	untilLog(t, pod, "ready\n")
	deletePod(t, pod, 3600)
	deletePod(t, pod, 1)
	untilGone(t, pod)
}

func TestAPodDeletedByForceIsKilled(t *testing.T) {
	pod := run(t, container("main", "sh", "-c", "trap 'echo asked' TERM; echo ready; while :; do sleep 600 & wait; done"))
	untilLog(t, pod, "ready\n")
	deletePod(t, pod, 0)
	untilGone(t, pod)
	untilLog(t, pod, "asked\n")
}

func TestWithoutACommandAPodRunsUntilSomebodySaysOtherwise(t *testing.T) {
	pod := until(t, run(t, container("main")), func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	setPhase(t, pod, corev1.PodSucceeded)
	pod = until(t, pod, ended)
	deletePod(t, pod, 30)
	untilGone(t, pod)

	deleted := until(t, run(t, container("main"), keepObject), func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	deletePod(t, deleted, 3600)
	if deleted = until(t, deleted, ended); deleted.Status.Phase != corev1.PodFailed || exitCode(deleted) != 143 {
		t.Errorf("phase %s, exit code %d", deleted.Status.Phase, exitCode(deleted))
	}
	releaseObject(t, deleted)
}

func TestKubectlLogsShowsAndFollowsTheOutput(t *testing.T) {
	pod := run(t, container("main", "sh", "-c", "echo one; echo two; while ! test -e go; do sleep 0.1; done; echo three"))
	untilLog(t, pod, "two\n")
	out, err := shared.Kubectl(t.Context(), "logs", pod.Name, "--tail=1")
	if err != nil || string(out) != "two\n" {
		t.Errorf("the last line: %q, error %v", out, err)
	}
	followed := make(chan string)
	go func() {
		out, err := shared.Kubectl(t.Context(), "logs", "-f", pod.Name)
		followed <- fmt.Sprint(string(out), err)
	}()
	if err := os.WriteFile(filepath.Join(filepath.Dir(shared.Pods.LogFile(pod, "main")), "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := <-followed; got != "one\ntwo\nthree\n<nil>" {
		t.Errorf("followed: %q", got)
	}
	if out, err := shared.Kubectl(t.Context(), "logs", pod.Name, "-c", "none"); err == nil {
		t.Errorf("of a container that is not there: %q", out)
	}
}

func TestAJobCompletesThroughItsPods(t *testing.T) {
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "job-", Namespace: "default"},
		Spec: batchv1.JobSpec{
			Completions: ptr.To(int32(100)), Parallelism: ptr.To(int32(100)),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{container("main", "true")},
			}},
		},
	}
	job, err := client.BatchV1().Jobs("default").Create(t.Context(), job, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Job is complete", func(ctx context.Context) (bool, error) {
		job, err = client.BatchV1().Jobs("default").Get(ctx, job.Name, metav1.GetOptions{})
		return err == nil && job.Status.CompletionTime != nil, err
	})
	if job.Status.Succeeded != 100 {
		t.Errorf("%d pods succeeded", job.Status.Succeeded)
	}
}

func container(name string, command ...string) corev1.Container {
	return corev1.Container{Name: name, Image: "example.com/image", Command: command}
}

func fieldRef(path string) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
}

// run creates a pod of one container.
func run(t *testing.T, c corev1.Container, change ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-", Namespace: "default"},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{c}},
	}
	for _, f := range change {
		f(pod)
	}
	pod, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// keepObject keeps the pod's object, as the Job controller does, until releaseObject.
func keepObject(p *corev1.Pod) { p.Finalizers = []string{"example.com/keep"} }

func releaseObject(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	patch(t, pod, map[string]any{"metadata": map[string]any{"finalizers": nil}})
}

func setPhase(t *testing.T, pod *corev1.Pod, phase corev1.PodPhase) {
	t.Helper()
	patch(t, pod, map[string]any{"status": map[string]any{"phase": phase}}, "status")
}

func patch(t *testing.T, pod *corev1.Pod, change map[string]any, subresources ...string) {
	t.Helper()
	raw, err := json.Marshal(change)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, raw, metav1.PatchOptions{}, subresources...); err != nil {
		t.Fatal(err)
	}
}

func deletePod(t *testing.T, pod *corev1.Pod, grace int64) {
	t.Helper()
	if err := client.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		t.Fatal(err)
	}
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func exitCode(p *corev1.Pod) int32 { return p.Status.ContainerStatuses[0].State.Terminated.ExitCode }

func until(t *testing.T, pod *corev1.Pod, wanted func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	eventually(t, "the pod is as wanted", func(ctx context.Context) (bool, error) {
		now, err := client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		pod = now
		return wanted(pod), nil
	})
	return pod
}

func untilGone(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	eventually(t, "the pod is gone", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

func untilLog(t *testing.T, pod *corev1.Pod, words string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the log contains %q", words), func(context.Context) (bool, error) {
		content, err := os.ReadFile(shared.Pods.LogFile(pod, "main"))
		return err == nil && strings.Contains(string(content), words), nil
	})
}

func wantLog(t *testing.T, pod *corev1.Pod, want string) {
	t.Helper()
	got, err := os.ReadFile(shared.Pods.LogFile(pod, "main"))
	if err != nil || string(got) != want {
		t.Errorf("log %q, want %q (error %v)", got, want, err)
	}
}

func eventually(t *testing.T, what string, holds wait.ConditionWithContextFunc) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, holds); err != nil {
		t.Fatalf("it never came true that %s: %v", what, err)
	}
}
