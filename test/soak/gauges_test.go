package soak

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

const (
	sampleEvery = 5 * time.Second
	// settling is what a process gets before its size is looked at.
	settling = 5 * time.Minute
	// remarkable is how long a lock goes without a grant, while some wait, until it is
	// noted what it looks like.
	remarkable = 45 * time.Second
	// stuckAfter is how long a lock for which some wait may go without a grant: a
	// failover takes some 17 s, a Job whose pod failed some 10 s until its next.
	stuckAfter = 3 * time.Minute
)

// gauges are read every few seconds: the replicas' sizes, and whether the locks get
// on.
type gauges struct {
	client    client.Reader
	namespace string
	replicas  []*replica

	sizes   map[*replica][]size // of its present process, since it leads or does not
	tokens  map[string]int64
	granted map[string]time.Time // when the lock was last seen granted, or without a waiter
	stalls  map[string]time.Duration
	notes   []string
}

type size struct {
	life                     int // which of the replica's processes
	leads                    float64
	goroutines, memory, heap float64
}

// read reads until ctx ends.
func (g *gauges) read(ctx context.Context) error {
	g.sizes, g.tokens = map[*replica][]size{}, map[string]int64{}
	g.granted, g.stalls = map[string]time.Time{}, map[string]time.Duration{}
	for ctx.Err() == nil {
		for _, r := range g.replicas {
			g.readSize(ctx, r)
		}
		if err := g.readLocks(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		pause(ctx, sampleEvery)
	}
	return nil
}

func (g *gauges) readSize(ctx context.Context, r *replica) {
	life := r.ended()
	now, err := r.gauges(ctx)
	if err != nil || now[memoryMetric] == 0 {
		return // it is being started
	}
	if all := g.sizes[r]; len(all) > 0 && (all[0].life != life || all[0].leads != now[leadsMetric]) {
		g.sizes[r] = nil
	}
	g.sizes[r] = append(g.sizes[r], size{life, now[leadsMetric], now[goroutinesMetric], now[memoryMetric], now[heapMetric]})
}

func (g *gauges) readLocks(ctx context.Context) error {
	var locks v1alpha1.DistLockList
	if err := g.client.List(ctx, &locks, client.InNamespace(g.namespace)); err != nil {
		return err
	}
	for _, l := range locks.Items {
		if g.tokens[l.Name] != l.Status.FencingToken || len(l.Status.Queue) == 0 {
			g.tokens[l.Name], g.granted[l.Name] = l.Status.FencingToken, time.Now()
		}
		stall := time.Since(g.granted[l.Name])
		if stall >= remarkable && stall < remarkable+sampleEvery {
			g.notes = append(g.notes, g.describe(ctx, &l))
		}
		g.stalls[l.Name] = max(g.stalls[l.Name], stall)
	}
	return nil
}

// describe says what the holders of a lock do.
func (g *gauges) describe(ctx context.Context, l *v1alpha1.DistLock) string {
	text := fmt.Sprintf("%s: %s has had no grant for %s", time.Now().Format(time.TimeOnly), l.Name, time.Since(g.granted[l.Name]).Round(time.Second))
	for _, h := range l.Status.Holders {
		text += fmt.Sprintf("; held by %s with token %d, revoked: %t", h.Owner, h.FencingToken, h.RevokeTime != nil)
		j := &batchv1.Job{}
		if err := g.client.Get(ctx, client.ObjectKey{Namespace: l.Namespace, Name: h.Ref.Name}, j); err != nil {
			text += fmt.Sprintf(" (%v)", err)
			continue
		}
		text += fmt.Sprintf(" (suspended %t, deleted %t, active %d, failed %d, succeeded %d, ended %t, annotations %v)", ptr.Deref(j.Spec.Suspend, false),
			j.DeletionTimestamp != nil, j.Status.Active, j.Status.Failed, j.Status.Succeeded, ended(j), j.Annotations)
	}
	return text + fmt.Sprintf("; %d wait", l.Status.Waiting)
}

// longestStall is the longest that a lock went without a grant while some waited.
func (g *gauges) longestStall() (string, time.Duration) {
	var name string
	for _, n := range slices.Sorted(maps.Keys(g.stalls)) {
		if name == "" || g.stalls[n] > g.stalls[name] {
			name = n
		}
	}
	return name, g.stalls[name]
}

// growth compares the size of a replica's process when it had settled with that at
// the end: medians of a quarter of the time each.
func (g *gauges) growth(r *replica) (first, last size, lived time.Duration, grown bool) {
	all := g.sizes[r]
	lived = time.Duration(len(all)) * sampleEvery
	settled := all[min(int(settling/sampleEvery), len(all)/3):]
	quarter := max(1, len(settled)/4)
	if len(settled) == 0 {
		return first, last, lived, true // it was not there
	}
	first, last = medians(settled[:quarter]), medians(settled[len(settled)-quarter:])
	const mib = 1 << 20
	grown = last.goroutines > 1.2*first.goroutines+20 || last.memory > 1.25*first.memory+16*mib
	return first, last, lived, grown
}

func medians(all []size) size {
	median := func(of func(size) float64) float64 {
		var values []float64
		for _, s := range all {
			values = append(values, of(s))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	return size{
		goroutines: median(func(s size) float64 { return s.goroutines }),
		memory:     median(func(s size) float64 { return s.memory }),
		heap:       median(func(s size) float64 { return s.heap }),
	}
}

func (s size) String() string {
	const mib = 1 << 20
	return fmt.Sprintf("%.0f goroutines, %.1f MiB resident, %.1f MiB heap", s.goroutines, s.memory/mib, s.heap/mib)
}
