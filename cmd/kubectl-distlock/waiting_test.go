package main

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/yaml"
)

func TestJobsThatWaitAreListedAcrossLocks(t *testing.T) {
	ns := testEnv.Namespace(t)
	for _, lock := range []string{"ledger", "reports"} {
		lockIn(t, ns, lock)
		jobOn(t, ns, lock+"-runs", lock, "sleep 3600", 0)
		untilRuns(t, ns, lock+"-runs")
		jobOn(t, ns, lock+"-waits", lock, "true", 0)
		untilLock(t, ns, lock, "waited for", waiting(1))
	}
	out := distlock(t, ns, "waiting").ok(t).out
	rows := wordsOf(out)
	if len(rows) != 3 || strings.Join(rows[0], " ") != "NAME LOCK PLACE WAITS HOLDER" {
		t.Fatalf("prints\n%s", out)
	}
	for i, lock := range []string{"ledger", "reports"} {
		r := rows[i+1]
		if r[0] != lock+"-waits" || r[1] != lock || r[2] != "1/1" || r[4] != "Job/"+lock+"-runs" {
			t.Errorf("of the one that waits for %s: %q", lock, r)
		}
	}
	if names := distlock(t, ns, "waiting", "-o", "name").ok(t).out; names != "job.batch/ledger-waits\njob.batch/reports-waits\n" {
		t.Errorf("-o name prints %q", names)
	}
	list := &batchv1.JobList{}
	must(t, yaml.Unmarshal([]byte(distlock(t, "default", "waiting", "-A", "-o", "yaml").ok(t).out), list))
	if len(list.Items) < 2 {
		t.Errorf("-A -o yaml prints %d Jobs", len(list.Items))
	}
	distlock(t, ns, "waiting", "ledger-runs").ends(t, exitFailed, "JOB")
	distlock(t, ns, "waiting", "--all").ends(t, exitUsage, "--resume")
}

func TestNothingIsResumedWhileDistLockIsThere(t *testing.T) {
	distlock(t, "default", "waiting", "--resume", "--all").ends(t, exitFailed, "--resume", "CRD distlocks.distlock.dev is there", "kubectl distlock revoke")
	distlock(t, "default", "waiting", "--resume").ends(t, exitUsage, "JOB", "--all")
	distlock(t, "default", "waiting", "--resume", "a", "-A").ends(t, exitUsage, "--all-namespaces")
}
