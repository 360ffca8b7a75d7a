package lock

import (
	"errors"
	"fmt"
	"time"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// Option says how to acquire.
type Option func(*options) error

type options struct {
	wait         time.Duration // 0: as long as the context lives
	leaseSeconds *int32        // nil: the lock's own
	mode         *v1alpha1.Mode
	permits      *int32
}

// Wait bounds how long Do, Acquire and Lead wait for the lock; after it they fail
// with a *HeldError. Without it they wait until their context ends.
func Wait(d time.Duration) Option {
	return func(o *options) error {
		if d <= 0 {
			return fmt.Errorf("lock.Wait: %s: must be positive; to try once use TryAcquire", d)
		}
		o.wait = d
		return nil
	}
}

// Lease is how long the hold lives unless it is renewed, instead of the lock's
// spec.leaseDurationSeconds: whole seconds, from 3 seconds to an hour. It is
// renewed every third of it. A short one is free again sooner after a crash; a
// long one outlives longer stalls of the API server and of this process.
func Lease(d time.Duration) Option {
	return func(o *options) error {
		if d < 3*time.Second || d > time.Hour || d%time.Second != 0 {
			return fmt.Errorf("lock.Lease: %s: must be whole seconds, from 3s to 1h", d)
		}
		o.leaseSeconds = new(int32(d / time.Second))
		return nil
	}
}

// Shared asks for a hold beside other Shared ones: as a reader, or as one of those
// that share spec.capacity.
func Shared() Option { return inMode(v1alpha1.Shared) }

// Exclusive asks to be alone. It is the default on a lock without a capacity; on
// one with a capacity the default is Shared.
func Exclusive() Option { return inMode(v1alpha1.Exclusive) }

func inMode(m v1alpha1.Mode) Option {
	return func(o *options) error {
		o.mode = &m
		return nil
	}
}

// Permits asks for so many of the permits of spec.capacity, and for a Shared hold.
func Permits(n int) Option {
	return func(o *options) error {
		if n < 1 || n > 1_000_000 {
			return fmt.Errorf("lock.Permits: %d: must be from 1 to 1000000", n)
		}
		o.permits = new(int32(n))
		return inMode(v1alpha1.Shared)(o)
	}
}

func optionsOf(opts []Option) (options, error) {
	var o options
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return o, err
		}
	}
	if o.permits != nil && *o.mode == v1alpha1.Exclusive {
		return o, errors.New("lock.Permits is for a Shared hold, and lock.Exclusive was asked for, too")
	}
	return o, nil
}
