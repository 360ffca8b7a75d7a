package controllers

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// docRow is a row of the table: metric, type, labels, meaning.
var docRow = regexp.MustCompile("(?m)^\\| `(distlock_[a-z_]+)` \\| (gauge|counter|histogram) \\|([^|]*)\\| [^|]+ \\|$")

func TestTheTableInTheDocsHasEveryMetricWithItsTypeAndLabels(t *testing.T) {
	docs, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, row := range docRow.FindAllStringSubmatch(string(docs), -1) {
		documented[row[1]] = row[2] + strings.ReplaceAll(strings.ReplaceAll(strings.TrimRight(row[3], " "), ",", ""), "`", "")
	}
	shown := map[string]string{}
	for _, f := range gather(t, busy(1)) {
		shown[f.GetName()] = strings.ToLower(f.GetType().String())
		for _, l := range f.GetMetric()[0].GetLabel() {
			shown[f.GetName()] += " " + l.GetName()
		}
	}
	// A scrape shows labels in the order of their names.
	inOrder := strings.NewReplacer("namespace lock", "lock namespace")
	for name, is := range documented {
		if documented[name] = inOrder.Replace(is); documented[name] != shown[name] {
			t.Errorf("%s: the docs say %q, a scrape %q", name, documented[name], shown[name])
		}
	}
	for name, is := range shown {
		if documented[name] == "" {
			t.Errorf("%s (%s) is not in the docs", name, is)
		}
	}
}

func TestMissingPoliciesAreShownOnceTheyWereLookedFor(t *testing.T) {
	m := newMetrics(clock.RealClock{})
	before := len(gather(t, m))
	m.setMissingPolicies(0)
	if n := len(gather(t, m)); n != before+1 {
		t.Errorf("%d metrics before, %d after none were found missing", before, n)
	}
}

func TestAReplicaThatDoesNotLeadShowsNothingOfLocks(t *testing.T) {
	m := busy(3)
	m.leading = nil
	for _, f := range gather(t, m) {
		if len(f.GetMetric()) != 1 || len(f.GetMetric()[0].GetLabel()) != 0 {
			t.Errorf("%s has labels, or more than one series", f.GetName())
		}
	}
}

func TestALockHasABoundedNumberOfSeries(t *testing.T) {
	count := func(locks int) (n int) {
		for _, f := range gather(t, busy(locks)) {
			n += len(f.GetMetric())
		}
		return n
	}
	if got := count(1001) - count(1); got != 1000*11 {
		t.Errorf("1,000 locks more have %d series more, want 11 for each", got)
	}
}

// A scrape must not hold up the controller: what is done under its lock is a copy.
func BenchmarkScrapeOfAThousandLocks(b *testing.B) {
	m := busy(1000)
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := registry.Gather(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRowsOfAThousandLocks(b *testing.B) {
	m := busy(1000)
	b.ReportAllocs()
	for b.Loop() {
		m.rows()
	}
}

// busy are the figures of a leader with so many locks in one namespace, each held,
// waited for, and closed as well.
func busy(locks int) *metrics {
	m := newMetrics(clock.RealClock{})
	leading := make(chan struct{})
	close(leading)
	m.leading = leading
	m.setMissingPolicies(0)
	now := metav1.NewMicroTime(time.Now())
	for i := range locks {
		l := &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: "busy", Name: fmt.Sprintf("lock-%d", i), UID: types.UID(fmt.Sprintf("lock-%d", i))}}
		claim := &v1alpha1.LockClaim{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprintf("claim-%d", i))}}
		m.arrived(claim, false)
		for token := range int64(2) {
			l.Status.Holders = []v1alpha1.Hold{{
				Owner: "somebody", Mode: v1alpha1.Exclusive, Permits: 1, FencingToken: token + 1, AcquireTime: now, RenewTime: now,
				Ref: &v1alpha1.ObjectRef{UID: claim.UID},
			}}
			l.Status.ClosedSeconds = 60
			m.lock(l, false)
		}
		m.count(gathered{lock: l}, protocol.Effects{Waiting: []protocol.Request{{Since: now.Time}}})
	}
	return m
}

func gather(t *testing.T, c prometheus.Collector) []*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families
}
