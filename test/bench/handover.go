package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// measureHandover returns what n handovers took among processes that take turns: by
// package lock, and by what they could use instead. The floor is measured during each
// hold, so each has its own.
func measureHandover(ctx context.Context, s *stage, n int) ([]figure, error) {
	var figures []figure
	for _, way := range []struct {
		name, label string
		n           int
		join        func(ctx context.Context, namespace, me string) (turn, error)
	}{
		{"lock", "package lock", n, func(_ context.Context, namespace, _ string) (turn, error) {
			return newLockTurn(s.Config(), namespace)
		}},
		{"etcd", "instead, etcd's concurrency.Mutex", n, func(ctx context.Context, _, _ string) (turn, error) {
			return newEtcdTurn(ctx, s.EtcdURL())
		}},
		{"lease", "instead, a Lease polled every " + leasePolling.String(), n, func(ctx context.Context, namespace, me string) (turn, error) {
			return newLeaseTurn(ctx, s.Config(), namespace, me)
		}},
		{"election", "instead, client-go's leader election", max(n/electionTurns, 2), func(_ context.Context, namespace, me string) (turn, error) {
			return newElectionTurn(s.Config(), namespace, me)
		}},
	} {
		_, _ = fmt.Fprintf(os.Stderr, "bench: %d handovers, %s\n", way.n, way.label)
		seen, err := s.takeTurns(ctx, way.n, way.join)
		if err != nil {
			return figures, fmt.Errorf("%s: %w", way.label, err)
		}
		floor := seen.floor.samples.event
		figures = append(figures,
			figureOf("handover-"+way.name, "handover, "+way.label, seen.samples, floor),
			figureOf("handover-"+way.name+"-floor", "its floor: a status update and its event", floor, floor))
	}
	return figures, nil
}

// electionTurns: a handover by leader election takes seconds, so there are fewer of
// them by this factor.
const electionTurns = 10

// takeTurns has processes take turns in a namespace of their own.
func (s *stage) takeTurns(ctx context.Context, n int, join func(ctx context.Context, namespace, me string) (turn, error)) (*turns, error) {
	namespace, err := s.newNamespace(ctx, "handover")
	if err != nil {
		return nil, err
	}
	l := &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: lockName}}
	if err := s.Client().Create(ctx, l); err != nil {
		return nil, err
	}
	floor, err := newBareFloor(ctx, s, namespace)
	if err != nil {
		return nil, err
	}
	defer floor.stop()
	all := make([]turn, 1+waitingForTurn)
	for i := range all {
		if all[i], err = join(ctx, namespace, strconv.Itoa(i)); err != nil {
			for _, t := range slices.Backward(all[:i]) {
				err = errors.Join(err, t.stop(ctx))
			}
			return nil, err
		}
	}
	ts := &turns{floor: floor, n: n}
	return ts, ts.play(ctx, all)
}
