package lock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/distlock-dev/distlock/lock"
)

// The work of the examples.
var (
	ctx  = context.Background()
	book = func(context.Context, int64) error { return nil }
)

// This is the README's. Do is all that most programs need.
func ExampleClient_Do() { //nolint:testableexamples // needs a cluster
	run := func() error {
		locks, err := lock.NewClient(nil) // the pod's service account, or your kubeconfig
		if err != nil {
			return err
		}
		defer locks.Close(ctx) //nolint:errcheck // it is as in the README
		return locks.Do(ctx, "ledger", func(ctx context.Context, h *lock.Hold) error {
			return book(ctx, h.Token()) // ctx ends when the hold is lost; the token is for the database
		}, lock.Wait(time.Minute))
	}
	_ = run
}

// Of several that are started at the same time one does the work, and the others
// give up at once.
func ExampleClient_TryAcquire() { //nolint:testableexamples // needs a cluster
	run := func(locks *lock.Client) error {
		h, err := locks.TryAcquire(ctx, "nightly")
		if errors.Is(err, lock.ErrHeld) {
			fmt.Println("another one does it:", err)
			return nil
		}
		if err != nil {
			return err
		}
		return errors.Join(book(h.Context(), h.Token()), h.Release(ctx))
	}
	_ = run
}

// A semaphore: the DistLock has spec.capacity: 4, and this takes two of it.
func ExamplePermits() { //nolint:testableexamples // needs a cluster
	run := func(locks *lock.Client) error {
		h, err := locks.Acquire(ctx, "licences", lock.Permits(2))
		if err != nil {
			return err
		}
		defer h.Release(ctx) //nolint:errcheck // the lease ends by itself
		<-h.Context().Done()
		return context.Cause(h.Context()) // ErrLost or ErrRevoked
	}
	_ = run
}

// Several locks at once: always in the same order, or two that take them both wait
// for each other.
func ExampleClient_Acquire_several() { //nolint:testableexamples // needs a cluster
	run := func(locks *lock.Client) error {
		return locks.Do(ctx, "accounts", func(ctx context.Context, _ *lock.Hold) error {
			return locks.Do(ctx, "ledger", func(ctx context.Context, h *lock.Hold) error {
				return book(ctx, h.Token())
			})
		})
	}
	_ = run
}

// Leader election in one call.
func ExampleClient_Lead() { //nolint:testableexamples // needs a cluster
	run := func(locks *lock.Client) error {
		return locks.Lead(ctx, "leader", func(ctx context.Context, h *lock.Hold) error {
			fmt.Println("leads with token", h.Token())
			<-ctx.Done() // until it is deposed
			return nil
		})
	}
	_ = run
}
