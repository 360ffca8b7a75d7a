package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

const lockName = "lock"

// play is what is measured, round after round: three Jobs that take turns on one
// lock, which is free between rounds.
type play struct {
	*stage
	versions *versions
	floor    *floor
	samples  samples
	acts     []act
}

// act is a stretch of a round, and what the controller has to do in it.
type act struct {
	kind  actKind
	began time.Time
}

type actKind int

const (
	start    actKind = iota // a Job comes to a free lock
	arrival                 // a Job comes to a held lock
	handover                // a Job ends and the next one starts
	end                     // a Job ends and nobody waits
	cleanUp                 // finished Jobs are deleted
	actKinds
)

func (k actKind) String() string {
	switch k {
	case start:
		return "start"
	case arrival:
		return "arrival"
	case handover:
		return "handover"
	case end:
		return "end"
	case cleanUp:
		return "clean-up"
	case actKinds:
	}
	return "?"
}

func newPlay(ctx context.Context, s *stage) (*play, error) {
	p := &play{stage: s}
	var err error
	if p.versions, err = watchVersions(ctx, s.Client(), s.namespace); err != nil {
		return nil, err
	}
	lock := &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: lockName}}
	if err := s.Client().Create(ctx, lock); err != nil {
		return nil, err
	}
	p.floor, err = newFloor(ctx, s)
	return p, err
}

// round plays all acts and leaves nothing behind.
func (p *play) round(ctx context.Context, name string) error {
	a, podA, err := p.start(ctx, name+"-a")
	if err != nil {
		return err
	}
	b, err := p.arrive(ctx, name+"-b", batchv1.NonIndexedCompletion)
	if err != nil {
		return err
	}
	podB, err := p.handOver(ctx, a, podA, b)
	if err != nil {
		return err
	}
	c, err := p.arrive(ctx, name+"-c", batchv1.NonIndexedCompletion)
	if err != nil {
		return err
	}
	podC, err := p.handOver(ctx, b, podB, c)
	if err != nil {
		return err
	}
	if err := p.end(ctx, c, podC); err != nil {
		return err
	}
	return p.cleanUp(ctx, []*batchv1.Job{a, b, c}, []*corev1.Pod{podA, podB, podC})
}

// start creates a Job on the free lock. It is Indexed: only the Complete condition
// can end its hold, while of a plain Job with one completion the pod may.
func (p *play) start(ctx context.Context, name string) (*batchv1.Job, *corev1.Pod, error) {
	p.begin(start)
	if err := p.sampleFloor(ctx); err != nil {
		return nil, nil, err
	}
	j := newJob(p.namespace, name, lockName, batchv1.IndexedCompletion)
	if err := p.Client().Create(ctx, j); err != nil {
		return nil, nil, err
	}
	created := time.Now()
	resumed, err := p.versions.first(ctx, "a Job on a free lock to be resumed", jobVersion(j, isResumed))
	if err != nil {
		return nil, nil, err
	}
	p.samples.freeLock = append(p.samples.freeLock, resumed.at.Sub(created))
	pod, err := p.runPod(ctx, j)
	return j, pod, err
}

// arrive creates a Job on the held lock and returns when it is in the stored queue.
func (p *play) arrive(ctx context.Context, name string, mode batchv1.CompletionMode) (*batchv1.Job, error) {
	p.begin(arrival)
	j := newJob(p.namespace, name, lockName, mode)
	if err := p.Client().Create(ctx, j); err != nil {
		return nil, err
	}
	_, err := p.versions.first(ctx, "a Job to be queued", lockVersion(lockName, func(l *v1alpha1.DistLock) bool {
		return slices.ContainsFunc(l.Status.Queue, func(w v1alpha1.Waiter) bool { return w.Owner == ownerOf(j) })
	}))
	return j, err
}

// handOver ends the holder, whose pod has been running for a while, and returns the
// next Job's pod.
func (p *play) handOver(ctx context.Context, holder *batchv1.Job, pod *corev1.Pod, next *batchv1.Job) (*corev1.Pod, error) {
	if _, err := p.versions.first(ctx, "the Job controller to have seen the pod run", jobVersion(holder, isReady)); err != nil {
		return nil, err
	}
	p.begin(handover)
	if err := p.sampleFloor(ctx); err != nil {
		return nil, err
	}
	if err := p.setSucceeded(ctx, pod); err != nil {
		return nil, err
	}
	ended := time.Now()
	complete, err := p.versions.first(ctx, "a Job to be Complete", jobVersion(holder, isComplete))
	if err != nil {
		return nil, err
	}
	resumed, err := p.versions.first(ctx, "the next Job to be resumed", jobVersion(next, isResumed))
	if err != nil {
		return nil, err
	}
	p.record(holder, ended, complete.at, resumed.at)
	return p.runPod(ctx, next)
}

// record takes in a handover: when the write that ended the holder's pod returned,
// when the holder was Complete and when the next Job was resumed.
func (p *play) record(holder *batchv1.Job, ended, complete, resumed time.Time) {
	if *holder.Spec.CompletionMode == batchv1.IndexedCompletion {
		p.samples.nextFromComplete = append(p.samples.nextFromComplete, resumed.Sub(complete))
	} else {
		p.samples.complete = append(p.samples.complete, complete.Sub(ended))
		p.samples.nextFromPod = append(p.samples.nextFromPod, resumed.Sub(ended))
	}
}

// end ends the last Job and returns when the lock is free.
func (p *play) end(ctx context.Context, j *batchv1.Job, pod *corev1.Pod) error {
	p.begin(end)
	if err := p.sampleFloor(ctx); err != nil {
		return err
	}
	if err := p.setSucceeded(ctx, pod); err != nil {
		return err
	}
	if _, err := p.versions.first(ctx, "the last Job to be Complete", jobVersion(j, isComplete)); err != nil {
		return err
	}
	_, err := p.versions.first(ctx, "the lock to be free", lockVersion(lockName, func(l *v1alpha1.DistLock) bool {
		return l.Status.LastGranted == ownerOf(j) && len(l.Status.Holders) == 0
	}))
	return err
}

// cleanUp deletes Jobs and returns when they and their pods are gone.
func (p *play) cleanUp(ctx context.Context, jobs []*batchv1.Job, pods []*corev1.Pod) error {
	p.begin(cleanUp)
	for _, j := range jobs {
		if err := p.Client().Delete(ctx, j, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			return err
		}
	}
	for i := range jobs {
		for _, o := range []client.Object{jobs[i], pods[i]} {
			if _, err := p.versions.first(ctx, "a finished Job and its pod to be gone", deletion(o)); err != nil {
				return err
			}
		}
	}
	p.versions.forget()
	return nil
}

func (p *play) begin(k actKind) { p.acts = append(p.acts, act{k, time.Now()}) }

func (p *play) sampleFloor(ctx context.Context) error {
	update, event, err := p.floor.sample(ctx, p.stage, p.versions)
	p.samples.update = append(p.samples.update, update)
	p.samples.floor = append(p.samples.floor, event)
	return err
}

// newJob is a Job behind a lock, with one completion.
func newJob(namespace, name, lock string, mode batchv1.CompletionMode) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Annotations: map[string]string{v1alpha1.LockAnnotation: lock},
		},
		Spec: batchv1.JobSpec{
			Completions:    new(int32(1)),
			CompletionMode: &mode,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers:    []corev1.Container{{Name: "main", Image: "example.com/work"}},
			}},
		},
	}
}

func isResumed(j *batchv1.Job) bool { return !ptr.Deref(j.Spec.Suspend, false) }

func isReady(j *batchv1.Job) bool { return ptr.Deref(j.Status.Ready, 0) == 1 }

func isComplete(j *batchv1.Job) bool { return hasCondition(j, batchv1.JobComplete) }

func hasCondition(j *batchv1.Job, t batchv1.JobConditionType) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == t && c.Status == corev1.ConditionTrue
	})
}

// ownerOf is the name of a Job's hold.
func ownerOf(j *batchv1.Job) string { return fmt.Sprintf("job/%s/%s", j.Name, j.UID) }
