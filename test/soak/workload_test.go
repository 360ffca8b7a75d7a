package soak

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// workload is locks, and CronJobs that share them out among themselves and are due
// every minute.
type workload struct {
	client    client.Client
	namespace string
	locks     int
	cronJobs  int
}

func (w workload) create(ctx context.Context) error {
	for i := range w.locks {
		if err := w.client.Create(ctx, w.lock(i)); err != nil {
			return err
		}
	}
	for i := range w.cronJobs {
		if err := w.client.Create(ctx, w.cronJob(i)); err != nil {
			return err
		}
	}
	return nil
}

// lock number i: every fourth has a capacity, and some have limits.
func (w workload) lock(i int) *v1alpha1.DistLock {
	l := &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: lockName(i)}}
	if i%4 == 0 {
		l.Spec.Capacity = new(int32(3))
	}
	switch i % 7 {
	case 1:
		l.Spec.MaxHoldSeconds = new(int32(10))
	case 2:
		l.Spec.MinHoldSeconds = 1
	}
	return l
}

func lockName(i int) string { return fmt.Sprintf("lock-%d", i) }

// cronJob number i: of those on one lock some want it exclusively and some not,
// some have several pods, and some try again.
func (w workload) cronJob(i int) *batchv1.CronJob {
	lock, nth := i%w.locks, i/w.locks
	job := batchv1.JobSpec{
		BackoffLimit: new(int32(nth % 2)),
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers:    []corev1.Container{{Name: "main", Image: "example.com/work"}},
		}},
	}
	annotations := map[string]string{v1alpha1.LockAnnotation: lockName(lock)}
	switch {
	case lock%4 == 0 && nth%3 == 0:
		annotations[v1alpha1.ModeAnnotation] = string(v1alpha1.Exclusive)
	case lock%4 == 0 && nth%3 == 1:
		annotations[v1alpha1.PermitsAnnotation] = "2"
	case lock%4 == 1 && nth%2 == 0:
		annotations[v1alpha1.ModeAnnotation] = string(v1alpha1.Shared)
	}
	switch nth {
	case 3:
		job.Completions, job.Parallelism = new(int32(3)), new(int32(2))
	case 4:
		mode := batchv1.IndexedCompletion
		job.Completions, job.CompletionMode = new(int32(1)), &mode
	case 5:
		job.TTLSecondsAfterFinished = new(int32(1))
	}
	policy := batchv1.ForbidConcurrent
	if nth%3 == 2 {
		policy = batchv1.AllowConcurrent
	}
	return &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: fmt.Sprintf("cron-%d-%d", lock, nth), Annotations: annotations},
		Spec: batchv1.CronJobSpec{
			Schedule:                   "* * * * *",
			ConcurrencyPolicy:          policy,
			SuccessfulJobsHistoryLimit: new(int32(1)),
			FailedJobsHistoryLimit:     new(int32(1)),
			JobTemplate:                batchv1.JobTemplateSpec{Spec: job},
		},
	}
}

// suspend lets no more Jobs come.
func (w workload) suspend(ctx context.Context) error {
	for i := range w.cronJobs {
		err := w.client.Patch(ctx, w.cronJob(i), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":true}}`)))
		if err != nil {
			return err
		}
	}
	return nil
}
