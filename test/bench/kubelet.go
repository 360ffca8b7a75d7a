package main

import (
	"context"
	"encoding/json"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// runPod waits for a Job's pod and says that it runs.
func (p *play) runPod(ctx context.Context, j *batchv1.Job) (*corev1.Pod, error) {
	created, err := p.versions.first(ctx, "a resumed Job's pod", func(v version) bool {
		pod, ok := v.object.(*corev1.Pod)
		return ok && metav1.IsControlledBy(pod, j)
	})
	if err != nil {
		return nil, err
	}
	pod := created.object.(*corev1.Pod).DeepCopy()
	return pod, p.setPodStatus(ctx, pod, corev1.PodRunning, corev1.ConditionTrue)
}

// setSucceeded says that a pod's containers have ended well.
func (p *play) setSucceeded(ctx context.Context, pod *corev1.Pod) error {
	return p.setPodStatus(ctx, pod, corev1.PodSucceeded, corev1.ConditionFalse)
}

func (p *play) setPodStatus(ctx context.Context, pod *corev1.Pod, phase corev1.PodPhase, ready corev1.ConditionStatus) error {
	patch, err := json.Marshal(map[string]any{"status": corev1.PodStatus{
		Phase:      phase,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.Now()}},
	}})
	if err != nil {
		return err
	}
	return p.Client().Status().Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType, patch))
}
