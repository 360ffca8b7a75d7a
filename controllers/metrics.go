package controllers

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// metrics are this process's figures for Prometheus; docs/metrics.md is their
// contract. Grants and ends are counted from what the watch shows, since holders
// and their helpers write them too; only what the watch cannot show is counted
// from decisions. No figure costs a request. Safe for concurrent use.
type metrics struct {
	clock   clock.PassiveClock
	leading <-chan struct{} // closed once this process acts; nil: it never does

	wait, hold                    *prometheus.HistogramVec
	conflicts, intruders, refused prometheus.Counter

	mu       sync.Mutex
	locks    map[types.NamespacedName]*lockFigures
	since    map[types.UID]time.Time // when a Job or claim was first seen to wait
	intruded map[types.UID]bool      // Jobs counted as intruders
	missing  int                     // policies; negative: not looked yet
}

// buckets are for what lasts from a handover's milliseconds to a day.
var buckets = []float64{.05, .25, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600}

func newMetrics(clk clock.PassiveClock) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "distlock", Name: name, Help: help})
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "distlock", Name: name, Help: help, Buckets: buckets}, []string{"namespace"})
	}
	return &metrics{
		clock:     clk,
		wait:      histogram("wait_seconds", "Time from when a Job or LockClaim was seen to wait to its grant."),
		hold:      histogram("hold_seconds", "Time from when a hold was seen to be granted to its end."),
		conflicts: counter("conflicts_total", "Writes of a lock's status that conflicted and were decided again."),
		intruders: counter("intruders_total", "Jobs found running without their lock."),
		refused:   counter("refused_job_updates_total", "Attempts to start or suspend a Job that a policy or webhook of others refused."),
		locks:     map[types.NamespacedName]*lockFigures{},
		since:     map[types.UID]time.Time{},
		intruded:  map[types.UID]bool{},
		missing:   -1,
	}
}

// Metrics is to be registered once, by the process that runs the Reconciler.
func (r *Reconciler) Metrics() prometheus.Collector { return r.metrics }

// setMissingPolicies says how many of DistLock's policies are absent, differ or do not
// compile. Until it is called, the metric is not there.
func (m *metrics) setMissingPolicies(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.missing = n
}

// leads reports whether this process acts. Only then it counts and shows the
// figures of locks, so that those of several replicas can be added.
func (m *metrics) leads() bool {
	select {
	case <-m.leading:
		return true
	default:
		return false
	}
}

// watch feeds the figures from the manager's watches, in the order of their events.
func (m *metrics) watch(ctx context.Context, mgr ctrl.Manager) error {
	m.leading = mgr.Elected()
	arrivals := toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, atStart bool) { m.arrived(obj.(client.Object), atStart) },
		UpdateFunc: func(old, obj any) {
			if before, now := old.(client.Object), obj.(client.Object); before.GetUID() != now.GetUID() {
				m.left(before)
				m.arrived(now, false)
			}
		},
		DeleteFunc: func(obj any) { onDelete(obj, m.left) },
	}
	locks := toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, atStart bool) { m.lock(obj.(*v1alpha1.DistLock), atStart) },
		UpdateFunc: func(_, obj any) { m.lock(obj.(*v1alpha1.DistLock), false) },
		DeleteFunc: func(obj any) { onDelete(obj, m.forgetLock) },
	}
	for _, w := range []struct {
		obj     client.Object
		handler toolscache.ResourceEventHandler
	}{{&v1alpha1.DistLock{}, locks}, {&v1alpha1.LockClaim{}, arrivals}, {&batchv1.Job{}, arrivals}} {
		informer, err := mgr.GetCache().GetInformer(ctx, w.obj, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching %T for the metrics: %w", w.obj, err)
		}
		if _, err := informer.AddEventHandler(w.handler); err != nil {
			return fmt.Errorf("watching %T for the metrics: %w", w.obj, err)
		}
	}
	return nil
}

func onDelete(obj any, do func(client.Object)) {
	if unknown, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	if o, ok := obj.(client.Object); ok {
		do(o)
	}
}

// arrived takes in a Job or claim. One that was there before this process looked
// has waited since it was created or queued again.
func (m *metrics) arrived(o client.Object, atStart bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	since := m.clock.Now()
	if atStart {
		since = joined(o)
	}
	m.since[o.GetUID()] = since
}

func (m *metrics) left(o client.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.since, o.GetUID())
	delete(m.intruded, o.GetUID())
}

// announce notes why holds are about to be revoked, before the watch shows that
// they are; a revocation that was not announced is somebody else's.
func (m *metrics) announce(g gathered, e protocol.Effects) {
	if len(e.Revoked) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.figures(g.lock)
	for _, h := range e.Revoked {
		if was := f.hold(h); was != nil {
			was.why = byJob
			if limit := g.lock.Spec.MaxHoldSeconds; limit != nil && g.observed.Holds[h.Owner].Held >= time.Duration(*limit)*time.Second {
				was.why = byMaxHold
			}
		}
	}
}

// count takes in what was decided, and stored.
func (m *metrics) count(g gathered, e protocol.Effects) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.figures(g.lock); f != nil {
		f.waiting, f.waitingSince = len(e.Waiting)+g.observed.Beyond, time.Time{}
		if i := slices.IndexFunc(e.Waiting, func(w protocol.Request) bool { return !w.Running }); i >= 0 {
			f.waitingSince = e.Waiting[i].Since
		}
	}
	for _, w := range e.Waiting {
		if !w.Running {
			break // they come first
		}
		if g.jobs[w.Ref.UID] != nil { // else it is deleted, and was counted
			m.intruder(w.Ref.UID)
		}
	}
	for _, h := range e.Granted {
		if h.Ref != nil && h.RevokeTime != nil && g.jobs[h.Ref.UID] == nil {
			continue
		}
		if h.Ref != nil && h.RevokeTime != nil {
			m.intruder(h.Ref.UID)
		} else if h.Ref != nil {
			delete(m.intruded, h.Ref.UID)
		}
	}
}

// countIntruder counts a Job that runs although its lock does not exist.
func (m *metrics) countIntruder(job types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.intruder(job)
}

// intruder counts a Job once for as long as it was not granted the lock.
func (m *metrics) intruder(job types.UID) {
	if !m.intruded[job] {
		m.intruded[job] = true
		m.intruders.Inc()
	}
}

// conflicted counts a conflict, and returns the error.
func (m *metrics) conflicted(err error) error {
	if apierrors.IsConflict(err) {
		m.conflicts.Inc()
	}
	return err
}
