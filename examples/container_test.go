package examples

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// The containers run as processes here, so what the kubelet and the image would give
// them is put in their place: the API server and its token, a PATH, and a folder.
func TestContainersTakeTurnsBehindKubectlDistlockRun(t *testing.T) {
	ns := namespace(t, "container/lock.yaml")
	kubectlIn(t, ns, "apply", "-f", "../config/samples/one-lock.yaml")
	log := filepath.Join(t.TempDir(), "log")
	apply(t, ns, jobAsProcesses(t, ns, log))
	kubectlIn(t, ns, "wait", "--for=condition=Complete", "--timeout=3m", "job/reports")

	text, err := os.ReadFile(log)
	must(t, err)
	if len(turns(t, string(text))) != 3 {
		t.Errorf("%q; want three turns", text)
	}
	if claims := kubectlIn(t, ns, "get", "lockclaims", "-o", "name"); claims != "" {
		t.Errorf("left behind: %s", claims)
	}
	if holders := kubectlIn(t, ns, "get", "distlock", "reports", "-o", "jsonpath={.status.holders}"); holders != "" {
		t.Errorf("still held: %s", holders)
	}
}

// A pod that is deleted while it works ends its program and lets the next one in at
// once, long before its lease would end.
func TestAContainerThatIsToldToStopReleasesTheLock(t *testing.T) {
	ns := namespace(t, "container/lock.yaml")
	kubectlIn(t, ns, "patch", "distlock", "reports", "--type=merge", "-p", `{"spec":{"leaseDurationSeconds":3600}}`)
	kubectlIn(t, ns, "apply", "-f", "../config/samples/one-lock.yaml")
	job := jobAsProcesses(t, ns, "")
	container := &job.Spec.Template.Spec.Containers[0]
	container.Command = append(container.Command[:4], "sh", "-c", "trap 'exit 3' TERM; sleep 300 & wait")
	job.Spec.Completions, job.Spec.Parallelism = new(int32(1)), new(int32(1))
	apply(t, ns, job)
	kubectlIn(t, ns, "wait", "--for=jsonpath={.status.holders}", "--timeout=2m", "distlock/reports")

	kubectlIn(t, ns, "delete", "job", "reports")
	if holders := kubectlIn(t, ns, "get", "distlock", "reports", "-o", "jsonpath={.status.holders}"); holders != "" {
		t.Errorf("the pod is gone, and the lock is held: %s", holders)
	}
}

func jobAsProcesses(t *testing.T, ns, log string) *batchv1.Job {
	t.Helper()
	text, err := os.ReadFile("container/job.yaml")
	must(t, err)
	job := &batchv1.Job{}
	must(t, yaml.UnmarshalStrict(text, job))
	kubeconfig, err := testEnv.ServiceAccountKubeconfig(t.Context(), ns, job.Spec.Template.Spec.ServiceAccountName)
	must(t, err)
	pod := &job.Spec.Template.Spec
	pod.Volumes, pod.Containers[0].VolumeMounts = nil, nil
	pod.Containers[0].Env = []corev1.EnvVar{
		{Name: "REPORTS", Value: log},
		{Name: "KUBECONFIG", Value: kubeconfig},
		{Name: "POD_NAMESPACE", Value: ns},
		{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
		{Name: "POD_UID", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}},
	}
	return job
}

func apply(t *testing.T, ns string, job *batchv1.Job) {
	t.Helper()
	text, err := json.Marshal(job)
	must(t, err)
	file := filepath.Join(t.TempDir(), "job.json")
	must(t, os.WriteFile(file, text, 0o600))
	kubectlIn(t, ns, "apply", "-f", file)
}

// The manifest runs what the image would.
func TestTheContainersManifestSaysWhatTheImageDoes(t *testing.T) {
	dockerfile, err := os.ReadFile("container/Dockerfile")
	must(t, err)
	entry := regexp.MustCompile(`(?m)^ENTRYPOINT (.*)$`).FindSubmatch(dockerfile)
	if entry == nil {
		t.Fatal("no ENTRYPOINT")
	}
	var words []string
	must(t, json.Unmarshal(entry[1], &words))
	text, err := os.ReadFile("container/job.yaml")
	must(t, err)
	job := &batchv1.Job{}
	must(t, yaml.UnmarshalStrict(text, job))
	if got := job.Spec.Template.Spec.Containers[0].Command; strings.Join(got, " ") != strings.Join(words, " ") {
		t.Errorf("the manifest runs %q, the image %q", got, words)
	}
}
