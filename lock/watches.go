package lock

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// watches wake those that wait. An Exclusive request has a watch that shows its lock
// when that is granted to it, and only then; a Shared one may be granted together
// with others, so it sees each change of its lock. Where a process waits for more
// than maxWatches, the others share one watch on all locks of the namespace: a
// connection does not take more. Safe for concurrent use.
type watches struct {
	conn *connection
	life context.Context //nolint:containedctx // of the shared watch
	work *sync.WaitGroup

	mu        sync.Mutex
	narrow    int
	wide      watch.Interface
	forbidden bool // to watch all locks
	waiting   map[string]map[*wideWaiter]struct{}
}

// wideWaiter waits by the shared watch.
type wideWaiter struct {
	owner  string // empty: it sees every change of its lock
	events chan watch.Event
	closed bool
}

// open starts to watch. Where the watch ends, or shows something as deleted, the
// lock must be read. It must be stopped.
func (ws *watches) open(ctx context.Context, a *acquisition) (watch.Interface, error) {
	lock := a.view.latest()
	owner := a.owner
	if a.waiter(a.seen.Spec).Mode == v1alpha1.Shared {
		owner = ""
	}
	ws.mu.Lock()
	wide := ws.narrow >= maxWatches && !ws.forbidden
	if !wide {
		ws.narrow++
	}
	ws.mu.Unlock()
	if wide {
		w, err := ws.openWide(a.name, owner)
		if !apierrors.IsForbidden(err) {
			return w, err
		}
		ws.mu.Lock()
		ws.forbidden = true
		ws.narrow++
		ws.mu.Unlock()
	}
	w, err := ws.openNarrow(ctx, lock, a.name, owner)
	if err != nil {
		ws.closeNarrow()
		return nil, err
	}
	return &narrowWatch{Interface: w, close: sync.OnceFunc(ws.closeNarrow)}, nil
}

type narrowWatch struct {
	watch.Interface
	close func()
}

// Stop implements watch.Interface.
func (w *narrowWatch) Stop() {
	w.Interface.Stop()
	w.close()
}

func (ws *watches) closeNarrow() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.narrow--
}

func (ws *watches) openNarrow(ctx context.Context, lock *v1alpha1.DistLock, name, owner string) (watch.Interface, error) {
	which := fields.Set{metav1.ObjectNameField: name}
	if owner != "" {
		which["status.lastGranted"] = owner
	}
	o := metav1.ListOptions{FieldSelector: which.String()}
	if lock != nil {
		o.ResourceVersion = lock.ResourceVersion
	}
	w, err := ws.start(ctx, o)
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		o.ResourceVersion = "" // from what there is now
		w, err = ws.start(ctx, o)
	}
	return w, err
}

// start begins a watch, within ctx. It ends when it is stopped, or with the Client.
func (ws *watches) start(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	done, err := ws.conn.turn(ctx, requestPatience)
	if err != nil {
		return nil, err
	}
	defer done()
	within := ctx
	ctx, cancel := context.WithCancel(ws.life)
	begun := context.AfterFunc(within, cancel)
	defer begun()
	late := time.AfterFunc(requestPatience, cancel)
	w, err := ws.conn.locks.Watch(ctx, o) //nolint:contextcheck // the watch outlives the call that began it
	ws.conn.answered(err)
	if !late.Stop() {
		if err == nil {
			w.Stop()
		}
		ws.conn.dialer.CloseAll()
		return nil, errNoAnswer
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &endingWatch{w, cancel}, nil
}

type endingWatch struct {
	watch.Interface
	cancel context.CancelFunc
}

// Stop implements watch.Interface.
func (w *endingWatch) Stop() {
	w.cancel()
	w.Interface.Stop()
}

// openWide takes part in the shared watch, which begins with the first.
func (ws *watches) openWide(name, owner string) (watch.Interface, error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.wide == nil {
		w, err := ws.start(ws.life, metav1.ListOptions{}) // it shows at once what there is
		if err != nil {
			return nil, err
		}
		ws.wide = w
		ws.work.Go(func() { ws.share(w) })
	}
	waiter := &wideWaiter{owner: owner, events: make(chan watch.Event, 16)}
	if ws.waiting[name] == nil {
		ws.waiting[name] = map[*wideWaiter]struct{}{}
	}
	ws.waiting[name][waiter] = struct{}{}
	w := watch.NewProxyWatcher(waiter.events)
	return &narrowWatch{Interface: w, close: sync.OnceFunc(func() { ws.closeWide(name, waiter) })}, nil
}

// share shows each event to those that it is for, until the watch ends.
func (ws *watches) share(w watch.Interface) {
	for e := range w.ResultChan() {
		if lock, ok := e.Object.(*v1alpha1.DistLock); ok {
			ws.show(lock, e)
		}
	}
	w.Stop()
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.wide != w {
		return // it was stopped when nobody waited any more
	}
	ws.wide = nil
	for _, waiters := range ws.waiting {
		for waiter := range waiters {
			waiter.end()
		}
	}
	clear(ws.waiting)
}

func (ws *watches) show(lock *v1alpha1.DistLock, e watch.Event) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for waiter := range ws.waiting[lock.Name] {
		if waiter.owner != "" && waiter.owner != lock.Status.LastGranted && e.Type != watch.Deleted {
			continue
		}
		select {
		case waiter.events <- e:
		default: // it is slow, and will read
			waiter.end()
			delete(ws.waiting[lock.Name], waiter)
		}
	}
}

func (w *wideWaiter) end() {
	if !w.closed {
		w.closed = true
		close(w.events)
	}
}

func (ws *watches) closeWide(name string, waiter *wideWaiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	waiter.end()
	delete(ws.waiting[name], waiter)
	if len(ws.waiting[name]) == 0 {
		delete(ws.waiting, name)
	}
	if len(ws.waiting) == 0 && ws.wide != nil {
		ws.wide.Stop()
		ws.wide = nil
	}
}

// stop ends the shared watch.
func (ws *watches) stop() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.wide != nil {
		ws.wide.Stop()
	}
}
