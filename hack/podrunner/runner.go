// Package podrunner stands in for a scheduler and one node: it binds pods to a Node
// object of its own and runs their commands as local processes, reporting what a
// kubelet would report. It is for tests and for the local control plane, where
// there is no container runtime.
//
// What it does as a kubelet does: a container's `command` and `args` are run, with
// $(VAR) expanded, in the order init containers, then containers, with the
// environment resolved from plain values and from the downward API (metadata and
// node fields). restartPolicy is honoured, with a second between restarts. A pod
// that is deleted gets SIGTERM, after its grace period SIGKILL, then its terminal
// phase, and only then its object goes. SIGTERM is for a container's main process,
// SIGKILL for all of them. A pod that was deleted by force is killed a second after it
// is found missing. `kubectl logs` works, with -f and --tail.
//
// What it does instead: the process runs on this machine, as this user, with this
// machine's programs, in a folder of its own; the image is ignored. A main process
// without a handler for SIGTERM is ended by it, since it is not its system's first. A
// container without a command stays Running until somebody writes a terminal phase to
// the pod's status, which tests do. Environment from Secrets and ConfigMaps fails the
// pod; probes, volumes, hooks, resources and native sidecars are ignored.
package podrunner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	corev1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Options of Start.
type Options struct {
	// Kubelet may act as the node (user system:node:NAME, group system:nodes).
	// Scheduler may bind pods (user system:kube-scheduler).
	Kubelet, Scheduler *rest.Config
	NodeName           string
	// Dir gets a folder per pod, with a log file per container.
	Dir string
	// Log gets what goes wrong, a line each; nil discards it.
	Log io.Writer
}

// Runner runs pods until it is stopped.
type Runner struct {
	node      string
	dir       string
	log       io.Writer
	kubelet   kubernetes.Interface
	scheduler kubernetes.Interface

	cancel context.CancelFunc
	all    sync.WaitGroup // of goroutines

	mu      sync.Mutex
	workers map[types.UID]*worker
	binding map[types.UID]bool
}

// Start registers the node and returns when pods are being watched. ctx bounds the
// starting only.
func Start(ctx context.Context, o Options) (*Runner, error) {
	r := &Runner{
		node: o.NodeName, dir: o.Dir, log: o.Log,
		workers: map[types.UID]*worker{}, binding: map[types.UID]bool{},
	}
	if r.log == nil {
		r.log = io.Discard
	}
	var errs [3]error
	r.kubelet, errs[0] = newClient(o.Kubelet, "kubelet")
	r.scheduler, errs[1] = newClient(o.Scheduler, "kube-scheduler")
	errs[2] = os.MkdirAll(o.Dir, 0o700)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("pod runner: %w", err)
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.cancel = cancel
	if err := r.start(ctx, running); err != nil {
		r.Stop()
		return nil, fmt.Errorf("pod runner: %w", err)
	}
	return r, nil
}

func (r *Runner) start(ctx, running context.Context) error {
	port, err := r.serveLogs(running)
	if err != nil {
		return err
	}
	if err := r.registerNode(ctx, port); err != nil {
		return err
	}
	return r.watch(ctx, running)
}

// Stop kills the pods' processes and returns when all are gone. It writes nothing:
// to the API the node has vanished.
func (r *Runner) Stop() {
	r.cancel()
	r.all.Wait()
}

// LogFile is where a container's output goes, of all its restarts.
func (r *Runner) LogFile(pod *corev1.Pod, container string) string {
	return filepath.Join(r.podDir(pod), container+".log")
}

func (r *Runner) podDir(pod *corev1.Pod) string {
	return filepath.Join(r.dir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
}

// newClient names itself as the component does: the API server records it as the
// manager of the fields it writes.
func newClient(config *rest.Config, userAgent string) (kubernetes.Interface, error) {
	config = rest.AddUserAgent(rest.CopyConfig(config), "")
	config.UserAgent = userAgent + "/podrunner"
	config.QPS = -1
	return kubernetes.NewForConfig(config)
}

// watch starts two informers that share the pods out between them, those of no node
// and those of this one, and waits until ctx for their first lists.
func (r *Runner) watch(ctx, running context.Context) error {
	unbound, err := r.informer(running, r.scheduler, "", cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { r.schedule(running, o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) { r.schedule(running, o.(*corev1.Pod)) },
	})
	if err != nil {
		return err
	}
	bound, err := r.informer(running, r.kubelet, r.node, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { r.see(running, o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) { r.see(running, o.(*corev1.Pod)) },
		DeleteFunc: r.miss,
	})
	if err != nil {
		return err
	}
	if !cache.WaitForCacheSync(ctx.Done(), unbound, bound) {
		return fmt.Errorf("watching pods: %w", context.Cause(ctx))
	}
	return nil
}

// informer watches the pods of one node, "" for those of none.
func (r *Runner) informer(
	running context.Context, client kubernetes.Interface, node string, handler cache.ResourceEventHandler,
) (cache.InformerSynced, error) {
	informer := corev1informers.NewFilteredPodInformer(client, metav1.NamespaceAll, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	})
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return nil, err
	}
	r.all.Go(func() { informer.RunWithContext(running) })
	return registration.HasSynced, nil
}

// see gives a pod of this node, or its newer version, to its worker.
func (r *Runner) see(running context.Context, pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.workers[pod.UID]
	if w == nil {
		w = newWorker(r, pod)
		r.workers[pod.UID] = w
		r.all.Go(func() { w.run(running) })
	}
	w.update(pod)
}

// miss tells the worker of a pod whose object is gone.
func (r *Runner) miss(o any) {
	if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	pod := o.(*corev1.Pod)
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workers[pod.UID]; w != nil {
		delete(r.workers, pod.UID)
		close(w.missing)
	}
}
