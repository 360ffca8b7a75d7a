package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

// alone is one process that acquires and releases a lock that nobody else wants, and
// a Lease.
type alone struct {
	floor                    *bareFloor
	locks                    *lock.Client
	lease                    *leaseTurn
	acquire, release, leases []time.Duration
}

// measureUncontended returns what it costs to acquire and to release, n times each.
func measureUncontended(ctx context.Context, s *stage, n int) (figures []figure, err error) {
	a, err := newAlone(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.stop(ctx)) }()
	for i := range warmUp + n {
		if i == warmUp {
			a.floor.samples, a.acquire, a.release, a.leases = floorSamples{}, nil, nil, nil
		}
		if err := a.round(ctx); err != nil {
			return nil, fmt.Errorf("round %d: %w", i, err)
		}
	}
	update := a.floor.samples.update
	return []figure{
		figureOf("bare-update", "floor: a status update", update, update),
		figureOf("acquire", "Acquire", a.acquire, update),
		figureOf("release", "Release", a.release, update),
		figureOf("lease-get-update", "instead, a Lease by get and update", a.leases, update),
		figureOf("bare-event", "a status update and its event", a.floor.samples.event, update),
	}, nil
}

func newAlone(ctx context.Context, s *stage) (*alone, error) {
	namespace, err := s.newNamespace(ctx, "client")
	if err != nil {
		return nil, err
	}
	l := &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: lockName}}
	if err := s.Client().Create(ctx, l); err != nil {
		return nil, err
	}
	a := &alone{}
	if a.floor, err = newBareFloor(ctx, s, namespace); err != nil {
		return nil, err
	}
	if a.lease, err = newLeaseTurn(ctx, s.Config(), namespace, "bench"); err != nil {
		return nil, err
	}
	a.locks, err = lock.NewClient(s.Config(), lock.Namespace(namespace))
	return a, err
}

func (a *alone) stop(ctx context.Context) error {
	a.floor.stop()
	return a.locks.Close(context.WithoutCancel(ctx))
}

// round samples each once, with the floor before.
func (a *alone) round(ctx context.Context) error {
	if err := a.floor.sample(ctx); err != nil {
		return err
	}
	began := time.Now()
	h, err := a.locks.Acquire(ctx, lockName)
	if err != nil {
		return err
	}
	a.acquire = append(a.acquire, time.Since(began))
	if err := a.floor.sample(ctx); err != nil {
		return err
	}
	began = time.Now()
	if err := h.Release(ctx); err != nil {
		return err
	}
	a.release = append(a.release, time.Since(began))
	if err := a.floor.sample(ctx); err != nil {
		return err
	}
	began = time.Now()
	if got, err := a.lease.try(ctx); err != nil || !got {
		return fmt.Errorf("taking a Lease that nobody has: %t, %w", got, err)
	}
	a.leases = append(a.leases, time.Since(began))
	return a.lease.release(ctx)
}
