package docs

import (
	"strings"
	"testing"
)

// Without a controller all Jobs wait.

func TestApplyingAgainChangesNothing(t *testing.T) {
	for how, flags := range map[string]string{"client-side": "", "server-side": " --server-side"} {
		t.Run(how, func(t *testing.T) {
			ns := namespace(t, lock)
			files := "cat >objects.yaml <<'EOF'\n" + cronJob + "\n---" + job("waiter") + "\nEOF\n"
			out := shell(t, ns, files+"kubectl apply -f objects.yaml"+flags+"\nkubectl apply -f objects.yaml"+flags+
				"\nkubectl diff -f objects.yaml"+flags+"\necho same")
			if !strings.HasSuffix(out, "same\n") {
				t.Errorf("prints %q", out)
			}
			until(t, ns, `kubectl get job waiter -o jsonpath='{.spec.suspend}'; kubectl get cronjob invoices -o jsonpath=' {.spec.jobTemplate.metadata.annotations.distlock\.dev/lock}'`, "true ledger")
		})
	}
}

func TestApplyingALockAgainTouchesNoHold(t *testing.T) {
	ns := namespace(t, lock)
	manifest := "cat >lock.yaml <<'EOF'\n" + lock + "\nEOF\n"
	shell(t, ns, manifest+`kubectl apply -f lock.yaml
kubectl patch distlock ledger --subresource=status --type=merge -p '{"status": {"fencingToken": 10000000, "holders": [
  {"owner": "me", "mode": "Exclusive", "permits": 1, "fencingToken": 10000000, "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.000000Z"}]}}'`)
	status := `kubectl get distlock ledger -o jsonpath='{.status}'`
	before := shell(t, ns, status)
	with := "printf 'status: {holders: [], fencingToken: 1}\\n' | cat lock.yaml - | "
	for _, command := range []string{
		"kubectl apply -f lock.yaml", "kubectl apply --server-side -f lock.yaml", "kubectl replace -f lock.yaml",
		with + "kubectl apply --server-side --force-conflicts -f -", with + "kubectl replace -f -",
	} {
		shell(t, ns, manifest+command)
		if after := shell(t, ns, status); after != before {
			t.Errorf("%s: status %s, before %s", command, after, before)
		}
	}
	if out := refused(t, ns, manifest+"kubectl replace --force -f lock.yaml"); !strings.Contains(out, "status.holders: held by me") {
		t.Errorf("says %q", out)
	}
}

func TestAWaitingJobIsNotStartedByItsManifest(t *testing.T) {
	ns := namespace(t, lock)
	manifest := "cat >job.yaml <<'EOF'\n" + strings.Replace(job("waiter"), "spec:", "spec:\n  suspend: false", 1) + "\nEOF\n"
	shell(t, ns, manifest+"kubectl apply -f job.yaml")
	until(t, ns, `kubectl get job waiter -o jsonpath='{.spec.suspend}'`, "true")
	const says = "spec.suspend: belongs to DistLock in a Job with distlock.dev/lock"
	for _, command := range []string{"kubectl apply -f job.yaml", "kubectl apply --server-side --force-conflicts -f job.yaml"} {
		if out := refused(t, ns, manifest+command); !strings.Contains(out, says) {
			t.Errorf("%s: says %q", command, out)
		}
	}
	// Created by client-side apply, then server-side: the ownership of the field moves.
	shell(t, ns, "kubectl delete job waiter")
	manifest = strings.Replace(manifest, "  suspend: false\n", "", 1)
	shell(t, ns, manifest+"kubectl apply -f job.yaml")
	_, _ = testEnv.TryShell(t.Context(), t, t.TempDir(), ns, manifest+"kubectl apply --server-side -f job.yaml")
	if out := refused(t, ns, manifest+"kubectl apply --server-side -f job.yaml"); !strings.Contains(out, says) {
		t.Errorf("says %q", out)
	}
}
