package podrunner

import (
	"context"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

const (
	// restartDelay is the time between the end of a container and its next start.
	restartDelay = time.Second
	// leastGrace is what a pod gets that was deleted by force.
	leastGrace = time.Second
)

// worker leads one pod through its life. Its goroutine, run, owns everything but
// what the mutex guards.
type worker struct {
	r       *Runner
	dir     string
	missing chan struct{} // closed when the pod's object is gone
	changed chan struct{} // holds an item when latest has changed

	mu     sync.Mutex
	latest *corev1.Pod

	containers []*container  // init containers first
	exits      chan int      // index of a container whose process has ended
	restarts   chan int      // index of a container whose delay is over
	over       chan struct{} // closed when run returns
	kill       *time.Timer   // runs while the pod is terminating
	asked      time.Time     // when it was seen to be deleted
	reported   corev1.PodStatus
}

func newWorker(r *Runner, pod *corev1.Pod) *worker {
	w := &worker{
		r: r, dir: r.podDir(pod),
		missing: make(chan struct{}), changed: make(chan struct{}, 1), latest: pod,
		exits: make(chan int), restarts: make(chan int), over: make(chan struct{}),
	}
	for i := range pod.Spec.InitContainers {
		w.containers = append(w.containers, newContainer(&pod.Spec.InitContainers[i], true))
	}
	for i := range pod.Spec.Containers {
		w.containers = append(w.containers, newContainer(&pod.Spec.Containers[i], false))
	}
	return w
}

// update is called with every version of the pod, in order.
func (w *worker) update(pod *corev1.Pod) {
	w.mu.Lock()
	w.latest = pod
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default: // one is waiting to be taken, and will find this version
	}
}

func (w *worker) pod() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.latest
}

// run returns when the pod's object is gone or the runner stops.
func (w *worker) run(running context.Context) {
	defer close(w.over)
	defer w.killAll()
	if !terminal(w.pod()) {
		w.begin()
		w.live(running)
	}
	w.bury(running)
}

// begin starts the first container, or gives up a pod that cannot be started: one
// that is being deleted, or whose processes were lost with an earlier runner.
func (w *worker) begin() {
	pod := w.pod()
	w.reported = pod.Status
	lost := pod.Status.Phase == corev1.PodRunning && len(pod.Spec.Containers[0].Command) > 0
	if pod.DeletionTimestamp != nil || lost || os.MkdirAll(w.dir, 0o700) != nil {
		w.endAll(exitKilled, "ContainerStatusUnknown")
		return
	}
	w.advance()
}

// live takes one event after the other until the pod has ended, as it then has
// reported, or is gone.
func (w *worker) live(running context.Context) {
	w.kill = newStoppedTimer()
	defer w.kill.Stop()
	for {
		w.report(running)
		if w.ended() {
			return
		}
		select {
		case <-running.Done():
			return
		case <-w.missing:
			w.stopAll()
			return
		case <-w.changed:
			if terminal(w.pod()) { // somebody else says so: tests do
				return
			}
			w.terminate()
		case i := <-w.exits:
			w.exited(w.containers[i])
		case i := <-w.restarts:
			w.start(i)
		case <-w.kill.C:
			w.signalAll(syscall.SIGKILL)
		}
	}
}

func newStoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// bury removes the object of an ended pod once it is deleted.
func (w *worker) bury(running context.Context) {
	w.killAll()
	for w.pod().DeletionTimestamp == nil {
		select {
		case <-running.Done():
			return
		case <-w.missing:
			return
		case <-w.changed:
		}
	}
	w.r.remove(running, w.pod())
}

// terminate begins the termination of a deleted pod, or takes in that its grace
// period was changed.
func (w *worker) terminate() {
	pod := w.pod()
	if pod.DeletionTimestamp == nil {
		return
	}
	grace := leastGrace
	if seconds := pod.DeletionGracePeriodSeconds; seconds != nil {
		grace = max(grace, time.Duration(*seconds)*time.Second)
	}
	if w.asked.IsZero() {
		w.asked = time.Now()
		w.askAll()
		for _, c := range w.containers {
			if !c.ended() && !c.started() {
				c.end(exitTerminated, "Error", "")
			}
		}
	}
	w.kill.Reset(time.Until(w.asked.Add(grace)))
}

// exited takes in that a container's process has ended.
func (w *worker) exited(c *container) {
	c.reap()
	w.settle(c)
}

// settle decides what follows on the end of a container: it is started again, or
// the next ones are started. While the pod terminates nothing does.
func (w *worker) settle(c *container) {
	if !w.asked.IsZero() {
		return
	}
	if w.startsAgain(c) {
		c.awaitRestart()
		w.startLater(c)
		return
	}
	w.advance()
}

func (w *worker) startsAgain(c *container) bool {
	switch w.pod().Spec.RestartPolicy {
	case corev1.RestartPolicyAlways:
		return !c.init || c.exitCode() != 0
	case corev1.RestartPolicyOnFailure:
		return c.exitCode() != 0
	case corev1.RestartPolicyNever:
		return false
	}
	return false
}

// advance starts what is due: one init container when the one before succeeded, and
// all the others after the last. A failed one ends the pod.
func (w *worker) advance() {
	for i, c := range w.containers {
		switch {
		case c.init && c.ended() && c.exitCode() == 0:
			continue
		case c.init && c.ended():
			w.endAll(exitKilled, "ContainerStatusUnknown")
			return
		case c.isNew():
			w.start(i)
		}
		if c.init {
			return // its end brings us here again
		}
	}
}

// start starts a container and listens for its end.
func (w *worker) start(i int) {
	c := w.containers[i]
	if c.state.Waiting == nil { // ended while it waited to be started again
		return
	}
	c.start(w.pod(), w.dir)
	if c.ended() {
		w.settle(c)
		return
	}
	if c.child == nil {
		return
	}
	child := c.child
	w.r.all.Go(func() {
		<-child.Done()
		w.send(w.exits, i)
	})
}

func (w *worker) startLater(c *container) {
	i := slices.Index(w.containers, c)
	time.AfterFunc(restartDelay, func() { w.send(w.restarts, i) })
}

func (w *worker) send(to chan<- int, i int) {
	select {
	case to <- i:
	case <-w.over:
	}
}

// ended says whether every container has ended for good.
func (w *worker) ended() bool {
	return !slices.ContainsFunc(w.containers, func(c *container) bool { return !c.ended() })
}

// endAll records an end for containers that never had one.
func (w *worker) endAll(code int32, reason string) {
	for _, c := range w.containers {
		if !c.ended() {
			c.end(code, reason, "")
		}
	}
}

// askAll sends SIGTERM to the main processes alone, as a container runtime does;
// signalAll reaches their children too.
func (w *worker) askAll() {
	for _, c := range w.containers {
		if c.running() {
			_ = c.child.Terminate()
		}
	}
}

func (w *worker) signalAll(sig syscall.Signal) {
	for _, c := range w.containers {
		if c.running() {
			_ = c.child.Signal(sig)
		}
	}
}

// stopAll is for a pod whose object is gone, and killAll for when nobody waits.
func (w *worker) stopAll() {
	w.askAll()
	for _, c := range w.containers {
		if c.running() {
			c.child.Stop(leastGrace)
		}
	}
}

func (w *worker) killAll() {
	for _, c := range w.containers {
		if c.child != nil {
			c.child.Kill()
		}
	}
}

// report writes the pod's status when it has changed.
func (w *worker) report(running context.Context) {
	status := statusOf(w.reported, w.containers)
	if equality.Semantic.DeepEqual(status, w.reported) {
		return
	}
	w.reported = status
	w.r.report(running, w.pod(), status)
}
