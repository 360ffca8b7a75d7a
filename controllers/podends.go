package controllers

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// podEnds watches, by name, the pods of leased holds that someone waits for: a
// hold whose pod has ended need not run out its lease (L6). Safe for concurrent
// use, for different locks.
type podEnds struct {
	ctx    context.Context //nolint:containedctx // of the watches, which outlive the reconcile that starts them
	client kubernetes.Interface
	// woken gets the lock of a pod that has ended.
	woken chan event.GenericEvent

	mu      sync.Mutex
	watches map[types.NamespacedName]map[holdKey]*podWatch
}

type podWatch struct {
	podRef
	stop  context.CancelFunc
	ended bool
}

// holdKey is one hold of a lock: an owner may get another.
type holdKey struct {
	owner string
	token int64
}

func keyOf(h v1alpha1.Hold) holdKey { return holdKey{h.Owner, h.FencingToken} }

type podRef struct {
	uid  types.UID
	name string
}

func newPodEnds(ctx context.Context, c kubernetes.Interface) *podEnds {
	return &podEnds{
		ctx: ctx, client: c, woken: make(chan event.GenericEvent),
		watches: map[types.NamespacedName]map[holdKey]*podWatch{},
	}
}

// follow watches the pods of these holds of a lock, and no others of it. A hold
// whose pod is not known any more (nil) is followed as before.
func (p *podEnds) follow(lock types.NamespacedName, holds map[holdKey]*podRef) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for hold, w := range p.watches[lock] {
		if _, wanted := holds[hold]; !wanted {
			w.stop()
			delete(p.watches[lock], hold)
		}
	}
	for hold, pod := range holds {
		if pod == nil || p.watches[lock][hold] != nil {
			continue
		}
		if p.watches[lock] == nil {
			p.watches[lock] = map[holdKey]*podWatch{}
		}
		ctx, stop := context.WithCancel(p.ctx)
		w := &podWatch{podRef: *pod, stop: stop}
		p.watches[lock][hold] = w
		go p.watch(ctx, lock, w)
	}
	if len(p.watches[lock]) == 0 {
		delete(p.watches, lock)
	}
}

// watch waits until a pod has ended by its kubelet's word. One that vanishes may
// still run.
func (p *podEnds) watch(ctx context.Context, lock types.NamespacedName, w *podWatch) {
	pods := toolscache.NewListWatchFromClient(p.client.CoreV1().RESTClient(), "pods", lock.Namespace, fields.OneTermEqualSelector(metav1.ObjectNameField, w.name))
	_, err := watchtools.UntilWithSync(ctx, pods, &corev1.Pod{}, nil, func(e watch.Event) (bool, error) {
		pod, ok := e.Object.(*corev1.Pod)
		return ok && pod.UID == w.uid && kubeletEnded(pod), nil
	})
	if err != nil {
		return // nobody waits any more
	}
	p.mu.Lock()
	w.ended = true
	p.mu.Unlock()
	select {
	case p.woken <- event.GenericEvent{Object: &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: lock.Namespace, Name: lock.Name}}}:
	case <-ctx.Done():
	}
}

// hasEnded reports whether the pod of a hold was seen to have ended by its
// kubelet's word.
func (p *podEnds) hasEnded(lock types.NamespacedName, h v1alpha1.Hold) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.watches[lock][keyOf(h)]
	return w != nil && w.ended
}

// kubeletEnded reports whether a pod's kubelet has said that nothing of it runs.
// Pod garbage collection sets a terminal phase too, on the word of nobody: it
// leaves the containers as the kubelet reported them last.
func kubeletEnded(pod *corev1.Pod) bool {
	if !terminal(pod) || len(pod.Status.ContainerStatuses) < len(pod.Spec.Containers) {
		return false
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for _, s := range statuses {
			if s.State.Terminated == nil {
				return false
			}
		}
	}
	for _, s := range pod.Status.InitContainerStatuses {
		if s.State.Running != nil {
			return false
		}
	}
	return true
}

// podBehind is the pod of a leased hold: that which it names, or the owner of its
// claim; nil where none is known.
func podBehind(g *gathered, h v1alpha1.Hold) *podRef {
	if h.Ref == nil {
		return nil
	}
	if h.Ref.Kind == "Pod" && h.Ref.APIVersion == "v1" {
		return &podRef{h.Ref.UID, h.Ref.Name}
	}
	if claim := g.claims[h.Ref.UID]; claim != nil {
		for _, o := range claim.OwnerReferences {
			if o.Kind == "Pod" && o.APIVersion == "v1" {
				return &podRef{o.UID, o.Name}
			}
		}
	}
	return nil
}

// followPods watches the pods of a lock's leased holds while someone waits.
func (r *Reconciler) followPods(g *gathered, e protocol.Effects) {
	holds := map[holdKey]*podRef{}
	for _, h := range g.lock.Status.Holders {
		if h.LeaseDurationSeconds != nil && len(e.Waiting) > 0 {
			holds[keyOf(h)] = podBehind(g, h)
		}
	}
	r.pods.follow(g.key, holds)
}
