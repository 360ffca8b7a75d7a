package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// floorLease is so long, in seconds, that the controller, which watches this lock too,
// finds nothing to do about it during a run.
const floorLease = 3600

// floor is a lock that this process holds; what is measured is a renewal.
type floor struct {
	lock *v1alpha1.DistLock
	hold v1alpha1.Hold
}

func newFloor(ctx context.Context, s *stage) (*floor, error) {
	f := &floor{lock: &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "floor"}}}
	if err := s.Client().Create(ctx, f.lock); err != nil {
		return nil, err
	}
	err := f.write(ctx, s, func(state protocol.State) (protocol.State, error) {
		return state.Acquire(protocol.NewWaiter(state.Spec, "bench", nil, nil, new(int32(floorLease)), nil), time.Now())
	})
	if err != nil {
		return nil, fmt.Errorf("taking the floor's lock: %w", err)
	}
	f.hold = f.lock.Status.Holders[0]
	return f, nil
}

// sample renews once: how long until the update returned, and until its event
// arrived, both from when it was sent.
func (f *floor) sample(ctx context.Context, s *stage, v *versions) (update, event time.Duration, err error) {
	sent := time.Now()
	err = f.write(ctx, s, func(state protocol.State) (protocol.State, error) {
		return state.Renew(f.hold.Owner, f.hold.FencingToken, sent)
	})
	if err != nil {
		return 0, 0, fmt.Errorf("renewing the floor's lock: %w", err)
	}
	update = time.Since(sent)
	seen, err := v.first(ctx, "the event of a renewal", lockVersion(f.lock.Name, func(l *v1alpha1.DistLock) bool {
		return l.ResourceVersion == f.lock.ResourceVersion
	}))
	return update, seen.at.Sub(sent), err
}

func (f *floor) write(ctx context.Context, s *stage, change func(protocol.State) (protocol.State, error)) error {
	state, err := protocol.StateOf(f.lock)
	if err != nil {
		return err
	}
	if state, err = change(state); err != nil {
		return err
	}
	f.lock.Status = state.Status
	return s.Client().Status().Update(ctx, f.lock)
}
