package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

const (
	namespace = "demo"
	lockName  = "ledger"
)

// run is one pod that held the lock.
type run struct {
	job   string
	token int64
	ended bool
}

// audience watches the pods of the gated Jobs, tells of each, and counts what must
// not be: two at once, or a token that does not rise. It knows what the API server
// shows and nothing of the controller.
type audience struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change
	runs    []*run
	pods    map[string]*run
	wrong   []string
}

func watchPods(ctx context.Context, config *rest.Config) (*audience, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	w, err := client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: v1alpha1.GatedLabel + "=true"})
	if err != nil {
		return nil, err
	}
	a := &audience{changed: make(chan struct{}), pods: map[string]*run{}}
	go func() {
		for e := range w.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok {
				a.sees(pod, e.Type == watch.Deleted)
			}
		}
		a.note("the watch on pods ended early", ctx.Err() == nil)
	}()
	return a, nil
}

func (a *audience) sees(pod *corev1.Pod, deleted bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.pods[pod.Name]
	if r == nil {
		r = a.newRun(pod)
		a.pods[pod.Name] = r
		a.runs = append(a.runs, r)
	}
	over := deleted || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if over && !r.ended {
		r.ended = true
		happened("%-18s ends", r.job)
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *audience) newRun(pod *corev1.Pod) *run {
	r := &run{job: pod.Labels[batchv1.JobNameLabel]}
	var err error
	if r.token, err = strconv.ParseInt(pod.Annotations[v1alpha1.TokenAnnotation], 10, 64); err != nil {
		a.wrong = append(a.wrong, pod.Name+" has no fencing token")
	}
	for _, other := range a.runs {
		if !other.ended {
			a.wrong = append(a.wrong, fmt.Sprintf("%s and %s overlap", other.job, r.job))
		}
		if other.token >= r.token {
			a.wrong = append(a.wrong, fmt.Sprintf("%s has the token %d after %d", r.job, r.token, other.token))
		}
	}
	happened("%-18s starts with fencing token %s", r.job, bold(strconv.FormatInt(r.token, 10)))
	return r
}

func (a *audience) note(what string, isWrong bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if isWrong {
		a.wrong = append(a.wrong, what)
	}
}

// until waits until the runs are as wanted.
func (a *audience) until(ctx context.Context, what string, wanted func([]*run) bool) error {
	for {
		a.mu.Lock()
		ok, changed := wanted(a.runs), a.changed
		a.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, ctx.Err())
		}
	}
}

// started and ended find the runs of Jobs whose names begin with a prefix.
func started(runs []*run, prefix string) (found []*run) {
	for _, r := range runs {
		if strings.HasPrefix(r.job, prefix) {
			found = append(found, r)
		}
	}
	return found
}

func ended(runs []*run, prefix string) (n int) {
	for _, r := range started(runs, prefix) {
		if r.ended {
			n++
		}
	}
	return n
}
