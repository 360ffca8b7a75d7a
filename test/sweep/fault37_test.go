package sweep

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

func TestFault37ThePoliciesAreDeletedAndComeBack(t *testing.T) {
	s := newStage(t, shared)
	s.lock("ledger")
	before := s.cron("before", "ledger")
	leader, standby := s.startManager(), s.startManager()
	leader.untilReady()
	standby.untilReady()

	s.deletePolicies()
	for _, m := range []manager{leader, standby} {
		m.untilReadyz("", http.StatusInternalServerError, "[-]policies failed")
		for _, name := range policyNames {
			m.untilReadyz("policies", http.StatusInternalServerError, "Policy "+name+" is missing")
			m.untilReadyz("policies", http.StatusInternalServerError, "PolicyBinding "+name+" is missing")
		}
		m.untilLogged("policies", "MutatingAdmissionPolicy distlock-gate-jobs is missing")
	}
	s.untilEvent(v1alpha1.ControllerNamespace, "ServiceAccount", v1alpha1.ControllerServiceAccount, "PoliciesFaulty", "distlock-")

	first, second := s.worker("first", "ledger"), s.worker("second", "ledger")
	waiting := s.worker("waiting", "ledger", paused)
	s.worker("done", "ledger", runs("true"))
	cron := s.cron("cron", "ledger")
	for _, j := range []*batchv1.Job{first, second} {
		if now := s.job(j.Name, "running", running); gated(now) {
			t.Fatalf("%s is gated", j.Name)
		}
	}
	s.job("done", "complete", complete)

	s.restorePolicies()
	for _, j := range []*batchv1.Job{first, second, waiting} {
		s.job(j.Name, "taken in", takenIn)
		s.untilEvent(s.ns, "Job", j.Name, "TakenIn", "no DISTLOCK_FENCING_TOKEN")
	}
	until(s, cron, "handed down", handedDown)
	s.untilEvent(s.ns, "CronJob", "cron", "TakenIn", "ledger")
	for _, m := range []manager{leader, standby} {
		m.untilReady()
		m.untilLogged("the policies are as they must be again")
	}
	s.untilEvent(v1alpha1.ControllerNamespace, "ServiceAccount", v1alpha1.ControllerServiceAccount, "PoliciesSound", "")

	// Each in its turn; that it is alone then, the law says.
	for left := []*batchv1.Job{first, second, waiting}; len(left) > 0; {
		var holder int
		until(s, &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "ledger"}}, "held by one that has not been yet", func(l *v1alpha1.DistLock) bool {
			for i, j := range left {
				if granted(l, j) {
					holder = i
					return true
				}
			}
			return false
		})
		s.job(left[holder].Name, "running", running)
		s.end(left[holder])
		left = append(left[:holder:holder], left[holder+1:]...)
	}
	if gated(s.job("done", "there", there)) {
		t.Error("a finished Job was taken in")
	}
	was := before.ResourceVersion
	if now := until(s, before, "there", func(*batchv1.CronJob) bool { return true }); now.ResourceVersion != was {
		t.Error("a CronJob that was in order was written")
	}
}

// policyNames are those of the policies and of their bindings.
var policyNames = []string{
	"distlock-gate-jobs", "distlock-gate-cronjobs", "distlock-check-request", "distlock-check-gated", "distlock-check-cronjobs",
	"distlock-guard-jobs", "distlock-guard-pods", "distlock-guard-bindings", "distlock-guard-cronjobs", "distlock-guard-locks",
	"distlock-warn-cronjobs",
}

func handedDown(c *batchv1.CronJob) bool {
	return c.Spec.JobTemplate.Annotations[v1alpha1.LockAnnotation] == c.Annotations[v1alpha1.LockAnnotation]
}

// The controller starts after the policies, and they were installed after the Jobs:
// one that waits properly does not get the lock beside one that nobody knows of.
func TestFault37ThePoliciesAreInstalledAfterJobsWereThere(t *testing.T) {
	s := newStage(t, shared)
	s.deletePolicies()
	s.lock("ledger")
	ungated := s.worker("ungated", "ledger")
	cron := s.cron("cron", "ledger", func(c *batchv1.CronJob) {
		c.Spec.JobTemplate.Annotations = map[string]string{v1alpha1.LockAnnotation: "another"}
	})
	for i := range 510 { // more than are listed at once, and before the others in the list
		s.worker(fmt.Sprintf("foreign-%03d", i), "", paused)
	}
	s.job("ungated", "running", running)
	s.restorePolicies()
	gated := s.worker("gated", "ledger")

	m := s.startManager()
	s.job("ungated", "taken in", takenIn)
	until(s, cron, "handed down", handedDown)
	m.untilReady()
	s.untilEvent(s.ns, "Job", "ungated", "TakenIn", "suspended")
	s.job("ungated", "suspended", suspended)
	s.heldBy("ledger", gated) // whoever was suspended waits at the end of the queue
	s.job("gated", "running", running)
	s.end(gated)
	s.heldBy("ledger", ungated)
	s.job("ungated", "running", running)
	if foreign := s.job("foreign-000", "there", there); foreign.Labels[v1alpha1.GatedLabel] != "" || foreign.Generation != 1 {
		t.Error("a Job without the annotation was touched")
	}
}

// However long the sweep takes, nobody is granted a lock before it has ended.
func TestFault37NobodyIsGrantedALockDuringTheSweep(t *testing.T) {
	s := newStage(t, shared)
	s.deletePolicies()
	s.lock("ledger")
	s.worker("ungated", "ledger")
	s.job("ungated", "running", running)
	s.restorePolicies()
	gated := s.worker("gated", "ledger")

	done := make(chan struct{})
	s.startWith(func(next http.RoundTripper) http.RoundTripper {
		var first, once sync.Once
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, "/jobs/ungated") {
				first.Do(func() { // it is taken in
					select { // slow, but not for ever
					case <-done:
						t.Error("the lock was granted during the sweep, beside the pod of a Job that it had not come to yet")
					case <-time.After(3 * time.Second):
					}
				})
			}
			resp, err := next.RoundTrip(req)
			if err == nil && req.Method == http.MethodPut && strings.HasSuffix(req.URL.Path, "/ledger/status") {
				var l v1alpha1.DistLock
				if body, err := req.GetBody(); err == nil && json.NewDecoder(body).Decode(&l) == nil && granted(&l, gated) {
					once.Do(func() { close(done) })
				}
			}
			return resp, err
		})
	})
	s.job("ungated", "taken in", takenIn)
	s.heldBy("ledger", gated) // not beside the pods of one that was taken in, the law says
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// One Job and one CronJob that nobody can write to hold up no other lock, and no
// other's being taken in; they are not forgotten.
func TestFault37OneThatCannotBeTakenInHoldsUpItsOwnLockAlone(t *testing.T) {
	s := newStage(t, shared)
	s.deletePolicies()
	s.lock("ledger")
	s.lock("other")
	unwritable := map[string]string{"example.com/webhook": "down"}
	ungated := s.worker("ungated", "ledger", func(j *batchv1.Job) { j.Labels = unwritable })
	cron := s.cron("a", "ledger", func(c *batchv1.CronJob) { c.Labels = unwritable })
	later := s.cron("z", "ledger")
	s.worker("z", "third", paused)
	s.job("ungated", "running", running)
	s.restorePolicies()
	webhook := s.webhookThatIsDown(unwritable)
	gated, elsewhere := s.worker("gated", "ledger"), s.worker("elsewhere", "other")

	m := s.startManager()
	s.heldBy("other", elsewhere)
	m.untilReady()
	s.job("z", "taken in", takenIn)
	until(s, later, "handed down", handedDown)
	s.untilEvent(s.ns, "Job", "ungated", "NotTakenIn", "is tried again")
	s.untilEvent(s.ns, "CronJob", "a", "NotTakenIn", "is tried again")
	s.untilEvent(s.ns, "Job", "gated", "WaitingForLock", "ungated")

	must(t, s.Client().Delete(t.Context(), webhook))
	s.job("ungated", "taken in", takenIn)
	until(s, cron, "handed down", handedDown)
	s.heldBy("ledger", gated)
	s.end(gated)
	s.heldBy("ledger", ungated)
}

// What was missed is taken in under a running controller, and one of the writes hangs.
func TestFault37AWriteThatHangsHoldsUpNoOtherLock(t *testing.T) {
	s := newStage(t, shared)
	s.lock("ledger")
	s.lock("other")
	s.startWith(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method == http.MethodPatch && strings.HasSuffix(req.URL.Path, "/jobs/ungated") {
				<-req.Context().Done()
			}
			return next.RoundTrip(req)
		})
	})
	first := s.worker("first", "other")
	s.heldBy("other", first) // the policies were looked at
	s.end(first)
	s.deletePolicies()
	s.worker("ungated", "ledger")
	s.job("ungated", "running", running)
	s.restorePolicies()
	s.heldBy("other", s.worker("elsewhere", "other"))
}

// The controller starts before the policies: it is not ready, and takes in what was
// there once they are installed.
func TestFault37ThePoliciesAreInstalledAfterTheController(t *testing.T) {
	s := newStage(t, shared)
	s.deletePolicies()
	s.lock("ledger")
	m := s.startManager()
	m.untilReadyz("policies", http.StatusInternalServerError, "distlock-gate-jobs is missing")
	ungated := s.worker("ungated", "ledger")
	s.job("ungated", "running", running)
	s.restorePolicies()
	m.untilReady()
	s.job("ungated", "taken in", takenIn)
	s.heldBy("ledger", ungated)
}

// What distlock-check-request refuses is not taken in, and says why.
func TestFault37AJobThatWouldHaveBeenRefusedIsNotTakenIn(t *testing.T) {
	s := newStage(t, shared)
	s.deletePolicies()
	refused := map[string]struct {
		change func(*batchv1.Job)
		why    string
	}{
		"manual": {func(j *batchv1.Job) {
			j.Spec.ManualSelector = ptr.To(true)
			j.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"own": "pods"}}
			j.Spec.Template.Labels = map[string]string{"own": "pods"}
		}, "spec.manualSelector"},
		"managed": {func(j *batchv1.Job) { j.Spec.ManagedBy = ptr.To("example.com/other") }, "spec.managedBy"},
		"kueue":   {func(j *batchv1.Job) { j.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "q"} }, "kueue.x-k8s.io/queue-name"},
		"name":    {func(j *batchv1.Job) { j.Annotations[v1alpha1.LockAnnotation] = "No Name" }, "distlock.dev/lock"},
		"mode":    {func(j *batchv1.Job) { j.Annotations[v1alpha1.ModeAnnotation] = "shared" }, "distlock.dev/mode"},
		"permits": {func(j *batchv1.Job) { j.Annotations[v1alpha1.PermitsAnnotation] = "few" }, "distlock.dev/permits"},
	}
	for name, r := range refused {
		s.worker(name, "ledger", r.change)
	}
	s.cron("replaces", "ledger", func(c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = batchv1.ReplaceConcurrent })
	s.restorePolicies()
	s.startManager().untilReady()
	for name, r := range refused {
		s.untilEvent(s.ns, "Job", name, "NotTakenIn", r.why)
		if gated(s.job(name, "there", there)) {
			t.Errorf("%s: taken in", name)
		}
	}
	s.untilEvent(s.ns, "CronJob", "replaces", "NotTakenIn", "concurrencyPolicy")
}

func TestFault37APolicyIsEdited(t *testing.T) {
	s := newStage(t, shared)
	m := s.startManager()
	m.untilReady()
	t.Cleanup(func() { must(t, s.restore(context.WithoutCancel(t.Context()))) })
	for _, r := range []struct{ name, kind, object, patch, want string }{
		{"to be ignored when it fails", "mutatingadmissionpolicy", "distlock-gate-jobs",
			`[{"op": "replace", "path": "/spec/failurePolicy", "value": "Ignore"}]`, "spec.failurePolicy"},
		{"to fail when it runs", "validatingadmissionpolicy", "distlock-check-gated",
			`[{"op": "replace", "path": "/spec/validations/0/expression", "value": "dyn(object).spec.nowhere == 1"}]`, "spec.validations"},
		{"to hold for fewer", "validatingadmissionpolicy", "distlock-guard-jobs",
			`[{"op": "add", "path": "/spec/matchConstraints/namespaceSelector", "value": {"matchLabels": {"gated": "true"}}}]`, "spec.matchConstraints"},
		{"to do something else", "mutatingadmissionpolicy", "distlock-gate-cronjobs",
			`[{"op": "remove", "path": "/spec/mutations/1"}]`, "spec.mutations"},
		{"to warn only", "validatingadmissionpolicybinding", "distlock-check-gated",
			`[{"op": "replace", "path": "/spec/validationActions", "value": ["Audit"]}]`, "spec.validationActions"},
		{"to bind another policy", "mutatingadmissionpolicybinding", "distlock-gate-jobs",
			`[{"op": "replace", "path": "/spec/policyName", "value": "distlock-gate-cronjobs"}]`, "spec.policyName"},
	} {
		t.Run(r.name, func(t *testing.T) {
			s.kubectl("patch", r.kind, r.object, "--type=json", "-p", r.patch)
			m.untilReadyz("policies", http.StatusInternalServerError, r.object+" is not as this version needs it: "+r.want)
			s.restorePolicies()
			m.untilReadyz("policies", http.StatusOK, "ok")
		})
	}
	t.Run("with one more condition, which stays when it is applied and goes when it is replaced", func(t *testing.T) {
		s.kubectl("patch", "validatingadmissionpolicy", "distlock-guard-jobs", "--type=json", "-p",
			`[{"op": "add", "path": "/spec/matchConditions/-", "value": {"name": "added", "expression": "true"}}]`)
		m.untilReadyz("policies", http.StatusInternalServerError, "distlock-guard-jobs is not as this version needs it: spec.matchConditions")
		s.restorePolicies()
		if left := s.kubectl("get", "validatingadmissionpolicy", "distlock-guard-jobs", "-o", "jsonpath={.spec.matchConditions[*].name}"); !strings.Contains(left, "added") {
			t.Errorf("applying it left the conditions %s", left)
		}
		s.kubectl("replace", "-f", filepath.Join(policyFolder(t), "guard-jobs.yaml"))
		m.untilReadyz("policies", http.StatusOK, "ok")
	})
	t.Run("in its labels alone, and nobody minds", func(t *testing.T) {
		s.kubectl("label", "validatingadmissionpolicybinding", "distlock-guard-locks", "team=platform")
		s.kubectl("delete", "validatingadmissionpolicybinding", "distlock-guard-pods") // the same watch shows it after the label
		m.untilReadyz("policies", http.StatusInternalServerError, "internal server error: ValidatingAdmissionPolicyBinding distlock-guard-pods is missing\n")
		s.restorePolicies()
		m.untilReady()
	})
}
