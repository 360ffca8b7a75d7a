package controllers_test

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

func TestGrantsAndEndsCountWhoeverWritesThem(t *testing.T) {
	t.Parallel()
	ns := lawlessNamespace(t)
	c := startController(t, ns)
	const lock = `lock="nightly"`
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	c.untilFigure(t, "distlock_holds", 0, lock) // the watch has begun
	h := &holder{ns: ns, lock: "nightly", lease: 3}
	h.takeAnew(t)
	c.untilFigure(t, "distlock_grants_total", 1, lock)
	c.untilFigure(t, "distlock_holds", 1, lock)
	h.renewTimes(t, 5) // longer than the lease
	must(t, h.write(t.Context(), func(s protocol.State) (protocol.State, error) {
		return s.Release(h.owner, h.token, time.Minute, time.Now())
	}))
	c.untilFigure(t, "distlock_releases_total", 1, lock)
	c.untilFigure(t, "distlock_holds", 0, lock)
	c.noFigure(t, "distlock_held_since_timestamp_seconds", lock)
	c.untilFigure(t, "distlock_expiries_total", 0, lock)

	h.takeAnew(t)
	c.untilFigure(t, "distlock_grants_total", 2, lock)
	c.untilFigure(t, "distlock_expiries_total", 1, lock)
	c.untilFigure(t, "distlock_releases_total", 1, lock)
	c.untilFigure(t, "distlock_hold_seconds", 2)
	c.untilFigure(t, "distlock_revocations_total", 0, lock, `reason="admin"`)
}

func TestARevocationCountsByItsCause(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	c := startController(t, ns)
	lockIn(t, ns, "short", v1alpha1.DistLockSpec{MaxHoldSeconds: new(int32(1))})
	untilClaim(t, claimOn(t, ns, "late", "short", nil), v1alpha1.ReasonRevoked)
	c.untilFigure(t, "distlock_revocations_total", 1, `lock="short"`, `reason="maxHold"`)
	c.untilFigure(t, "distlock_revocations_total", 0, `lock="short"`, `reason="admin"`)

	lockIn(t, ns, "long", v1alpha1.DistLockSpec{MaxHoldSeconds: new(int32(3600))})
	claim := untilClaim(t, claimOn(t, ns, "asked", "long", nil), v1alpha1.ReasonGranted)
	revoke(t, ns, "long", "claim/"+string(claim.UID))
	untilClaim(t, claim, v1alpha1.ReasonRevoked)
	c.untilFigure(t, "distlock_revocations_total", 1, `lock="long"`, `reason="admin"`)
	c.untilFigure(t, "distlock_revocations_total", 0, `lock="long"`, `reason="maxHold"`)
	c.untilFigure(t, "distlock_revocations_total", 0, `lock="long"`, `reason="job"`)
}

func TestWhoWaitsIsCountedAndItsWaitIsMeasured(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	c := startController(t, ns)
	const lock = `lock="nightly"`
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	first := untilClaim(t, claimOn(t, ns, "first", "nightly", nil), v1alpha1.ReasonGranted)
	j := jobOn(t, ns, "next", "nightly")
	untilClaim(t, claimOn(t, ns, "last", "nightly", nil), v1alpha1.ReasonWaiting)
	c.untilFigure(t, "distlock_waiting", 2, lock)
	c.untilFigure(t, "distlock_waiting_since_timestamp_seconds", float64(j.CreationTimestamp.Unix()), lock)
	c.untilFigure(t, "distlock_wait_seconds", 1)
	must(t, admin.Delete(t.Context(), first))
	untilStarted(t, ns, j.Name)
	c.untilFigure(t, "distlock_waiting", 1, lock)
	c.untilFigure(t, "distlock_wait_seconds", 2)
	for i := range 2 * v1alpha1.MaxQueue { // more than the lock stores
		claimOn(t, ns, "more-"+strconv.Itoa(i), "nightly", new(int32(60)))
	}
	c.untilFigure(t, "distlock_waiting", 1+2*v1alpha1.MaxQueue, lock)

	// One that was there before the controller waits since its creation; its grants
	// are not this controller's.
	clk := &steppedClock{}
	clk.step(time.Hour)
	later := startController(t, ns, readsClock(clk))
	later.untilFigure(t, "distlock_waiting", 1+2*v1alpha1.MaxQueue, lock)
	later.untilFigure(t, "distlock_holds", 1, lock)
	later.untilFigure(t, "distlock_grants_total", 0, lock)
	later.noFigure(t, "distlock_wait_seconds")
	setPhase(t, podOf(t, j), corev1.PodSucceeded)
	later.untilFigure(t, "distlock_wait_seconds", 1)
	if sum, ok := later.figure(t, "distlock_wait_seconds_sum", nil); !ok || sum < 3600 {
		t.Errorf("one that has waited for an hour by the controller's clock has waited for %v seconds", sum)
	}
}

func TestTheSeriesOfADeletedLockAreGone(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	c := startController(t, ns)
	l := lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	other := lockIn(t, ns, "other", v1alpha1.DistLockSpec{})
	claim := untilClaim(t, claimOn(t, ns, "claim", "nightly", nil), v1alpha1.ReasonGranted)
	must(t, admin.Delete(t.Context(), claim))
	untilFree(t, ns, "nightly")
	c.untilFigure(t, "distlock_hold_seconds", 1)
	must(t, admin.Delete(t.Context(), l))
	c.untilNoSeries(t, `lock="nightly"`)
	c.untilFigure(t, "distlock_holds", 0, `lock="other"`)
	c.untilFigure(t, "distlock_hold_seconds", 1)
	must(t, admin.Delete(t.Context(), other))
	c.untilNoSeries(t, `namespace="`+ns+`"`)
}

func TestAConflictIsCounted(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	c := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{Capacity: new(int32(2))})
	c.untilFigure(t, "distlock_conflicts_total", 0)
	reached, letGo := c.holdUp(writes(http.MethodPut, "/distlocks/nightly/status"))
	claim := claimOn(t, ns, "claim", "nightly", nil)
	await(t, reached, "the grant")
	h := &holder{ns: ns, lock: "nightly"}
	must(t, h.write(t.Context(), func(s protocol.State) (protocol.State, error) {
		return s.Grant(protocol.NewWaiter(s.Spec, "program", nil, nil, new(int32(60)), nil), time.Now())
	}))
	letGo()
	untilClaim(t, claim, v1alpha1.ReasonGranted)
	c.untilFigure(t, "distlock_conflicts_total", 1)
}

func TestAJobThatRunsWhereItsLockDoesNotExistIsAnIntruder(t *testing.T) {
	t.Parallel()
	ns := lawlessNamespace(t)
	c := startController(t, ns)
	j := jobOn(t, ns, "orphan", "nightly")
	untilEvent(t, ns, "LockNotFound")
	c.untilFigure(t, "distlock_intruders_total", 0)
	asController, err := client.New(controllerConfig, client.Options{Scheme: admin.Scheme()})
	must(t, err)
	must(t, asController.Patch(t.Context(), j, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":false}}`))))
	podOf(t, j)
	untilJob(t, ns, "orphan", "suspended", suspended)
	c.untilFigure(t, "distlock_intruders_total", 1)
}

// figures are what a scrape shows, by name and labels; a histogram is its count, and
// its sum under a name of its own.
func (i *instance) figures(t *testing.T) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	must(t, registry.Register(i.metrics))
	families, err := registry.Gather()
	must(t, err)
	shown := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+`="`+l.GetValue()+`"`)
			}
			series := "{" + strings.Join(labels, ",") + "}"
			if h := m.GetHistogram(); h != nil {
				shown[f.GetName()+"_sum"+series] = h.GetSampleSum()
			}
			shown[f.GetName()+series] =
				m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return shown
}

// figure is one with these labels among its own.
func (i *instance) figure(t *testing.T, name string, labels []string) (float64, bool) {
	t.Helper()
	for series, v := range i.figures(t) {
		if !strings.HasPrefix(series, name+"{") {
			continue
		}
		if !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(series, l) }) {
			return v, true
		}
	}
	return 0, false
}

func (i *instance) untilFigure(t *testing.T, name string, want float64, labels ...string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		got, ok := i.figure(t, name, labels)
		return ok && got == want, nil
	})
	if err != nil {
		t.Fatalf("%s %v is never %v: %v", name, labels, want, i.figures(t))
	}
}

func (i *instance) noFigure(t *testing.T, name string, labels ...string) {
	t.Helper()
	if got, ok := i.figure(t, name, labels); ok {
		t.Errorf("%s %v is %v, want none", name, labels, got)
	}
}

func (i *instance) untilNoSeries(t *testing.T, label string) {
	t.Helper()
	var left []string
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		left = slices.DeleteFunc(slices.Collect(maps.Keys(i.figures(t))), func(s string) bool { return !strings.Contains(s, label) })
		return len(left) == 0, nil
	})
	if err != nil {
		t.Fatalf("series are left: %v", left)
	}
}
