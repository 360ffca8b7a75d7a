package soak

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// admin does at random what administrators do.
type admin struct {
	client    client.Client
	namespace string
	locks     int
	dice      *dice
	done      map[string]int
}

func newAdmin(c client.Client, namespace string, locks int, d *dice) *admin {
	return &admin{client: c, namespace: namespace, locks: locks, dice: d, done: map[string]int{}}
}

// act does one thing every few seconds until ctx ends.
func (a *admin) act(ctx context.Context) error {
	for pause(ctx, a.dice.duration(2*time.Second)) {
		what, act := "revocations", a.revoke
		switch a.dice.upTo(4) {
		case 0:
			what, act = "Jobs deleted", a.deleteJob
		case 1:
			what, act = "pods deleted", a.deletePod
		}
		done, err := act(ctx)
		if !passable(ctx, err) {
			return fmt.Errorf("%s: %w", what, err)
		}
		if done && err == nil {
			a.done[what]++
		}
	}
	return nil
}

// revoke revokes a hold, if there is one on a lock that chance picks.
func (a *admin) revoke(ctx context.Context) (bool, error) {
	l := &v1alpha1.DistLock{}
	if err := a.client.Get(ctx, client.ObjectKey{Namespace: a.namespace, Name: lockName(a.dice.upTo(a.locks))}, l); err != nil {
		return false, err
	}
	if len(l.Status.Holders) == 0 {
		return false, nil
	}
	h := &l.Status.Holders[a.dice.upTo(len(l.Status.Holders))]
	if h.RevokeTime != nil {
		return false, nil
	}
	now := metav1.NowMicro()
	h.RevokeTime = &now
	return true, a.client.Status().Update(ctx, l)
}

// deleteJob deletes a Job that waits or runs, and so in time its pods.
func (a *admin) deleteJob(ctx context.Context) (bool, error) {
	var jobs batchv1.JobList
	if err := a.client.List(ctx, &jobs, client.InNamespace(a.namespace)); err != nil {
		return false, err
	}
	running := a.dice.oneIn(2)
	jobs.Items = slices.DeleteFunc(jobs.Items, func(j batchv1.Job) bool {
		return ended(&j) || running && ptr.Deref(j.Spec.Suspend, false)
	})
	if len(jobs.Items) == 0 {
		return false, nil
	}
	how := []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground}
	return true, a.client.Delete(ctx, &jobs.Items[a.dice.upTo(len(jobs.Items))], client.PropagationPolicy(how[a.dice.upTo(2)]))
}

// deletePod deletes a pod that runs.
func (a *admin) deletePod(ctx context.Context) (bool, error) {
	var pods corev1.PodList
	if err := a.client.List(ctx, &pods, client.InNamespace(a.namespace)); err != nil {
		return false, err
	}
	running := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning })
	if len(running) == 0 {
		return false, nil
	}
	return true, a.client.Delete(ctx, &running[a.dice.upTo(len(running))])
}

func (a *admin) String() string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(a.done)) {
		parts = append(parts, fmt.Sprintf("%d %s", a.done[what], what))
	}
	return strings.Join(parts, ", ")
}
