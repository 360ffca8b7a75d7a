package podrunner

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
)

// persist tries a write until it succeeds, the pod is gone (or another one has its
// name), or the runner stops: the API server may be down for a while.
func (r *Runner) persist(running context.Context, pod *corev1.Pod, what string, write func(context.Context) error) {
	backoff := wait.Backoff{Duration: 50 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 10, Cap: time.Second}
	told := ""
	_ = backoff.DelayFunc().Until(running, true, true, func(ctx context.Context) (bool, error) {
		err := write(ctx)
		if over := err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || ctx.Err() != nil; over {
			return true, nil
		}
		if told != err.Error() {
			told = err.Error()
			_, _ = fmt.Fprintf(r.log, "pod runner: %s of %s/%s: %v\n", what, pod.Namespace, pod.Name, err)
		}
		return false, nil
	})
}

// report patches the pod's status. The uid makes it fail on a pod made anew under
// the same name.
func (r *Runner) report(running context.Context, pod *corev1.Pod, status corev1.PodStatus) {
	r.persist(running, pod, "status", func(ctx context.Context) error {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": pod.UID},
			"status":   status,
		})
		if err != nil {
			return err
		}
		_, err = r.kubelet.CoreV1().Pods(pod.Namespace).
			Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
}

// remove deletes the object of a pod that has ended, at once; what is left of it
// then are other parties' finalizers.
func (r *Runner) remove(running context.Context, pod *corev1.Pod) {
	r.persist(running, pod, "deletion", func(ctx context.Context) error {
		return r.kubelet.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To(int64(0)),
			Preconditions:      &metav1.Preconditions{UID: &pod.UID},
		})
	})
}
