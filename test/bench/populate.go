package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// creators is how many objects are created at the same time.
const creators = 16

// createAll creates objects number 0 to n-1 as fast as it can.
func (s *stage) createAll(ctx context.Context, what string, n int, object func(int) client.Object) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	numbers := make(chan int)
	var all sync.WaitGroup
	for range creators {
		all.Go(func() {
			for i := range numbers {
				if err := s.Client().Create(ctx, object(i)); err != nil {
					cancel(fmt.Errorf("creating %s: %w", what, err))
				}
			}
		})
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		numbers <- i
	}
	close(numbers)
	all.Wait()
	_, _ = fmt.Fprintf(os.Stderr, "bench: created %d %s\n", n, what)
	return context.Cause(ctx)
}

// awaitSuspended returns when the Job controller has taken note of all Jobs that are
// suspended, and so has nothing left to do.
func (s *stage) awaitSuspended(ctx context.Context) error {
	err := wait.PollUntilContextTimeout(ctx, quietFor, quietPatience, true, func(ctx context.Context) (bool, error) {
		var jobs batchv1.JobList
		if err := s.Client().List(ctx, &jobs, client.InNamespace(s.namespace)); err != nil {
			return false, err
		}
		for i := range jobs.Items {
			if j := &jobs.Items[i]; !isResumed(j) && !hasCondition(j, batchv1.JobSuspended) {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the Job controller: %w", err)
	}
	return nil
}

// newNamespace makes another one.
func (s *stage) newNamespace(ctx context.Context, prefix string) (string, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-"}}
	err := s.Client().Create(ctx, ns)
	return ns.Name, err
}

// foreignJob is none of DistLock's, and nobody makes its pods: the Job controller
// leaves it alone.
func foreignJob(namespace string, i int) client.Object {
	j := newJob(namespace, fmt.Sprintf("foreign-%d", i), "", batchv1.NonIndexedCompletion)
	j.Annotations, j.Spec.ManagedBy = nil, new("example.com/nobody")
	return j
}

// foreignPod is nobody's, and nobody runs it.
func foreignPod(namespace string, i int) client.Object {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("foreign-%d", i), Labels: map[string]string{"app": "foreign"}},
		Spec: corev1.PodSpec{
			SchedulerName: "nobody",
			Containers:    []corev1.Container{{Name: "main", Image: "example.com/work"}},
		},
	}
}
