package docs

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/test/env"
)

func TestAStuckLockIsFreedInOrder(t *testing.T) {
	testEnv.RunController(t)
	ns := namespace(t, lock, job("stuck"))
	until(t, ns, holder+`; kubectl get pods -o jsonpath=' {.items[*].status.phase}'`, "stuck Running")
	apply(t, ns, job("next"))
	until(t, ns, `kubectl get distlock ledger -o jsonpath='{.status.waiting}'`, "1")

	t.Log("an editor may revoke, a viewer may not")
	shell(t, ns, "kubectl create rolebinding ed --clusterrole=edit --user=ed; kubectl create rolebinding vi --clusterrole=view --user=vi")
	until(t, ns, "kubectl auth can-i patch distlocks --subresource=status --as=ed", "yes")
	revoke := env.Commands(t, operations, "revoke")
	if out := refused(t, ns, as("vi", revoke)); !strings.Contains(out, "Forbidden") {
		t.Errorf("says %q", out)
	}
	shell(t, ns, as("ed", revoke))

	t.Log("the lock waits for the pod, which ignores SIGTERM")
	until(t, ns, `kubectl get job stuck -o jsonpath='{.spec.suspend}'; kubectl get pods -o jsonpath=' {.items[*].metadata.deletionGracePeriodSeconds}'`, "true 3600")
	if got := strings.TrimSpace(shell(t, ns, holder)); got != "stuck" {
		t.Errorf("the lock was given to %s beside a pod that runs", got)
	}
	shell(t, ns, env.Commands(t, operations, "force"))
	until(t, ns, holder, "next")
	until(t, ns, `kubectl get distlock ledger -o jsonpath='{.status.queue[*].ref.name}'`, "stuck")
	if out := refused(t, ns, strings.Replace(revoke, "token=$(", "token=1 # $(", 1)); !strings.Contains(out, "request is invalid") {
		t.Errorf("a revocation of another hold says %q", out)
	}

	t.Log("a copy without the annotation runs beside it")
	apply(t, ns, cronJob)
	shell(t, ns, env.Commands(t, operations, "without-lock"))
	until(t, ns, `kubectl get job without-lock -o jsonpath='{.status.ready} {.metadata.labels.distlock\.dev/gated}'`, "1")
	if got := strings.TrimSpace(shell(t, ns, holder)); got != "next" {
		t.Errorf("the lock went to %s", got)
	}

	t.Log("a run by hand is gated as the CronJob's are")
	shell(t, ns, "kubectl create job --from=cronjob/invoices by-hand")
	until(t, ns, `kubectl get job by-hand -o jsonpath='{.spec.suspend} {.metadata.annotations.distlock\.dev/lock}'`, "true ledger")
}

// A Job that was not gated cannot be made here, so the command is asked for those that were.
func TestAnnotatedJobsAreListed(t *testing.T) {
	ns := namespace(t, lock, job("annotated"), strings.Replace(job("ordinary"), ", annotations: {distlock.dev/lock: ledger}", "", 1))
	ungated := env.Commands(t, operations, "ungated")
	gated := strings.Replace(ungated, "'!distlock.dev/gated'", "distlock.dev/gated", 1)
	if out := shell(t, ns, gated); !strings.Contains(out, ns+" annotated\n") {
		t.Errorf("prints %q, and not the annotated Job", out)
	}
	everything := strings.Replace(ungated, "-l '!distlock.dev/gated'", "", 1)
	if out := shell(t, ns, everything); !strings.Contains(out, ns+" annotated\n") || strings.Contains(out, "ordinary") {
		t.Errorf("of all Jobs, prints %q", out)
	}
	if out := shell(t, ns, ungated); strings.Contains(out, ns) {
		t.Errorf("prints %q, although every annotated Job is gated", out)
	}
}

func TestTokensAreRaisedForAllLocks(t *testing.T) {
	ns := namespace(t, lock, strings.ReplaceAll(lock, "ledger", "reports"))
	shell(t, ns, `kubectl patch distlock reports --subresource=status --type=merge -p '{"status": {"fencingToken": 5000000000}}'`)
	raise := env.Commands(t, operations, "raise")
	const step = 1_000_000_000
	for times := int64(1); times <= 2; times++ {
		shell(t, ns, raise)
		tokens := map[string]int64{}
		for _, name := range []string{"ledger", "reports"} {
			l := &v1alpha1.DistLock{}
			if err := testEnv.Client().Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, l); err != nil {
				t.Fatal(err)
			}
			tokens[name] = l.Status.FencingToken
		}
		// One was never granted, so its token is above the cluster's resourceVersion; the other was above that before.
		if ledger := tokens["ledger"]; ledger <= times*step || ledger > times*step+step/2 {
			t.Errorf("the token of ledger is %d after %d times", ledger, times)
		}
		if want := 5*step + times*step; tokens["reports"] != want {
			t.Errorf("the token of reports is %d after %d times, want %d", tokens["reports"], times, want)
		}
	}
	lower := refused(t, ns, `kubectl patch distlock ledger --subresource=status --type=merge -p '{"status": {"fencingToken": 5}}'`)
	if !strings.Contains(lower, "status.fencingToken must not decrease") {
		t.Errorf("says %q", lower)
	}
}

// as makes another user run the kubectls of a script.
func as(user, script string) string {
	return strings.ReplaceAll(script, "kubectl ", "kubectl --as="+user+" ")
}
