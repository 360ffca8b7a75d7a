package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/distlock-dev/distlock/lock"
)

const (
	// waitingForTurn is how many wait while one holds.
	waitingForTurn = 10
	// holdFor is how long each holds; in the midst of it the floor is measured.
	holdFor = 50 * time.Millisecond
)

// turn is one process's way to take turns with others.
type turn interface {
	acquire(ctx context.Context) error
	release(ctx context.Context) error
	// stop ends the process, which holds nothing.
	stop(ctx context.Context) error
}

// lockTurn is package lock.
type lockTurn struct {
	*lock.Client
	hold *lock.Hold
}

func newLockTurn(config *rest.Config, namespace string) (*lockTurn, error) {
	c, err := lock.NewClient(config, lock.Namespace(namespace))
	return &lockTurn{Client: c}, err
}

func (t *lockTurn) acquire(ctx context.Context) (err error) {
	t.hold, err = t.Acquire(ctx, lockName)
	return err
}

func (t *lockTurn) release(ctx context.Context) error { return t.hold.Release(ctx) }

func (t *lockTurn) stop(ctx context.Context) error { return t.Close(ctx) }

// turns are what is seen of processes that take turns.
type turns struct {
	floor *bareFloor
	n     int // samples wanted

	mu        sync.Mutex
	releasing time.Time // when the last holder began to release; zero: nobody has held yet
	handovers int
	samples   []time.Duration
}

var errAllTaken = errors.New("all turns were taken")

// play has processes take turns until there are n samples: from the start of a
// release to the next holder running. It stops them.
func (ts *turns) play(ctx context.Context, all []turn) error {
	playing, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	for _, t := range all {
		group.Go(func() {
			for playing.Err() == nil {
				if err := ts.take(playing, t); err != nil {
					cancel(err)
				}
			}
		})
	}
	group.Wait()
	var errs []error
	if why := context.Cause(playing); !errors.Is(why, errAllTaken) {
		errs = append(errs, why)
	}
	for _, t := range all {
		errs = append(errs, t.stop(context.WithoutCancel(ctx)))
	}
	return errors.Join(errs...)
}

// take is one turn of one process. That it is alone is the lock's doing.
func (ts *turns) take(ctx context.Context, t turn) error {
	if err := t.acquire(ctx); err != nil {
		return fmt.Errorf("acquiring: %w", err)
	}
	over := ts.running(time.Now())
	if !over {
		pause(ctx, holdFor/2)
		began := time.Now()
		if err := ts.floor.sample(ctx); err != nil {
			return err
		}
		pause(ctx, holdFor/2-time.Since(began))
	}
	ts.mu.Lock()
	ts.releasing = time.Now()
	ts.mu.Unlock()
	if err := t.release(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("releasing: %w", err)
	}
	if over {
		return errAllTaken
	}
	return nil
}

// running takes in that a process has got its turn, and reports whether it is the last.
func (ts *turns) running(now time.Time) (over bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	switch {
	case ts.releasing.IsZero():
	case ts.handovers < warmUp:
		ts.handovers++
		ts.floor.samples = floorSamples{}
	default:
		ts.samples = append(ts.samples, now.Sub(ts.releasing))
	}
	return len(ts.samples) >= ts.n
}

// pause waits, or less when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
