package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/lock"
)

const (
	// fewDrained and manyDrained are how many wait.
	fewDrained  = 100
	manyDrained = 1000
	// perProcess is how many of them wait in one process, with a lock.Client of its own.
	perProcess = 10
	// barePerDrain is how many bare status updates are made before a drain and after it.
	barePerDrain = 100
	// lockAgent is how the requests of these processes are named.
	lockAgent = "bench-locks"
)

// drained is what draining one lock showed.
type drained struct {
	waiters  int
	bareRate float64 // status updates in a second, one after the other
	rate     float64 // handovers in a second
	events   int64   // of watches
	spent    spent   // from the release until the last one has released
	requests map[string]int
}

func (d drained) share() float64 { return d.rate / d.bareRate }

// measureDrain returns how fast a lock goes through those that wait for it and hold
// it for no time: few and many of them, by turns.
func measureDrain(ctx context.Context, s *stage, n int) ([]measure, error) {
	var few, many []drained
	for i := range max(n/40, 1) {
		if err := s.drainOnce(ctx, fewDrained, &few); err != nil {
			return nil, err
		}
		if i >= max(n/100, 1) {
			continue
		}
		if err := s.drainOnce(ctx, manyDrained, &many); err != nil {
			return measuresOf(few), err
		}
	}
	flat := measure{
		"drain-many-to-few", fmt.Sprintf("%d drained, to %d: rate", manyDrained, fewDrained),
		shareOf(many) / shareOf(few), "times",
	}
	return slices.Concat(measuresOf(few), measuresOf(many), []measure{flat}), nil
}

func (s *stage) drainOnce(ctx context.Context, waiters int, all *[]drained) error {
	d, err := s.drain(ctx, waiters)
	if err != nil {
		return fmt.Errorf("draining %d: %w", waiters, err)
	}
	_, _ = fmt.Fprintf(os.Stderr, "bench: drained %d at %.0f a second, bare updates %.0f\n", waiters, d.rate, d.bareRate)
	*all = append(*all, d)
	return nil
}

// shareOf is the median of some drains' rates, as parts of the bare rate.
func shareOf(all []drained) float64 {
	shares := make([]float64, len(all))
	for i, d := range all {
		shares[i] = d.share()
	}
	slices.Sort(shares)
	return (shares[(len(shares)-1)/2] + shares[len(shares)/2]) / 2
}

// measuresOf some drains of as many; what goes over the wire is for each waiter.
func measuresOf(all []drained) []measure {
	prefix, label := fmt.Sprintf("drain-%d", all[0].waiters), fmt.Sprintf("%d drained", all[0].waiters)
	waiters, events, requests, used := 0.0, 0.0, map[string]float64{}, spent{}
	for _, d := range all {
		used = used.and(d.spent)
		waiters += float64(d.waiters)
		events += float64(d.events)
		for kind, n := range d.requests {
			requests[kind] += float64(n)
		}
	}
	out := []measure{
		{prefix, fmt.Sprintf("%s, %d a process, %d times: rate", label, perProcess, len(all)), shareOf(all), "of bare updates"},
		{prefix + "-events", label + ": events, each", events / waiters, ""},
	}
	for i, who := range spenders {
		out = append(out, measure{prefix + "-cpu-" + dashed(who), label + ": processor time of " + who + ", each", ms(used[i]) / waiters, "ms"})
	}
	for _, kind := range slices.Sorted(maps.Keys(requests)) {
		out = append(out, measure{prefix + "-" + dashed(kind), label + ": " + kind + ", each", requests[kind] / waiters, ""})
	}
	return out
}

// dashed is a text as part of a figure's name.
func dashed(text string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return strings.ContainsRune(" /()", r) }), "-")
}

// drain has so many wait for a lock that is held, and releases it.
func (s *stage) drain(ctx context.Context, waiters int) (d drained, err error) {
	namespace, err := s.newNamespace(ctx, "drain")
	if err != nil {
		return d, err
	}
	l := &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: lockName}}
	if err := s.Client().Create(ctx, l); err != nil {
		return d, err
	}
	floor, err := newBareFloor(ctx, s, namespace)
	if err != nil {
		return d, err
	}
	defer floor.stop()
	r := &reservoir{stage: s, namespace: namespace, waiters: waiters, watches: waiters}
	if err := r.fill(ctx); err != nil {
		return d, errors.Join(err, r.close(ctx))
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	before, err := floor.rate(ctx, barePerDrain)
	if err != nil {
		return d, err
	}
	began := time.Now()
	took, used, err := r.open(ctx)
	if err != nil {
		return d, err
	}
	after, err := floor.rate(ctx, barePerDrain)
	if err != nil {
		return d, err
	}
	d = drained{
		waiters: waiters, bareRate: (before + after) / 2, rate: float64(waiters) / took.Seconds(),
		events: r.wire.events.Load(), spent: used,
	}
	d.requests, err = s.requestsSince(began)
	return d, err
}

// reservoir is a held lock and those that wait for it.
type reservoir struct {
	*stage
	namespace string
	waiters   int
	watches   int // so many at least there are when all wait
	wire      wire
	clients   []*lock.Client
	first     *lock.Hold
	group     sync.WaitGroup
	cancel    context.CancelCauseFunc
	ctx       context.Context //nolint:containedctx // of those that wait
}

// fill returns when all wait, and the controller has nothing left to do.
func (r *reservoir) fill(ctx context.Context) error {
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	for range r.waiters/perProcess + 1 {
		c, err := lock.NewClient(r.wire.onWire(r.Config(), lockAgent), lock.Namespace(r.namespace))
		if err != nil {
			return err
		}
		r.clients = append(r.clients, c)
	}
	var err error
	if r.first, err = r.clients[0].Acquire(ctx, lockName); err != nil {
		return err
	}
	for i := range r.waiters {
		r.group.Go(func() {
			h, err := r.clients[1+i/perProcess].Acquire(r.ctx, lockName)
			if err == nil {
				err = h.Release(r.ctx)
			}
			if err != nil {
				r.cancel(err)
			}
		})
	}
	if err := r.awaitClaims(r.ctx, r.waiters); err != nil {
		return err
	}
	return r.awaitQuiet(r.ctx)
}

// open releases the lock and returns how long it took until all had held it, and what
// processor time. Then it waits until their claims are gone.
func (r *reservoir) open(ctx context.Context) (time.Duration, spent, error) {
	r.wire.events.Store(0)
	before, err := r.spent()
	if err != nil {
		return 0, spent{}, err
	}
	began := time.Now()
	if err := r.first.Release(ctx); err != nil {
		return 0, spent{}, err
	}
	r.group.Wait()
	took := time.Since(began)
	if err := context.Cause(r.ctx); err != nil {
		return 0, spent{}, err
	}
	after, err := r.spent()
	if err != nil {
		return 0, spent{}, err
	}
	return took, after.since(before), r.awaitClaims(ctx, 0)
}

// awaitClaims returns when there are so many, and at least as many watches as wait
// with one of their own.
func (r *reservoir) awaitClaims(ctx context.Context, n int) error {
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		var claims v1alpha1.LockClaimList
		err := r.Client().List(ctx, &claims, client.InNamespace(r.namespace))
		return len(claims.Items) == n && r.wire.watches.Load() >= int64(min(n, r.watches)), err
	})
	if err != nil {
		return fmt.Errorf("waiting for %d claims: %w", n, errors.Join(err, context.Cause(ctx)))
	}
	return nil
}

func (r *reservoir) close(ctx context.Context) error {
	r.cancel(errors.New("the lock was not drained"))
	r.group.Wait()
	var errs []error
	for _, c := range r.clients {
		errs = append(errs, c.Close(context.WithoutCancel(ctx)))
	}
	return errors.Join(errs...)
}
