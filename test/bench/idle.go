package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

const (
	// idleFor is how long the controller is watched while nothing happens.
	idleFor = time.Minute
	// The cluster that is idle: of a lock's Jobs one holds it, the others wait.
	idleLocks = 20
	idleJobs  = 100
)

// measureIdleAlone returns what the controller does on a small cluster where nothing
// happens.
func measureIdleAlone(ctx context.Context, s *stage) ([]measure, error) {
	if err := s.createGated(ctx, idleLocks, idleJobs); err != nil {
		return nil, err
	}
	if err := s.awaitQuiet(ctx); err != nil {
		return nil, err
	}
	return s.measureIdle(ctx, "small")
}

// measureIdle returns what the controller does while nothing happens.
func (s *stage) measureIdle(ctx context.Context, name string) ([]measure, error) {
	_, _ = fmt.Fprintf(os.Stderr, "bench: nothing happens for %s\n", idleFor)
	began := time.Now()
	before, err := cpuTime(s.controller.PID())
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(idleFor)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	after, err := cpuTime(s.controller.PID())
	if err != nil {
		return nil, err
	}
	all, err := s.allRequests(program)
	if err != nil {
		return nil, err
	}
	reads, writes, leases := 0, 0, 0
	for _, r := range all {
		switch {
		case r.received.Before(began) || r.verb == "WATCH":
		case r.resource == "leases":
			leases++
		case r.verb == "GET" || r.verb == "LIST":
			reads++
		default:
			writes++
		}
	}
	cluster := fmt.Sprintf("%s cluster idle for %s", name, idleFor)
	return []measure{
		{"idle-writes-" + name, cluster + ": writes", float64(writes), ""},
		{"idle-reads-" + name, cluster + ": reads", float64(reads), ""},
		{"idle-lease-requests-" + name, cluster + ": of the leader's lease", float64(leases), ""},
		{"idle-cpu-" + name, cluster + ": processor time", ms(after - before), "ms"},
	}, nil
}
