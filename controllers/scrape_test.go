package controllers

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

func TestMissingPoliciesAreShownOnceTheyWereLookedFor(t *testing.T) {
	m := newMetrics(clock.RealClock{})
	if got := series(t, m)["distlock_missing_policies"]; got != 0 {
		t.Errorf("%d series before anybody looked", got)
	}
	m.setMissingPolicies(0)
	if got := series(t, m)["distlock_missing_policies"]; got != 1 {
		t.Errorf("%d series after nothing was found missing, want 1", got)
	}
}

// series are how many a scrape shows, by name.
func series(t *testing.T, c prometheus.Collector) map[string]int {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for _, f := range families {
		n[f.GetName()] = len(f.GetMetric())
	}
	return n
}
