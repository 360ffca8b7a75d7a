package controllers_test

import (
	"context"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// holder is a program that takes a lock by itself and renews its hold.
type holder struct {
	ns, lock, owner string
	lease           int32
	token           int64
	ahead           time.Duration // of its wall clock
}

// newHolder makes a lock and takes it.
func newHolder(t *testing.T, ns, lock string, leaseSeconds int32) *holder {
	t.Helper()
	lockIn(t, ns, lock, v1alpha1.DistLockSpec{LeaseDurationSeconds: leaseSeconds})
	h := &holder{ns: ns, lock: lock, lease: leaseSeconds}
	h.takeAnew(t)
	return h
}

// takeAnew ends whatever hold there is, and takes the lock under a fixed name.
func (h *holder) takeAnew(t *testing.T) {
	t.Helper()
	must(t, h.take(t.Context()))
}

func (h *holder) take(ctx context.Context) error {
	h.owner = "program"
	return h.write(ctx, func(s protocol.State) (protocol.State, error) {
		s.Status.Holders = nil
		next, err := s.Grant(protocol.NewWaiter(s.Spec, h.owner, nil, nil, new(h.lease), nil), time.Now())
		h.token = next.Status.FencingToken
		return next, err
	})
}

func (h *holder) renew(ctx context.Context) error {
	return h.write(ctx, func(s protocol.State) (protocol.State, error) {
		return s.Renew(h.owner, h.token, time.Now().Add(h.ahead))
	})
}

func (h *holder) write(ctx context.Context, step func(protocol.State) (protocol.State, error)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		l := &v1alpha1.DistLock{}
		if err := admin.Get(ctx, types.NamespacedName{Namespace: h.ns, Name: h.lock}, l); err != nil {
			return err
		}
		s, err := protocol.StateOf(l)
		if err != nil {
			return err
		}
		if s, err = step(s); err != nil {
			return err
		}
		l.Status = s.Status
		return admin.Status().Update(ctx, l)
	})
}

// renewTimes renews so many times, a third of the lease apart.
func (h *holder) renewTimes(t *testing.T, n int) {
	t.Helper()
	tick := time.NewTicker(time.Duration(h.lease) * time.Second / 3)
	defer tick.Stop()
	for range n {
		must(t, h.renew(t.Context()))
		<-tick.C
	}
}

// renewUntil renews, four times a lease, until the context ends or a renewal fails.
func (h *holder) renewUntil(ctx context.Context) error {
	tick := time.NewTicker(time.Duration(h.lease) * time.Second / 4)
	defer tick.Stop()
	for {
		err := h.renew(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// revoke asks the holder of a lock to stop, as an administrator.
func revoke(t *testing.T, ns, lock, owner string) {
	t.Helper()
	h := &holder{ns: ns, lock: lock}
	must(t, h.write(t.Context(), func(s protocol.State) (protocol.State, error) { return s.Revoke(owner, time.Now()) }))
}

// stop plays the kubelet for a suspended Job: its pods, being deleted, end.
func stop(t *testing.T, ns, job string) {
	t.Helper()
	j := untilJob(t, ns, job, "suspended", suspended)
	for _, p := range podsOf(t, j) {
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed && p.Spec.NodeName != "" {
			setPhase(t, &p, corev1.PodFailed)
		}
	}
	untilJob(t, ns, job, "stopped", func(j *batchv1.Job) bool { return j.Status.Active == 0 })
}
