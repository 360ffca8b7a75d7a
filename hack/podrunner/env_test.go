package podrunner

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestVariablesAreExpandedAsKubernetesDoes(t *testing.T) {
	env := map[string]string{"A": "1", "B": ""}
	for in, want := range map[string]string{
		"$(A)": "1", "x$(A)y$(B)z": "x1yz", "$(UNKNOWN)": "$(UNKNOWN)", "$$(A)": "$(A)", "$A": "$A", "100$": "100$", "$(A": "$(A", "": "",
	} {
		if got := expand(in, env); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestTheDownwardAPIIsResolved(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "pod", UID: "uid-1",
			Labels:      map[string]string{"app": "x"},
			Annotations: map[string]string{"distlock.dev/fencing-token": "17"},
		},
		Spec: corev1.PodSpec{NodeName: "local", ServiceAccountName: "sa"},
	}
	container := &corev1.Container{Name: "c"}
	want := map[string]string{
		"metadata.name": "pod", "metadata.namespace": "ns", "metadata.uid": "uid-1",
		"metadata.labels['app']": "x", "metadata.annotations['distlock.dev/fencing-token']": "17", "metadata.annotations['none']": "",
		"spec.nodeName": "local", "spec.serviceAccountName": "sa", "status.podIP": loopback,
	}
	for path := range want {
		container.Env = append(container.Env, corev1.EnvVar{
			Name: path, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}},
		})
	}
	container.Env = append(container.Env, corev1.EnvVar{Name: "LATER", Value: "in $(metadata.name)"})
	got, err := environment(pod, container)
	if err != nil {
		t.Fatal(err)
	}
	want["LATER"] = "in pod"
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s: got %q, want %q", name, got[name], value)
		}
	}
}

func TestAnEnvironmentThatCannotBeResolvedIsAnError(t *testing.T) {
	for name, container := range map[string]corev1.Container{
		"envFrom": {EnvFrom: []corev1.EnvFromSource{{}}},
		"fieldRef": {Env: []corev1.EnvVar{{Name: "SECRET", ValueFrom: &corev1.EnvVarSource{
			SecretKeyRef: &corev1.SecretKeySelector{Key: "k"}}}}},
		"metadata.none": {Env: []corev1.EnvVar{{Name: "NONE", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.none"}}}}},
	} {
		if _, err := environment(&corev1.Pod{}, &container); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got error %v, want one that names %s", err, name)
		}
	}
}
