package metrics

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// rulesFile is what is read of config/prometheus/rules.yaml.
type rulesFile struct {
	Spec struct {
		Groups []struct {
			Rules []struct {
				Alert       string            `json:"alert"`
				Expr        string            `json:"expr"`
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	} `json:"spec"`
}

func rules(t *testing.T) rulesFile {
	t.Helper()
	var r rulesFile
	must(t, yaml.Unmarshal(read(t, "config", "prometheus", "rules.yaml"), &r))
	if len(r.Spec.Groups) == 0 || len(r.Spec.Groups[0].Rules) == 0 {
		t.Fatal("no alerts in config/prometheus/rules.yaml")
	}
	return r
}

func TestTheAlertsFireWhenTheyShouldAndOnlyThen(t *testing.T) {
	promtool := findPromtool(t)
	var whole struct {
		Spec any `json:"spec"`
	}
	must(t, yaml.Unmarshal(read(t, "config", "prometheus", "rules.yaml"), &whole))
	plain, err := yaml.Marshal(whole.Spec)
	must(t, err)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), plain, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "alerts.yaml"), read(t, "test", "metrics", "testdata", "alerts.yaml"), 0o600))
	for _, args := range [][]string{{"check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"}, {"test", "rules", "alerts.yaml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// findPromtool is the one in PATH, or the one that `make promtool` left in bin/.
func findPromtool(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err == nil {
		return path
	}
	path = inTree(t, "bin", "promtool")
	if _, err := os.Stat(path); err != nil {
		fmt.Fprintln(os.Stderr, "test/metrics: no promtool in PATH or bin/ (make promtool), so the alerts are not tested")
		t.Skip("no promtool in PATH or bin/: make promtool gets it where apt is")
	}
	return path
}

func TestEachAlertIsTestedAndSaysWhatToDo(t *testing.T) {
	var tests struct {
		Tests []struct {
			Cases []struct {
				Alert string `json:"alertname"`
				Want  []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	must(t, yaml.Unmarshal(read(t, "test", "metrics", "testdata", "alerts.yaml"), &tests))
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range tests.Tests {
		for _, c := range test.Cases {
			fires[c.Alert] = fires[c.Alert] || len(c.Want) > 0
			silent[c.Alert] = silent[c.Alert] || len(c.Want) == 0
		}
	}
	operations := string(read(t, "docs", "operations.md"))
	for _, group := range rules(t).Spec.Groups {
		for _, r := range group.Rules {
			if !strings.Contains(operations, "\n### "+r.Alert+"\n") {
				t.Errorf("docs/operations.md does not say what to do about %s", r.Alert)
			}
			if !fires[r.Alert] || !silent[r.Alert] {
				t.Errorf("%s: tested to fire: %v, not to fire: %v", r.Alert, fires[r.Alert], silent[r.Alert])
			}
			if !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]) {
				t.Errorf("%s: severity %q", r.Alert, r.Labels["severity"])
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s has no summary or no description", r.Alert)
			}
			const page = "https://github.com/distlock-dev/distlock/blob/main/docs/operations.md#"
			if got := r.Annotations["runbook_url"]; got != page+strings.ToLower(r.Alert) {
				t.Errorf("%s: runbook_url %q", r.Alert, got)
			}
		}
	}
}
