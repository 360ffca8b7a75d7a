package docs

import (
	"strings"
	"testing"

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

func TestTokensAreRaisedForAllLocks(t *testing.T) {
	ns := namespace(t, lock, strings.ReplaceAll(lock, "ledger", "reports"))
	shell(t, ns, `kubectl patch distlock reports --subresource=status --type=merge -p '{"status": {"fencingToken": 41}}'`)
	raise := env.Commands(t, operations, "raise")
	shell(t, ns, raise)
	tokens := `kubectl get distlocks -o jsonpath='{.items[*].status.fencingToken}'`
	if got := shell(t, ns, tokens); got != "1000000000 1000000041" {
		t.Errorf("tokens %q", got)
	}
	shell(t, ns, raise)
	if got := shell(t, ns, tokens); got != "2000000000 2000000041" {
		t.Errorf("tokens %q after the second time", got)
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
