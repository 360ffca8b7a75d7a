package main

import (
	"context"
	"fmt"
	"os"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// How much there is: of a lock's Jobs one holds it and has a pod, the others wait.
const (
	sizeLocks   = 1000
	sizeJobs    = 5000
	foreignJobs = 20000
	foreignPods = 20000
)

// measureSize returns the peak of the controller's memory, as it was there before the
// objects and as it starts when they are there, without and with those of others; and
// what it does when nothing happens any more.
func measureSize(ctx context.Context, s *stage) ([]measure, error) {
	var all []measure
	peak := func(name, label string) error {
		if err := s.awaitQuiet(ctx); err != nil {
			return err
		}
		bytes, err := peakMemory(s.controller.PID())
		_, _ = fmt.Fprintf(os.Stderr, "bench: peak memory, %s: %.1f MiB\n", label, bytes/mib)
		all = append(all, measure{"peak-memory-" + name, fmt.Sprintf("peak memory, %s", label), bytes / mib, "MiB"})
		return err
	}
	if err := s.createGated(ctx, sizeLocks, sizeJobs); err != nil {
		return nil, err
	}
	if err := peak("own", fmt.Sprintf("%d locks and %d Jobs come", sizeLocks, sizeJobs)); err != nil {
		return nil, err
	}
	if err := s.restartController(ctx); err != nil {
		return nil, err
	}
	if err := peak("own-restart", "started when they are there"); err != nil {
		return nil, err
	}
	if err := s.createForeign(ctx); err != nil {
		return nil, err
	}
	if err := peak("foreign", fmt.Sprintf("%d foreign Jobs and %d pods come", foreignJobs, foreignPods)); err != nil {
		return nil, err
	}
	if err := s.restartController(ctx); err != nil {
		return nil, err
	}
	if err := peak("foreign-restart", "started when all are there"); err != nil {
		return nil, err
	}
	idle, err := s.measureIdle(ctx, "large")
	return append(all, idle...), err
}

// createGated creates locks and Jobs on them, and returns when the first Job of each
// has been resumed and the others are suspended.
func (s *stage) createGated(ctx context.Context, locks, jobs int) error {
	err := s.createAll(ctx, "locks", locks, func(i int) client.Object {
		return &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: numberedLock(i)}}
	})
	if err != nil {
		return err
	}
	err = s.createAll(ctx, "gated Jobs", jobs, func(i int) client.Object {
		return newJob(s.namespace, fmt.Sprintf("job-%d", i), numberedLock(i%locks), batchv1.NonIndexedCompletion)
	})
	if err != nil {
		return err
	}
	return s.awaitSuspended(ctx)
}

func numberedLock(i int) string { return fmt.Sprintf("lock-%d", i) }

func (s *stage) createForeign(ctx context.Context) error {
	namespace, err := s.newNamespace(ctx, "foreign")
	if err != nil {
		return err
	}
	if err := s.createAll(ctx, "foreign Jobs", foreignJobs, func(i int) client.Object { return foreignJob(namespace, i) }); err != nil {
		return err
	}
	return s.createAll(ctx, "foreign pods", foreignPods, func(i int) client.Object { return foreignPod(namespace, i) })
}
