package metrics

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/hack/process"
	"github.com/distlock-dev/distlock/test/env"
)

// patience is for what a test waits for: a start, RBAC, a new leader.
const patience = 2 * time.Minute

func TestTheLeadersMetricsAreServedToThoseWhoMayReadThem(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	e, err := env.Start(t.Context())
	must(t, err)
	t.Cleanup(func() { must(t, e.Stop()) })
	ns := e.Namespace(t)
	reader, stranger := account(t, e, ns, "reader", "distlock-metrics-reader"), account(t, e, ns, "stranger", "")
	program := build(t)
	leader := start(t, e, program)
	leader.until(t, reader, "leads", func(s scrape) bool { return s.value("leader_election_master_status") == 1 })

	for name, c := range map[string]struct {
		token string
		want  int
	}{
		"nobody":               {"", http.StatusUnauthorized},
		"an invalid token":     {"invalid", http.StatusInternalServerError}, // controller-runtime's answer
		"an account like many": {stranger, http.StatusForbidden},
		"one with the role":    {reader, http.StatusOK},
	} {
		code, body, err := leader.get(t.Context(), c.token)
		must(t, err)
		if code != c.want {
			t.Errorf("%s gets %d, want %d", name, code, c.want)
		}
		if code != http.StatusOK && strings.Contains(string(body), "distlock_") {
			t.Errorf("%s is refused, and gets metrics", name)
		}
	}

	must(t, e.Client().Create(t.Context(), &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "ledger"}}))
	must(t, e.Client().Create(t.Context(), &v1alpha1.LockClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "claim"}, Spec: v1alpha1.LockClaimSpec{LockName: "ledger"},
	}))
	held := func(s scrape) bool { return s.value("distlock_holds") == 1 }
	reconciled := func(s scrape) bool { return s["controller_runtime_reconcile_time_seconds"] != nil } // after what it wrote is seen
	served := map[string]bool{}
	for name := range leader.until(t, reader, "shows the hold and has reconciled", func(s scrape) bool { return held(s) && reconciled(s) }) {
		served[name] = true
	}
	wantAllServed(t, served)

	standby := start(t, e, program)
	s := standby.until(t, reader, "is ready", func(s scrape) bool { return s["distlock_conflicts_total"] != nil })
	for name, family := range s {
		for _, m := range family.GetMetric() {
			if strings.HasPrefix(name, "distlock_") && len(m.GetLabel()) > 0 {
				t.Errorf("the standby shows %s of %v", name, m.GetLabel())
			}
		}
	}
	leader.Stop(patience)
	standby.until(t, reader, "leads and shows the hold", held)
}

// scrape is what an endpoint answered, by name.
type scrape map[string]*dto.MetricFamily

// value is that of a gauge with one series; negative: there is no such one.
func (s scrape) value(name string) float64 {
	if len(s[name].GetMetric()) != 1 {
		return -1
	}
	return s[name].GetMetric()[0].GetGauge().GetValue()
}

// account makes a service account, bound to a ClusterRole unless that is empty, and
// returns its token.
func account(t *testing.T, e *env.Env, ns, name, role string) string {
	t.Helper()
	must(t, e.Client().Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}))
	if role != "" {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: ns + "-" + name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: name}},
		}
		must(t, e.Client().Create(t.Context(), binding))
	}
	config, err := e.ServiceAccountConfig(t.Context(), ns, name)
	must(t, err)
	return config.BearerToken
}

// build builds the manager.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "manager")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Dir = inTree(t)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the manager: %v\n%s", err, out)
	}
	return path
}

// manager is a replica of the controller, as config/manager runs it.
type manager struct {
	*process.Process
	url, log string
}

func start(t *testing.T, e *env.Env, program string) *manager {
	t.Helper()
	kubeconfig, err := e.ServiceAccountKubeconfig(t.Context(), v1alpha1.ControllerNamespace, v1alpha1.ControllerServiceAccount)
	must(t, err)
	address := freeAddress(t)
	m := &manager{url: "https://" + address + "/metrics", log: filepath.Join(t.TempDir(), "log")}
	log, err := os.Create(m.log)
	must(t, err)
	defer func() { _ = log.Close() }() // the process has its own
	cmd := exec.Command(program, "--leader-elect", "--health-probe-bind-address=0", "--metrics-bind-address="+address)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	m.Process, err = process.Start(cmd)
	must(t, err)
	t.Cleanup(func() { m.Stop(10 * time.Second) })
	return m
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	must(t, l.Close())
	return l.Addr().String()
}

// get scrapes with a token; without one where it is empty.
func (m *manager) get(ctx context.Context, token string) (code int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	// Its certificate is one that it signed itself.
	c := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

// until scrapes until the answer is as wanted. A refusal at first is one whose
// permission has not come into effect yet.
func (m *manager) until(t *testing.T, token, what string, wanted func(scrape) bool) scrape {
	t.Helper()
	var s scrape
	var last []byte
	var unreachable error
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		var code int
		if code, last, unreachable = m.get(ctx, token); code != http.StatusOK {
			return false, nil // not yet
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(last))
		s = families
		return err == nil && wanted(s), err
	})
	if err != nil {
		log, _ := os.ReadFile(m.log)
		t.Fatalf("never %s: %v\n%s\n%s", what, errors.Join(err, unreachable), last, log)
	}
	return s
}
