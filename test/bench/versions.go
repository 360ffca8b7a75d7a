package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// patience is how long anything may take before the run is given up as stuck. It
// judges nothing.
const patience = 2 * time.Minute

// version is one stored version of an object, and when its event arrived here.
type version struct {
	object  client.Object
	deleted bool
	at      time.Time
}

// versions are those of a namespace's DistLocks, Jobs and pods since they were last
// forgotten, in the order in which they arrived.
type versions struct {
	mu   sync.Mutex
	all  []version
	err  error
	more chan struct{} // closed when something arrives
}

// watchVersions watches until ctx ends.
func watchVersions(ctx context.Context, c client.WithWatch, namespace string) (*versions, error) {
	v := &versions{more: make(chan struct{})}
	for _, list := range []client.ObjectList{&v1alpha1.DistLockList{}, &batchv1.JobList{}, &corev1.PodList{}} {
		if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return nil, err
		}
		w, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), kindIn{c, list, namespace})
		if err != nil {
			return nil, fmt.Errorf("watching %T: %w", list, err)
		}
		go func() {
			for e := range w.ResultChan() {
				v.arrived(e, time.Now())
			}
		}()
	}
	return v, nil
}

// kindIn watches one kind in one namespace.
type kindIn struct {
	client    client.WithWatch
	list      client.ObjectList
	namespace string
}

// WatchWithContext implements cache.WatcherWithContext.
func (k kindIn) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return k.client.Watch(ctx, k.list.DeepCopyObject().(client.ObjectList), &client.ListOptions{Namespace: k.namespace, Raw: &o})
}

func (v *versions) arrived(e watch.Event, at time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch o, ok := e.Object.(client.Object); {
	case !ok:
		v.err = fmt.Errorf("watch: %s %v", e.Type, e.Object)
	case e.Type == watch.Bookmark:
		return
	default:
		v.all = append(v.all, version{object: o, deleted: e.Type == watch.Deleted, at: at})
	}
	close(v.more)
	v.more = make(chan struct{})
}

// first returns the first version that matches, when it has arrived.
func (v *versions) first(ctx context.Context, what string, match func(version) bool) (version, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("nothing for %s", patience))
	defer cancel()
	for looked := 0; ; {
		v.mu.Lock()
		all, err, more := v.all, v.err, v.more
		v.mu.Unlock()
		for ; looked < len(all); looked++ {
			if match(all[looked]) {
				return all[looked], nil
			}
		}
		if err != nil {
			return version{}, fmt.Errorf("waiting for %s: %w", what, err)
		}
		select {
		case <-more:
		case <-ctx.Done():
			return version{}, fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		}
	}
}

// forget drops what has arrived. Nobody may be waiting.
func (v *versions) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = nil
}

// lockVersion matches a DistLock that is stored.
func lockVersion(name string, match func(*v1alpha1.DistLock) bool) func(version) bool {
	return func(v version) bool {
		l, ok := v.object.(*v1alpha1.DistLock)
		return ok && !v.deleted && l.Name == name && match(l)
	}
}

// jobVersion matches a Job that is stored.
func jobVersion(j *batchv1.Job, match func(*batchv1.Job) bool) func(version) bool {
	return func(v version) bool {
		now, ok := v.object.(*batchv1.Job)
		return ok && !v.deleted && now.UID == j.UID && match(now)
	}
}

// deletion matches the end of an object.
func deletion(o client.Object) func(version) bool {
	return func(v version) bool { return v.deleted && v.object.GetUID() == o.GetUID() }
}
