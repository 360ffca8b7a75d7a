package policy

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Fault 33.
func TestThePodsOfAGatedJobAreGuarded(t *testing.T) {
	job := runningJob(t, newNamespace(t))
	pod := podsOf(t, job)[0]
	const known = ": the pods of a Job with distlock.dev/lock are known by it"
	for _, c := range []change{
		{"its controller-uid is taken off", false, `{"metadata": {"labels": {"batch.kubernetes.io/controller-uid": null}}}`, "metadata.labels[batch.kubernetes.io/controller-uid]" + known},
		{"its controller-uid is taken off through its status", true, `{"metadata": {"labels": {"batch.kubernetes.io/controller-uid": null}}}`, "metadata.labels[batch.kubernetes.io/controller-uid]" + known},
		{"its old controller-uid is changed", false, `{"metadata": {"labels": {"controller-uid": "x"}}}`, "metadata.labels[controller-uid]" + known},
		{"its label is taken off", false, `{"metadata": {"labels": {"distlock.dev/gated": null}}}`, "metadata.labels[distlock.dev/gated]" + known},
		{"its label is taken off through its status", true, `{"metadata": {"labels": {"distlock.dev/gated": null}}}`, "metadata.labels[distlock.dev/gated]" + known},
		{"label and controller-uid are taken off at once", false, `{"metadata": {"labels": {"distlock.dev/gated": null, "batch.kubernetes.io/controller-uid": null}}}`, "metadata.labels[batch.kubernetes.io/controller-uid], metadata.labels[distlock.dev/gated]" + known},
		{"its token is changed", false, `{"metadata": {"annotations": {"distlock.dev/fencing-token": "8"}}}`, "metadata.annotations[distlock.dev/fencing-token]" + known},
		{"its token is changed through its status", true, `{"metadata": {"annotations": {"distlock.dev/fencing-token": "8"}}}`, "metadata.annotations[distlock.dev/fencing-token]" + known},
		{"its token is taken off", false, `{"metadata": {"annotations": {"distlock.dev/fencing-token": null}}}`, "metadata.annotations[distlock.dev/fencing-token]" + known},
		{"its lock is changed", false, `{"metadata": {"annotations": {"distlock.dev/lock": "other"}}}`, "metadata.annotations[distlock.dev/lock]" + known},
		{"it is labelled otherwise", false, `{"metadata": {"labels": {"team": "a"}}}`, ""},
		{"it is annotated otherwise", false, `{"metadata": {"annotations": {"example.com/x": "y"}}}`, ""},
		{"its status changes", true, `{"status": {"phase": "Succeeded"}}`, ""},
	} {
		c.try(t, author, &pod)
	}
	change{"by the controller", false, `{"metadata": {"annotations": {"distlock.dev/fencing-token": "8"}}}`, ""}.try(t, controller, &pod)
}

func TestAPodDoesNotBecomeAGatedJobsLater(t *testing.T) {
	pod := newPod(newNamespace(t))
	if err := author.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	for _, c := range []change{
		{"the label is added", false, `{"metadata": {"labels": {"distlock.dev/gated": "true"}}}`, "metadata.labels[distlock.dev/gated]"},
		{"the label is added through its status", true, `{"metadata": {"labels": {"distlock.dev/gated": "true"}}}`, "metadata.labels[distlock.dev/gated]"},
		{"another label is added", false, `{"metadata": {"labels": {"team": "a"}}}`, ""},
	} {
		c.try(t, author, pod)
	}
}

// The subresources that are not guarded, because they change no metadata.
func TestSubresourcesOfAPodChangeNoMetadata(t *testing.T) {
	// The node of the tests, were the pod on it, would refuse any resize.
	job := runningJob(t, newNamespace(t), spec(func(s *batchv1.JobSpec) { s.Template.Spec.SchedulerName = "nobody" }))
	pod := podsOf(t, job)[0]
	for _, sub := range []string{"ephemeralcontainers", "resize"} {
		t.Run(sub, func(t *testing.T) {
			changed := pod.DeepCopy()
			changed.ResourceVersion = ""
			changed.Labels["distlock.dev/gated"] = "false"
			if err := author.SubResource(sub).Update(t.Context(), changed, client.DryRunAll); err != nil {
				t.Fatal(err)
			}
			if got := changed.Labels["distlock.dev/gated"]; got != "true" {
				t.Errorf("the label is %q", got)
			}
		})
	}
}

// A binding's labels and annotations overwrite the pod's.
func TestABindingDoesNotTouchTheMarks(t *testing.T) {
	pod := newPod(newNamespace(t))
	pod.Spec.SchedulerName = "nobody"
	if err := author.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct {
		name                string
		labels, annotations map[string]string
		want                string
	}{
		{"nothing", nil, nil, ""},
		{"what a scheduler may set", map[string]string{"topology.kubernetes.io/zone": "a"}, map[string]string{"example.com/x": "y"}, ""},
		{"the controller-uid", map[string]string{"batch.kubernetes.io/controller-uid": "x"}, nil, "metadata: a Binding must not set batch.kubernetes.io/controller-uid"},
		{"the old controller-uid", map[string]string{"controller-uid": "x"}, nil, "metadata: a Binding must not set controller-uid"},
		{"the label", map[string]string{"distlock.dev/gated": "false"}, nil, "metadata: a Binding must not set distlock.dev/gated"},
		{"the token", nil, map[string]string{"distlock.dev/fencing-token": "8"}, "metadata: a Binding must not set distlock.dev/fencing-token"},
		{"all of it", map[string]string{"controller-uid": "x"}, map[string]string{"distlock.dev/lock": "x"}, "metadata: a Binding must not set distlock.dev/lock, controller-uid"},
	} {
		binding := &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: r.labels, Annotations: r.annotations},
			Target:     corev1.ObjectReference{Kind: "Node", Name: "local"},
		}
		t.Run(r.name+", through the pod", func(t *testing.T) {
			expect(t, author.SubResource("binding").Create(t.Context(), pod.DeepCopy(), binding.DeepCopy(), client.DryRunAll), r.want)
		})
		t.Run(r.name+", by itself", func(t *testing.T) {
			expect(t, author.Create(t.Context(), binding.DeepCopy(), client.DryRunAll), r.want)
		})
	}
}

func newPod(namespace string) *corev1.Pod {
	pod := &corev1.Pod{Spec: newTemplate().Spec.Template.Spec}
	pod.GenerateName, pod.Namespace = "pod-", namespace
	return pod
}
