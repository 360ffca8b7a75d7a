package metrics

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func TestTheServiceMonitorFindsTheMetricsService(t *testing.T) {
	var service corev1.Service
	must(t, yaml.UnmarshalStrict(read(t, "config", "manager", "metrics_service.yaml"), &service))
	var monitor struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			Selector  metav1.LabelSelector `json:"selector"`
			Endpoints []struct {
				Port            string `json:"port"`
				Scheme          string `json:"scheme"`
				HonorLabels     bool   `json:"honorLabels"`
				BearerTokenFile string `json:"bearerTokenFile"`
			} `json:"endpoints"`
		} `json:"spec"`
	}
	must(t, yaml.Unmarshal(read(t, "config", "prometheus", "monitor.yaml"), &monitor))
	if monitor.Metadata.Namespace != service.Namespace {
		t.Errorf("it looks in namespace %s, the service is in %s", monitor.Metadata.Namespace, service.Namespace)
	}
	wanted := monitor.Spec.Selector.MatchLabels
	labels := maps.Clone(service.Labels)
	maps.DeleteFunc(labels, func(k, v string) bool { return wanted[k] != v })
	if len(wanted) == 0 || !maps.Equal(labels, wanted) {
		t.Errorf("it selects %v, the service has %v", wanted, service.Labels)
	}
	e := monitor.Spec.Endpoints[0]
	if !slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == e.Port }) {
		t.Errorf("the service has no port %q", e.Port)
	}
	if e.Scheme != "https" || e.BearerTokenFile == "" {
		t.Error("it does not scrape over HTTPS as its service account")
	}
	if !e.HonorLabels {
		t.Error("without honorLabels the alerts would name the controller's namespace, not the lock's")
	}
	// The operator names the target's job after the service.
	for _, expr := range exprsOfAlerts(t) {
		if target := `up{namespace="` + service.Namespace + `", job="` + service.Name + `"}`; strings.Contains(expr, "up{") && !strings.Contains(expr, target) {
			t.Errorf("no target is like that of %s", expr)
		}
	}
}
