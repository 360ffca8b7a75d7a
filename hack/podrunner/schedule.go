package podrunner

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// schedule binds a pod to the node. Without a node the API server would delete a pod
// without any grace.
func (r *Runner) schedule(running context.Context, pod *corev1.Pod) {
	if !waitsForNode(pod) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.binding[pod.UID] {
		return
	}
	r.binding[pod.UID] = true
	r.all.Go(func() {
		r.bind(running, pod)
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.binding, pod.UID)
	})
}

// waitsForNode says whether kube-scheduler would look for a node for the pod now.
func waitsForNode(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" &&
		pod.DeletionTimestamp == nil &&
		pod.Spec.SchedulerName == corev1.DefaultSchedulerName &&
		len(pod.Spec.SchedulingGates) == 0
}

func (r *Runner) bind(running context.Context, pod *corev1.Pod) {
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: r.node},
	}
	r.persist(running, pod, "binding", func(ctx context.Context) error {
		return r.scheduler.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
	})
}
