package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// node is where all pods run.
const node = "played"

// kubelet plays scheduler and kubelet for a namespace: a pod runs for up to two
// seconds and ends well, or now and then not; one that is deleted takes a while to
// end.
type kubelet struct {
	client client.WithWatch
	dice   *dice

	mu      sync.Mutex
	deleted map[types.UID]chan struct{} // closed when the pod is deleted
	err     error
}

func newKubelet(c client.WithWatch, d *dice) *kubelet {
	return &kubelet{client: c, dice: d, deleted: map[types.UID]chan struct{}{}}
}

// play runs the pods of a namespace until ctx ends. None may be there yet.
func (k *kubelet) play(ctx context.Context, namespace string) error {
	if err := k.client.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}); err != nil {
		return err
	}
	var pods corev1.PodList
	if err := k.client.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return err
	}
	w, err := watchtools.NewRetryWatcherWithContext(ctx, pods.ResourceVersion, podsIn{k.client, namespace})
	if err != nil {
		return err
	}
	go func() {
		for e := range w.ResultChan() {
			k.see(ctx, e)
		}
	}()
	return nil
}

type podsIn struct {
	client    client.WithWatch
	namespace string
}

// WatchWithContext implements cache.WatcherWithContext.
func (p podsIn) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return p.client.Watch(ctx, &corev1.PodList{}, &client.ListOptions{Namespace: p.namespace, Raw: &o})
}

func (k *kubelet) see(ctx context.Context, e watch.Event) {
	pod, ok := e.Object.(*corev1.Pod)
	if !ok || e.Type == watch.Bookmark {
		if !ok {
			k.fail(fmt.Errorf("watching pods: %v", e.Object))
		}
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	deleted, known := k.deleted[pod.UID]
	switch {
	case e.Type == watch.Added && pod.DeletionTimestamp == nil:
		deleted = make(chan struct{})
		k.deleted[pod.UID] = deleted
		go func() {
			if err := k.run(ctx, pod, deleted); !passable(ctx, err) {
				k.fail(err)
			}
		}()
	case e.Type == watch.Deleted, pod.DeletionTimestamp != nil:
		if known {
			delete(k.deleted, pod.UID)
			close(deleted)
		}
	}
}

// run is the life of a pod.
func (k *kubelet) run(ctx context.Context, pod *corev1.Pod, deleted <-chan struct{}) error {
	pause(ctx, k.dice.duration(200*time.Millisecond))
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	if err := k.client.SubResource("binding").Create(ctx, pod.DeepCopy(), binding); err != nil {
		return err
	}
	if err := k.setPhase(ctx, pod, corev1.PodRunning, corev1.ConditionTrue); err != nil {
		return err
	}
	end := time.NewTimer(k.dice.duration(2 * time.Second))
	defer end.Stop()
	phase := corev1.PodSucceeded
	if k.dice.oneIn(10) {
		phase = corev1.PodFailed
	}
	select {
	case <-end.C:
	case <-deleted:
		phase = corev1.PodFailed
		pause(ctx, k.dice.duration(2*time.Second)) // the time it takes after SIGTERM
	case <-ctx.Done():
		return nil
	}
	if err := k.setPhase(ctx, pod, phase, corev1.ConditionFalse); err != nil {
		return err
	}
	select {
	case <-deleted: // a pod that is deleted when it has ended needs no kubelet, one that was deleted before does
		return k.client.Delete(ctx, pod.DeepCopy(), client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	case <-ctx.Done():
	}
	return nil
}

// passable reports whether an error is none, or that of a pod that is gone or of the
// end.
func passable(ctx context.Context, err error) bool {
	return err == nil || ctx.Err() != nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err)
}

func (k *kubelet) setPhase(ctx context.Context, pod *corev1.Pod, phase corev1.PodPhase, ready corev1.ConditionStatus) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": corev1.PodStatus{
			Phase:      phase,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.Now()}},
		},
	})
	if err != nil {
		return err
	}
	return k.client.Status().Patch(ctx, pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch))
}

func (k *kubelet) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.err = err
	}
}

// failed is the first thing that went wrong here.
func (k *kubelet) failed() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}
