package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
)

// settle are the pauses after which it is swept again. A policy takes effect
// after it is stored, when each API server's watch has shown it and its admission
// plugin, which looks once a second, has compiled it; what is created until then
// is not gated. A dry run that is gated would prove that for one of the API
// servers, and need the right to create Jobs; waiting needs none. The first pause
// is for what is usual, the second for an API server that lags.
var settle = []time.Duration{3 * time.Second, 30 * time.Second}

// sweeper looks for what is annotated and not gated: at start, and each time the
// policies have changed and are as they must be. It runs on the leader alone.
type sweeper struct {
	r        *Reconciler
	policies *PolicyWatch
	bell     bell

	// Of Start alone.
	mark  string // of the policies as they were at the last look; empty: faulty
	known bool   // the policies were looked at
	swept int    // how often, since they changed
	due   time.Time
	pause time.Duration // after a failure

	mu   sync.Mutex
	open bool          // Reconcile may go on
	gate chan struct{} // closed when open
	err  error
}

func newSweeper(r *Reconciler, p *PolicyWatch) *sweeper {
	return &sweeper{r: r, policies: p, bell: newBell(), gate: make(chan struct{})}
}

// Start implements manager.Runnable.
func (s *sweeper) Start(ctx context.Context) error {
	for {
		var timer <-chan time.Time
		if next := s.step(ctx); next > 0 {
			timer = time.After(next)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.bell:
		case <-timer:
		}
	}
}

// step sweeps if that is due, and returns how long until it is due again; zero:
// not before the policies change.
func (s *sweeper) step(ctx context.Context) time.Duration {
	faults, mark, err := s.policies.look(ctx)
	if err != nil {
		return s.failed(ctx, err)
	}
	now := s.r.Clock.Now()
	if len(faults) > 0 {
		s.setFailure(nil)
		s.mark, s.known, s.due = "", true, time.Time{}
		s.setOpen(true)
		return 0
	}
	if mark != s.mark {
		s.due = now
		if s.known { // at start they have been in effect for long, as a rule, and a failover is not to last longer
			s.due = now.Add(settle[0])
		}
		s.mark, s.known, s.swept = mark, true, 0
		s.setOpen(false)
	}
	if s.due.IsZero() {
		return 0
	}
	if left := s.due.Sub(now); left > 0 {
		return left
	}
	jobs, err := s.r.ungatedJobs(ctx)
	if err != nil {
		return s.failed(ctx, err)
	}
	s.setOpen(true)
	found, err := s.r.takeInAll(ctx, jobs)
	if err != nil {
		return s.failed(ctx, err)
	}
	return s.ended(found)
}

// ended notes the end of a sweep that found some, and returns the pause until the
// next.
func (s *sweeper) ended(found int) time.Duration {
	s.setFailure(nil)
	s.pause = 0
	s.swept++
	if s.swept > len(settle) && found == 0 {
		s.due = time.Time{}
		return 0
	}
	pause := settle[min(s.swept, len(settle))-1]
	s.due = s.r.Clock.Now().Add(pause)
	return pause
}

func (s *sweeper) failed(ctx context.Context, err error) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	s.setFailure(err)
	ctrl.LoggerFrom(ctx).WithName("sweep").Error(err, "looking for annotated Jobs and CronJobs that are not behind their lock")
	s.pause = min(max(2*s.pause, time.Second), maxBackoff)
	return s.pause
}

func (s *sweeper) setFailure(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// failure is why the last sweep did not come to its end.
func (s *sweeper) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		return nil
	}
	return fmt.Errorf("looking for annotated Jobs and CronJobs that are not behind their lock: %w", s.err)
}

func (s *sweeper) setOpen(open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case open && !s.open:
		close(s.gate)
	case !open && s.open:
		s.gate = make(chan struct{})
	}
	s.open = open
}

// await returns when nobody runs unseen who was there when the policies came to be
// as they must be: a grant before would be beside their pods (L5). While policies
// are missing it does not wait.
func (s *sweeper) await(ctx context.Context) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	gate := s.gate
	s.mu.Unlock()
	select {
	case <-gate:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the sweep: %w", ctx.Err())
	}
}
