// Package docs holds the pages in docs/ against the code: every event and alert has
// its section, links lead somewhere, and the commands do what the text around them
// says, on a real control plane with the real controller.
package docs

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/distlock-dev/distlock/test/env"
)

// patience is how long anything may take that is waited for.
const patience = time.Minute

var testEnv *env.Env

func TestMain(m *testing.M) {
	os.Exit(env.Main(m, func(_ context.Context, e *env.Env) error { testEnv = e; return nil }, env.Pods))
}

// namespace is one of the test's own, and in it what the pages' examples are about.
func namespace(t *testing.T, manifests ...string) string {
	t.Helper()
	ns := testEnv.Namespace(t)
	apply(t, ns, manifests...)
	return ns
}

func apply(t *testing.T, ns string, manifests ...string) {
	t.Helper()
	for _, m := range manifests {
		shell(t, ns, "kubectl create -f - <<'EOF'\n"+m+"\nEOF\n")
	}
}

func shell(t *testing.T, ns, script string) string {
	t.Helper()
	return testEnv.Shell(t, t.TempDir(), ns, script)
}

// refused runs what must fail, and returns what it says.
func refused(t *testing.T, ns, script string) string {
	t.Helper()
	out, err := testEnv.TryShell(t.Context(), t, t.TempDir(), ns, script)
	if err == nil {
		t.Fatalf("went through: %s\n%s", script, out)
	}
	return out
}

// until waits until a script prints what is wanted.
func until(t *testing.T, ns, script, want string) {
	t.Helper()
	var got string
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		out, err := testEnv.TryShell(ctx, t, t.TempDir(), ns, script)
		got = strings.TrimSpace(out)
		return err == nil && got == want, nil
	})
	if err != nil {
		t.Fatalf("%s\nprints %q, and never %q", script, got, want)
	}
}

const (
	lock = `
apiVersion: distlock.dev/v1alpha1
kind: DistLock
metadata: {name: ledger}`
	claim = `
apiVersion: distlock.dev/v1alpha1
kind: LockClaim
metadata: {name: migration}
spec: {lockName: ledger}`
	cronJob = `
apiVersion: batch/v1
kind: CronJob
metadata: {name: invoices, annotations: {distlock.dev/lock: ledger}}
spec:
  schedule: "0 3 1 1 *"
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: example.com/work}]}}}}`
)

// job runs until its pods are ended, which takes them a grace period of an hour.
func job(name string) string {
	return `
apiVersion: batch/v1
kind: Job
metadata: {name: ` + name + `, annotations: {distlock.dev/lock: ledger}}
spec:
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 3600
      containers: [{name: main, image: example.com/work, command: [sh, -c, "trap '' TERM; while :; do sleep 0.2; done"]}]`
}

// holder is a script that prints the name behind the first hold.
const holder = `kubectl get distlock ledger -o jsonpath='{.status.holders[0].ref.name}'`
