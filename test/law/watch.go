package law

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// catchUp bounds how long the watches may lag behind at the end.
const catchUp = 30 * time.Second

// Enforce records every version of the namespace's locks, Jobs and pods until
// the test ends, and then fails it for each break of the law. Call it before
// anything is in the namespace.
func Enforce(t *testing.T, c client.WithWatch, namespace string) {
	t.Helper()
	r := &recorder{changed: make(chan struct{}, 1)}
	watching, stop := context.WithCancel(context.WithoutCancel(t.Context())) // until judged, which is after the test
	t.Cleanup(stop)
	for _, list := range lists() {
		if err := c.List(watching, list, client.InNamespace(namespace)); err != nil {
			t.Fatalf("law: listing %T: %v", list, err)
		}
		w, err := watchtools.NewRetryWatcherWithContext(watching, list.GetResourceVersion(), kindIn{c, list, namespace})
		if err != nil {
			t.Fatalf("law: watching %T: %v", list, err)
		}
		go r.record(w)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), catchUp)
		defer cancel()
		if err := r.caughtUp(ctx, c, namespace); err != nil {
			t.Errorf("law: not judged: %v", err)
			return
		}
		versions := r.versions()
		for _, b := range Check(versions) {
			t.Errorf("law: %s", b)
		}
		t.Logf("law: %d stored versions judged", len(versions))
	})
}

func lists() []client.ObjectList {
	return []client.ObjectList{&v1alpha1.DistLockList{}, &batchv1.JobList{}, &corev1.PodList{}}
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

type recorder struct {
	changed chan struct{}

	mu   sync.Mutex
	seen []Version
	err  error
}

func (r *recorder) record(w watch.Interface) {
	for e := range w.ResultChan() {
		r.mu.Lock()
		switch o, ok := e.Object.(client.Object); {
		case !ok:
			r.err = fmt.Errorf("watch: %s %v", e.Type, e.Object)
		case e.Type != watch.Bookmark:
			r.seen = append(r.seen, Version{Object: o, Deleted: e.Type == watch.Deleted})
		}
		r.mu.Unlock()
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
}

func (r *recorder) versions() []Version {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Version(nil), r.seen...)
}

// caughtUp waits until the watches have shown what a list shows.
func (r *recorder) caughtUp(ctx context.Context, c client.Reader, namespace string) error {
	want := map[types.UID]string{}
	for _, list := range lists() {
		if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return err
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			want[o.(client.Object).GetUID()] = o.(client.Object).GetResourceVersion()
			return nil
		}); err != nil {
			return err
		}
	}
	for {
		missing, err := r.missing(want)
		if err != nil || missing == 0 {
			return err
		}
		select {
		case <-r.changed:
		case <-ctx.Done():
			return fmt.Errorf("%d objects were never seen as they are", missing)
		}
	}
}

func (r *recorder) missing(want map[types.UID]string) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	missing := len(want)
	found := map[types.UID]bool{}
	for _, v := range r.seen {
		if uid := v.Object.GetUID(); want[uid] == v.Object.GetResourceVersion() && !found[uid] {
			found[uid] = true
			missing--
		}
	}
	return missing, r.err
}
