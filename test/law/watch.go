package law

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// catchUp bounds how long the watches may lag behind at the end.
const catchUp = 30 * time.Second

// Enforce judges every version of the namespace's locks, Jobs and pods until the
// test ends, and fails it for each break of the law. Call it before anything is in
// the namespace.
func Enforce(t *testing.T, c client.WithWatch, namespace string) {
	t.Helper()
	watching, stop := context.WithCancel(context.WithoutCancel(t.Context())) // until judged, which is after the test
	t.Cleanup(stop)
	w, err := Watch(watching, c, namespace, func(broken string) { t.Errorf("law: %s", broken) }, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		judged, err := w.Finish(context.WithoutCancel(t.Context()))
		if err != nil {
			t.Errorf("law: not judged to the end: %v", err)
		}
		t.Logf("law: %d stored versions judged", judged)
	})
}

// Watcher judges a namespace from its stored versions, while they come.
type Watcher struct {
	client    client.Reader
	namespace string
	stream    *stream
	changed   chan struct{}

	mu  sync.Mutex
	err error
}

// Watch watches until ctx ends. broken is told each break of the law, soon after
// it was stored; each, which may be nil, is shown every version in order once it
// is judged. They are called one at a time. Nothing may be in the namespace yet.
func Watch(ctx context.Context, c client.WithWatch, namespace string, broken func(string), each func(Version)) (*Watcher, error) {
	r := &Watcher{client: c, namespace: namespace, stream: newStream(broken, each), changed: make(chan struct{}, 1)}
	for _, list := range lists() {
		if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("law: listing %T: %w", list, err)
		}
		w, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), kindIn{c, list, namespace})
		if err != nil {
			return nil, fmt.Errorf("law: watching %T: %w", list, err)
		}
		go r.record(w)
	}
	return r, nil
}

// Finish waits until the watches have shown all there is, judges what is left, and
// returns how many versions were judged in all.
func (r *Watcher) Finish(ctx context.Context) (judged int, err error) {
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	err = r.caughtUp(ctx)
	return r.stream.finish(), err
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

func (r *Watcher) record(w watch.Interface) {
	for e := range w.ResultChan() {
		switch o, ok := e.Object.(client.Object); {
		case !ok:
			r.mu.Lock()
			r.err = fmt.Errorf("watch: %s %v", e.Type, e.Object)
			r.mu.Unlock()
		case e.Type != watch.Bookmark:
			r.stream.add(Version{Object: o, Deleted: e.Type == watch.Deleted})
		}
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
}

// Err is what ended a watch, if anything did.
func (r *Watcher) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// caughtUp waits until the watches have shown what a list shows.
func (r *Watcher) caughtUp(ctx context.Context) error {
	want := map[reflect.Type]int64{}
	for _, list := range lists() {
		if err := r.client.List(ctx, list, client.InNamespace(r.namespace)); err != nil {
			return err
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			v := Version{Object: o.(client.Object)}
			want[v.kind()] = max(want[v.kind()], v.number())
			return nil
		}); err != nil {
			return err
		}
	}
	for {
		behind, err := r.stream.behind(want), r.Err()
		if err != nil || !behind {
			return err
		}
		select {
		case <-r.changed:
		case <-ctx.Done():
			return errors.New("not everything that is stored was seen")
		}
	}
}
