package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/distlock-dev/distlock/test/env"
)

const operations = "docs/operations.md"

func TestEveryEventHasItsSection(t *testing.T) {
	reason := regexp.MustCompile(`(?m)^\s*event[A-Z]\w*\s*=\s*"(\w+)"`)
	var reasons []string
	files, err := filepath.Glob(filepath.Join(env.Root(t), "controllers", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		for _, m := range reason.FindAllStringSubmatch(read(t, f), -1) {
			reasons = append(reasons, m[1])
		}
	}
	if len(reasons) < 9 {
		t.Fatalf("found only the reasons %v: are they declared in another way now?", reasons)
	}
	wantSections(t, sections(t, "Events"), reasons)
}

func TestEveryAlertHasTheSectionThatItsRunbookNames(t *testing.T) {
	var manifest struct {
		Spec struct {
			Groups []struct {
				Rules []struct {
					Alert       string            `json:"alert"`
					Annotations map[string]string `json:"annotations"`
				} `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(read(t, path(t, "config/prometheus/rules.yaml"))), &manifest); err != nil {
		t.Fatal(err)
	}
	var alerts []string
	for _, g := range manifest.Spec.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				continue // a recording rule
			}
			alerts = append(alerts, r.Alert)
			if want := "/" + operations + "#" + anchor(r.Alert); !strings.HasSuffix(r.Annotations["runbook_url"], want) {
				t.Errorf("%s: runbook_url %q, want one that ends in %s", r.Alert, r.Annotations["runbook_url"], want)
			}
		}
	}
	if len(alerts) == 0 {
		t.Fatal("no alerts found")
	}
	wantSections(t, sections(t, "Alerts"), alerts)
}

func wantSections(t *testing.T, inPage, inCode []string) {
	t.Helper()
	for _, name := range inCode {
		if !slices.Contains(inPage, name) {
			t.Errorf("%s has no section in %s", name, operations)
		}
	}
}

// sections are the headings of the third level below one of the second.
func sections(t *testing.T, under string) []string {
	t.Helper()
	_, part, found := strings.Cut(read(t, path(t, operations)), "\n## "+under+"\n")
	if !found {
		t.Fatalf("%s has no part %q", operations, under)
	}
	part, _, _ = strings.Cut(part, "\n## ")
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^### (.+)$`).FindAllStringSubmatch(part, -1) {
		names = append(names, m[1])
	}
	return names
}

func TestLinksLeadSomewhere(t *testing.T) {
	pages, err := filepath.Glob(path(t, "docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	checked := 0
	for _, page := range append(pages, path(t, "README.md"), path(t, "CONTRIBUTING.md")) {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			checked++
			file, fragment, _ := strings.Cut(m[1], "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s: %v", filepath.Base(page), m[1], err)
			} else if fragment != "" && !slices.Contains(anchors(t, target), fragment) {
				t.Errorf("%s: %s: no such heading", filepath.Base(page), m[1])
			}
		}
	}
	if checked == 0 {
		t.Error("no links found")
	}
}

func anchors(t *testing.T, page string) []string {
	t.Helper()
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(read(t, page), -1) {
		all = append(all, anchor(m[1]))
	}
	return all
}

// anchor is what GitHub makes of a heading.
func anchor(heading string) string {
	kept := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(heading), "")
	return strings.ReplaceAll(kept, " ", "-")
}

func path(t *testing.T, file string) string {
	t.Helper()
	return filepath.Join(env.Root(t), file)
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
