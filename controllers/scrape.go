package controllers

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("distlock_"+name, help, labels, nil)
}

var (
	missingDesc      = desc("missing_policies", "DistLock's admission policies and bindings that are absent, differ from those of this version or do not compile.")
	holdsDesc        = desc("holds", "Holds of the lock.", "namespace", "lock")
	waitingDesc      = desc("waiting", "Jobs and LockClaims that wait for the lock.", "namespace", "lock")
	heldSinceDesc    = desc("held_since_timestamp_seconds", "When the oldest hold of the lock was granted; absent while it is free.", "namespace", "lock")
	waitingSinceDesc = desc("waiting_since_timestamp_seconds", "When the first in the lock's queue joined it; absent while nobody waits.", "namespace", "lock")
	closedDesc       = desc("closed_seconds", "How long the lock is closed after its last hold ended; absent while it is open.", "namespace", "lock")
	grantsDesc       = desc("grants_total", "Holds granted.", "namespace", "lock")
	releasesDesc     = desc("releases_total", "Holds that ended in any way but an expired lease.", "namespace", "lock")
	expiriesDesc     = desc("expiries_total", "Holds that ended after their lease had run out.", "namespace", "lock")
	revocationsDesc  = desc("revocations_total", "Holders asked to stop.", "namespace", "lock", "reason")
)

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range []prometheus.Collector{m.wait, m.hold, m.conflicts, m.intruders, m.refused} {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{
		missingDesc, holdsDesc, waitingDesc, heldSinceDesc, waitingSinceDesc, closedDesc,
		grantsDesc, releasesDesc, expiriesDesc, revocationsDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. A replica that does not lead shows
// nothing of locks.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range []prometheus.Collector{m.conflicts, m.intruders, m.refused} {
		c.Collect(ch)
	}
	rows, missing := m.rows()
	if missing >= 0 {
		ch <- prometheus.MustNewConstMetric(missingDesc, prometheus.GaugeValue, float64(missing))
	}
	if !m.leads() {
		return
	}
	m.wait.Collect(ch)
	m.hold.Collect(ch)
	for i := range rows {
		rows[i].show(ch)
	}
}

// row is a copy of a lock's figures, so that a scrape keeps nobody waiting.
type row struct {
	lockFigures
	lock types.NamespacedName
	held int
	// since when the oldest hold is held; zero: none is.
	since time.Time
}

func (m *metrics) rows() (rows []row, missing int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rows = make([]row, 0, len(m.locks))
	for lock, f := range m.locks {
		rows = append(rows, row{lockFigures: *f, lock: lock, held: len(f.holds), since: f.oldest()})
	}
	return rows, m.missing
}

// show sends a lock's series.
func (r *row) show(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, reason ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, append([]string{r.lock.Namespace, r.lock.Name}, reason...)...)
	}
	send(holdsDesc, prometheus.GaugeValue, float64(r.held))
	send(waitingDesc, prometheus.GaugeValue, float64(r.waiting))
	if !r.since.IsZero() {
		send(heldSinceDesc, prometheus.GaugeValue, unixSeconds(r.since))
	}
	if !r.waitingSince.IsZero() {
		send(waitingSinceDesc, prometheus.GaugeValue, unixSeconds(r.waitingSince))
	}
	if r.closed > 0 {
		send(closedDesc, prometheus.GaugeValue, float64(r.closed))
	}
	send(grantsDesc, prometheus.CounterValue, float64(r.grants))
	send(releasesDesc, prometheus.CounterValue, float64(r.releases))
	send(expiriesDesc, prometheus.CounterValue, float64(r.expiries))
	for by, n := range r.revocations {
		send(revocationsDesc, prometheus.CounterValue, float64(n), revoker(by).String())
	}
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
