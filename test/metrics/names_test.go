package metrics

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// documentedName is a row of the table in docs/metrics.md.
	documentedName = regexp.MustCompile("(?m)^\\| `(distlock_[a-z_]+)` \\|")
	quoted         = regexp.MustCompile(`"[^"]*"`)
	metricName     = regexp.MustCompile(`\b(distlock|controller_runtime|leader_election|workqueue|rest_client)_[a-z_]+\b`)
	ofHistogram    = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// documented are the metrics of the table.
func documented(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, row := range documentedName.FindAllSubmatch(read(t, "docs", "metrics.md"), -1) {
		names = append(names, string(row[1]))
	}
	if len(names) == 0 {
		t.Fatal("no table in docs/metrics.md")
	}
	return names
}

// namesIn are the metrics that an expression uses, a histogram by its own name.
func namesIn(expr string) []string {
	var names []string
	for _, name := range metricName.FindAllString(quoted.ReplaceAllString(expr, ""), -1) {
		names = append(names, ofHistogram.ReplaceAllString(name, ""))
	}
	return names
}

func exprsOfAlerts(t *testing.T) []string {
	t.Helper()
	var exprs []string
	for _, group := range rules(t).Spec.Groups {
		for _, r := range group.Rules {
			exprs = append(exprs, r.Expr)
		}
	}
	return exprs
}

// exprsOfDashboard are those of the panels and variables.
func exprsOfDashboard(t *testing.T) []string {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string `json:"title"`
			Type    string `json:"type"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
		Templating struct {
			List []struct {
				Type  string `json:"type"`
				Query any    `json:"query"`
			} `json:"list"`
		} `json:"templating"`
	}
	must(t, json.Unmarshal(read(t, "config", "grafana", "distlock.json"), &dashboard))
	var exprs []string
	for _, p := range dashboard.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("the panel %q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			exprs = append(exprs, target.Expr)
		}
	}
	for _, v := range dashboard.Templating.List {
		if query, ok := v.Query.(map[string]any); ok {
			text, _ := query["query"].(string)
			exprs = append(exprs, text)
		}
	}
	return exprs
}

func TestAlertsAndDashboardUseMetricsOfTheTable(t *testing.T) {
	table := documented(t)
	for from, exprs := range map[string][]string{"an alert": exprsOfAlerts(t), "the dashboard": exprsOfDashboard(t)} {
		for _, expr := range exprs {
			names := namesIn(expr)
			if len(names) == 0 && !strings.Contains(expr, "up{") {
				t.Errorf("%s uses no metric: %s", from, expr)
			}
			for _, name := range names {
				if strings.HasPrefix(name, "distlock_") && !slices.Contains(table, name) {
					t.Errorf("%s uses %s, which is not in docs/metrics.md", from, name)
				}
			}
		}
	}
}

func TestTheDashboardShowsEveryMetric(t *testing.T) {
	shown := map[string]bool{}
	for _, expr := range exprsOfDashboard(t) {
		for _, name := range namesIn(expr) {
			shown[name] = true
		}
	}
	for _, name := range documented(t) {
		if !shown[name] {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}

// wantAllServed fails for metrics of other makers in alerts and dashboard that the
// manager does not serve.
func wantAllServed(t *testing.T, served map[string]bool) {
	t.Helper()
	used := map[string]bool{}
	for _, expr := range slices.Concat(exprsOfAlerts(t), exprsOfDashboard(t)) {
		for _, name := range namesIn(expr) {
			used[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		if !strings.HasPrefix(name, "distlock_") && !served[name] {
			t.Errorf("alerts or dashboard use %s, which the manager does not serve", name)
		}
	}
}
