package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// fewWaiting and manyWaiting are how many Jobs wait for the one lock.
const (
	fewWaiting  = 50
	manyWaiting = 5000
)

// line is one lock for which always as many Jobs wait. Every other Job is Indexed.
type line struct {
	*play
	holder           *batchv1.Job
	pod              *corev1.Pod
	created, waiting int
}

// measureWaiting returns what n handovers took with few and with many waiting.
func measureWaiting(ctx context.Context, s *stage, n int) ([]figure, []measure, error) {
	p, err := newPlay(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	l := &line{play: p}
	few, err := l.handOvers(ctx, fewWaiting, n)
	if err != nil {
		return nil, nil, err
	}
	many, err := l.handOvers(ctx, manyWaiting, n)
	if err != nil {
		return nil, nil, err
	}
	ratio := func(of func(samples) []time.Duration) float64 {
		return float64(median(of(many))) / float64(median(of(few)))
	}
	measures := []measure{
		{"floor-many-to-few", fmt.Sprintf("floor, %d waiting to %d", manyWaiting, fewWaiting), ratio(func(s samples) []time.Duration { return s.floor }), "times"},
		{"next-from-complete-many-to-few", fmt.Sprintf("next Job from Complete, %d waiting to %d", manyWaiting, fewWaiting), ratio(func(s samples) []time.Duration { return s.nextFromComplete }), "times"},
		{"next-from-pod-many-to-few", fmt.Sprintf("next Job from the pod, %d waiting to %d", manyWaiting, fewWaiting), ratio(func(s samples) []time.Duration { return s.nextFromPod }), "times"},
	}
	return slices.Concat(few.figuresWith(fewWaiting), many.figuresWith(manyWaiting)), measures, nil
}

// handOvers plays n handovers with so many waiting.
func (l *line) handOvers(ctx context.Context, waiting, n int) (samples, error) {
	if err := l.fill(ctx, waiting); err != nil {
		return samples{}, err
	}
	for i := range warmUp + n {
		if i == warmUp {
			l.samples = samples{}
		}
		if err := l.handOver(ctx); err != nil {
			return samples{}, fmt.Errorf("handover %d with %d waiting: %w", i, waiting, err)
		}
		if done := i + 1 - warmUp; done > 0 && done%20 == 0 {
			_, _ = fmt.Fprintf(os.Stderr, "bench: %d of %d handovers with %d waiting\n", done, n, waiting)
		}
	}
	return l.samples, nil
}

// fill has Jobs come until so many wait behind the one that runs.
func (l *line) fill(ctx context.Context, waiting int) error {
	if l.holder == nil {
		l.holder = l.next()
		if err := l.Client().Create(ctx, l.holder); err != nil {
			return err
		}
		var err error
		if l.pod, err = l.runPod(ctx, l.holder); err != nil {
			return err
		}
	}
	more := make([]*batchv1.Job, waiting-l.waiting)
	for i := range more {
		more[i] = l.next()
	}
	if err := l.createAll(ctx, "Jobs that wait", len(more), func(i int) client.Object { return more[i] }); err != nil {
		return err
	}
	l.waiting = waiting
	if err := l.awaitSuspended(ctx); err != nil {
		return err
	}
	return l.awaitQuiet(ctx)
}

// next is the Job that comes next.
func (l *line) next() *batchv1.Job {
	mode := batchv1.NonIndexedCompletion
	if l.created%2 == 0 {
		mode = batchv1.IndexedCompletion
	}
	l.created++
	return newJob(l.namespace, fmt.Sprintf("job-%d", l.created), lockName, mode)
}

// handOver ends the holder, whose pod has been running for a while, and returns when
// the next one's runs and another has come.
func (l *line) handOver(ctx context.Context) error {
	if _, err := l.versions.first(ctx, "the Job controller to have seen the pod run", jobVersion(l.holder, isReady)); err != nil {
		return err
	}
	l.versions.forget()
	if err := l.sampleFloor(ctx); err != nil {
		return err
	}
	if err := l.setSucceeded(ctx, l.pod); err != nil {
		return err
	}
	ended := time.Now()
	resumed, err := l.versions.first(ctx, "the next Job to be resumed", func(v version) bool {
		j, ok := v.object.(*batchv1.Job)
		return ok && !v.deleted && j.UID != l.holder.UID && isResumed(j)
	})
	if err != nil {
		return err
	}
	complete, err := l.versions.first(ctx, "a Job to be Complete", jobVersion(l.holder, isComplete))
	if err != nil {
		return err
	}
	l.record(l.holder, ended, complete.at, resumed.at)
	if err := l.Client().Delete(ctx, l.holder, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		return err
	}
	l.holder = resumed.object.(*batchv1.Job)
	if l.pod, err = l.runPod(ctx, l.holder); err != nil {
		return err
	}
	return l.Client().Create(ctx, l.next())
}
