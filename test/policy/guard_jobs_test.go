package policy

import (
	"context"
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A change is a merge patch, of the Job or of its status subresource.
type change struct {
	name   string
	status bool
	patch  string
	want   string // of the refusal; empty if admitted
}

func (c change) try(t *testing.T, as client.Client, o client.Object) {
	t.Helper()
	t.Run(c.name, func(t *testing.T) {
		patch := client.RawPatch(types.MergePatchType, []byte(c.patch))
		fresh := o.DeepCopyObject().(client.Object)
		fresh.SetResourceVersion("")
		if c.status {
			expect(t, as.Status().Patch(t.Context(), fresh, patch, client.DryRunAll), c.want)
			return
		}
		expect(t, as.Patch(t.Context(), fresh, patch, client.DryRunAll), c.want)
	})
}

const (
	fixed        = "cannot be changed while the Job waits or runs"
	onlyAtBirth  = "a Job is put behind a lock when it is created"
	suspendIsOur = "spec.suspend: belongs to DistLock"
	replacement  = "spec.podReplacementPolicy: stays Failed"
)

// On a Job that waits as on one that runs. Faults 7 and 33.
var guarded = []change{
	{"its lock is taken off", false, `{"metadata": {"annotations": {"distlock.dev/lock": null}}}`, "metadata.annotations[distlock.dev/lock]: " + fixed},
	{"its lock is taken off through its status", true, `{"metadata": {"annotations": {"distlock.dev/lock": null}}}`, "metadata.annotations[distlock.dev/lock]: " + fixed},
	{"its lock is changed", false, `{"metadata": {"annotations": {"distlock.dev/lock": "other"}}}`, "metadata.annotations[distlock.dev/lock]: " + fixed},
	{"a mode is added", false, `{"metadata": {"annotations": {"distlock.dev/mode": "Shared"}}}`, "metadata.annotations[distlock.dev/mode]: " + fixed},
	{"permits are added through its status", true, `{"metadata": {"annotations": {"distlock.dev/permits": "2"}}}`, "metadata.annotations[distlock.dev/permits]: " + fixed},
	{"it is given another place in the queue", false, `{"metadata": {"annotations": {"distlock.dev/queued-at": "2000-01-01T00:00:00.000000Z"}}}`, "metadata.annotations[distlock.dev/queued-at]: " + fixed},
	{"an unknown annotation is added", false, `{"metadata": {"annotations": {"distlock.dev/unknown": ""}}}`, "metadata.annotations[distlock.dev/unknown]: " + fixed},
	{"its label is taken off", false, `{"metadata": {"labels": {"distlock.dev/gated": null}}}`, "metadata.labels[distlock.dev/gated]: " + fixed},
	{"its label is changed", false, `{"metadata": {"labels": {"distlock.dev/gated": "false"}}}`, "metadata.labels[distlock.dev/gated]: " + fixed},
	{"its label is taken off through its status", true, `{"metadata": {"labels": {"distlock.dev/gated": null}}}`, "metadata.labels[distlock.dev/gated]: " + fixed},
	{"annotation and label are taken off at once", false, `{"metadata": {"annotations": {"distlock.dev/lock": null}, "labels": {"distlock.dev/gated": null}}}`, "metadata.annotations[distlock.dev/lock], metadata.labels[distlock.dev/gated]: " + fixed},
	{"replacements are to overlap", false, `{"spec": {"podReplacementPolicy": "TerminatingOrFailed"}}`, replacement},
	{"the policy for replacements is taken out", false, `{"spec": {"podReplacementPolicy": null}}`, replacement},
	{"it is given to Kueue", false, `{"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}}}`, "metadata.labels: a Job with distlock.dev/lock cannot be given to Kueue"},
	{"it is given to a JobSet", false, `{"metadata": {"labels": {"jobset.sigs.k8s.io/jobset-name": "s"}}}`, "metadata.labels: a Job with distlock.dev/lock cannot be given to Kueue or a JobSet"},

	{"another label is added", false, `{"metadata": {"labels": {"team": "a"}}}`, ""},
	{"another annotation is added", false, `{"metadata": {"annotations": {"example.com/lock": "a"}}}`, ""},
	{"another annotation is added through its status", true, `{"metadata": {"annotations": {"example.com/lock": "a"}}}`, ""},
	{"its parallelism is changed", false, `{"spec": {"parallelism": 2}}`, ""},
	{"its deadline is changed", false, `{"spec": {"activeDeadlineSeconds": 60}}`, ""},
	{"a finalizer is added", false, `{"metadata": {"finalizers": ["example.com/hold"]}}`, ""},
	{"its counts are changed", true, `{"status": {"failed": 1}}`, ""},
}

func TestAWaitingJobIsGuarded(t *testing.T) {
	job := waitingJob(t, newNamespace(t))
	for _, c := range guarded {
		c.try(t, author, job)
	}
	for _, c := range []change{
		{"it is started", false, `{"spec": {"suspend": false}}`, suspendIsOur},
		{"it is started by taking suspend out", false, `{"spec": {"suspend": null}}`, suspendIsOur},
		{"its lock is taken off and it is started at once", false, `{"metadata": {"annotations": {"distlock.dev/lock": null}}, "spec": {"suspend": false}}`, "metadata.annotations[distlock.dev/lock]: " + fixed},
		{"it is called finished and its lock taken off in one write", true, `{"metadata": {"annotations": {"distlock.dev/lock": null}}, "status": {"conditions": [{"type": "Complete", "status": "True"}, {"type": "SuccessCriteriaMet", "status": "True"}], "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:00Z", "active": 0, "ready": 0}}`, "metadata.annotations[distlock.dev/lock]: " + fixed},
		{"its pods are given a token", false, `{"spec": {"template": {"metadata": {"annotations": {"distlock.dev/fencing-token": "7"}}}}}`, "spec.template.metadata.annotations[distlock.dev/fencing-token]: " + fixed},
		{"its pods are given another lock", false, `{"spec": {"template": {"metadata": {"annotations": {"distlock.dev/lock": "other"}}}}}`, "spec.template.metadata.annotations[distlock.dev/lock]: " + fixed},
		{"its pods' label is taken off", false, `{"spec": {"template": {"metadata": {"labels": {"distlock.dev/gated": null}}}}}`, "spec.template.metadata.labels[distlock.dev/gated]: " + fixed},
		{"its pods' annotations are taken off", false, `{"spec": {"template": {"metadata": {"annotations": null}}}}`, "spec.template.metadata.annotations[distlock.dev/lock]: " + fixed},
		{"its pods' old controller-uid is taken off", false, `{"spec": {"template": {"metadata": {"labels": {"controller-uid": null}}}}}`, "spec.template.metadata.labels[controller-uid]"},
		{"its pods' old controller-uid is changed", false, `{"spec": {"template": {"metadata": {"labels": {"controller-uid": "x"}}}}}`, "spec.template.metadata.labels[controller-uid]"},

		{"its pods are put on certain nodes", false, `{"spec": {"template": {"spec": {"nodeSelector": {"disk": "fast"}}}}}`, ""},
		{"its pods get another label", false, `{"spec": {"template": {"metadata": {"labels": {"team": "a"}, "annotations": {"example.com/x": "y"}}}}}`, ""},

		// These the API server refuses, and no policy needs to.
		{"its pods' controller-uid is changed", false, `{"spec": {"template": {"metadata": {"labels": {"batch.kubernetes.io/controller-uid": "x"}}}}}`, "`selector` does not match template `labels`"},
		{"its pods' variables are taken out", false, `{"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "example.com/main"}]}}}}`, "field is immutable"},
		{"it gets a selector of its own", false, `{"spec": {"selector": {"matchLabels": {"app": "x"}}}}`, "field is immutable"},
		{"it gets another controller", false, `{"spec": {"managedBy": "example.com/other"}}`, "field is immutable"},
	} {
		c.try(t, author, job)
	}
	change{"it is started by system:masters", false, `{"spec": {"suspend": false}}`, suspendIsOur}.try(t, admin, job)
}

func TestARunningJobIsGuarded(t *testing.T) {
	job := runningJob(t, newNamespace(t))
	for _, c := range guarded {
		c.try(t, author, job)
	}
	for _, c := range []change{
		{"it is suspended", false, `{"spec": {"suspend": true}}`, suspendIsOur},
		{"its pods are given another token", false, `{"spec": {"template": {"metadata": {"annotations": {"distlock.dev/fencing-token": "8"}}}}}`, "field is immutable"},
	} {
		c.try(t, author, job)
	}
}

// Fault 7, step by step, and nothing of it happens.
func TestAWaitingJobIsNotStartedInTwoSteps(t *testing.T) {
	job := waitingJob(t, newNamespace(t))
	for _, step := range []struct{ patch, want string }{
		{`{"metadata": {"annotations": {"distlock.dev/lock": null}}}`, fixed},
		{`{"metadata": {"labels": {"distlock.dev/gated": null}}}`, fixed},
		{`{"spec": {"suspend": false}}`, suspendIsOur},
	} {
		expect(t, author.Patch(t.Context(), job.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(step.patch))), step.want)
	}
	if err := author.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
		t.Fatal(err)
	}
	if missing := gateMissing(job); missing != nil {
		t.Errorf("lacks %v", missing)
	}
	if pods := podsOf(t, job); len(pods) != 0 {
		t.Errorf("%d pods", len(pods))
	}
}

// Nobody but the controller can take a Job in.
func TestAJobIsPutBehindALockAtCreationOnly(t *testing.T) {
	job := newJob(newNamespace(t), spec(func(s *batchv1.JobSpec) { s.Suspend = ptr.To(true) }))
	if err := author.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	for _, c := range []change{
		{"the annotation is added", false, `{"metadata": {"annotations": {"distlock.dev/lock": "nightly"}}}`, "metadata.annotations[distlock.dev/lock]: " + onlyAtBirth},
		{"the annotation is added through its status", true, `{"metadata": {"annotations": {"distlock.dev/lock": "nightly"}}}`, "metadata.annotations[distlock.dev/lock]: " + onlyAtBirth},
		{"the label is added", false, `{"metadata": {"labels": {"distlock.dev/gated": "true"}}}`, "metadata.labels[distlock.dev/gated]: " + onlyAtBirth},
		{"the label is added through its status", true, `{"metadata": {"labels": {"distlock.dev/gated": "true"}}}`, "metadata.labels[distlock.dev/gated]: " + onlyAtBirth},
		{"a mode is added", false, `{"metadata": {"annotations": {"distlock.dev/mode": "Shared"}}}`, "metadata.annotations[distlock.dev/mode]: " + onlyAtBirth},
		{"the label is added to its pods", false, `{"spec": {"template": {"metadata": {"labels": {"distlock.dev/gated": "true"}}}}}`, "spec.template.metadata.labels[distlock.dev/gated]: " + onlyAtBirth},
		{"a token is added to its pods", false, `{"spec": {"template": {"metadata": {"annotations": {"distlock.dev/fencing-token": "7"}}}}}`, "spec.template.metadata.annotations[distlock.dev/fencing-token]: " + onlyAtBirth},
		{"it is started", false, `{"spec": {"suspend": false}}`, ""},
		{"its pods may overlap", false, `{"spec": {"podReplacementPolicy": "Failed"}}`, ""},
		{"it is given to Kueue", false, `{"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}}}`, ""},
	} {
		c.try(t, author, job)
	}
}

// A Job that was there with its annotation before the policies, and which the
// controller finds and takes in.
func TestAnAnnotatedJobFromBeforeIsGuardedUntilTheControllerTakesItIn(t *testing.T) {
	job := newJob(newNamespace(t), spec(func(s *batchv1.JobSpec) { s.Suspend = ptr.To(true) }))
	if err := author.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	patchAs(t, controller, job, `{"metadata": {"annotations": {"distlock.dev/lock": "nightly"}}}`)
	for _, c := range []change{
		{"its lock is taken off", false, `{"metadata": {"annotations": {"distlock.dev/lock": null}}}`, fixed},
		{"it is started", false, `{"spec": {"suspend": false}}`, suspendIsOur},
		{"replacements are to overlap", false, `{"spec": {"podReplacementPolicy": "Failed"}}`, replacement},
		{"the label is added", false, `{"metadata": {"labels": {"distlock.dev/gated": "true"}}}`, "metadata.labels[distlock.dev/gated]: " + fixed},
	} {
		c.try(t, author, job)
	}
	change{"the controller adds the label", false, `{"metadata": {"labels": {"distlock.dev/gated": "true"}}, "spec": {"podReplacementPolicy": "Failed"}}`, ""}.try(t, controller, job)
}

func TestTheControllerMayDoWhatTheGuardsForbid(t *testing.T) {
	job := waitingJob(t, newNamespace(t))
	for _, c := range []change{
		{"start", false, `{"spec": {"suspend": false, "template": {"metadata": {"annotations": {"distlock.dev/fencing-token": "7"}}}}}`, ""},
		{"send to the end of the queue", false, `{"metadata": {"annotations": {"distlock.dev/queued-at": "2026-01-01T00:00:00.000000Z"}}}`, ""},
		{"restore", false, `{"metadata": {"labels": {"distlock.dev/gated": "true"}}, "spec": {"podReplacementPolicy": "Failed"}}`, ""},
	} {
		c.try(t, controller, job)
	}
	running := runningJob(t, job.Namespace)
	change{"suspend", false, `{"spec": {"suspend": true}, "metadata": {"annotations": {"distlock.dev/queued-at": "2026-01-01T00:00:00.000000Z"}}}`, ""}.try(t, controller, running)
}

func TestAFinishedJobIsFree(t *testing.T) {
	namespace := newNamespace(t)
	complete := finishedJob(t, namespace, batchv1.JobComplete, command("true"))
	failed := finishedJob(t, namespace, batchv1.JobFailed, command("false"), spec(func(s *batchv1.JobSpec) { s.BackoffLimit = ptr.To[int32](0) }))
	for how, job := range map[string]*batchv1.Job{"complete": complete, "failed": failed} {
		for _, c := range []change{
			{"its lock is taken off", false, `{"metadata": {"annotations": {"distlock.dev/lock": null}}}`, ""},
			{"its label is taken off", false, `{"metadata": {"labels": {"distlock.dev/gated": null}}}`, ""},
			{"its lock is taken off through its status", true, `{"metadata": {"annotations": {"distlock.dev/lock": null}}}`, ""},
			{"it is suspended", false, `{"spec": {"suspend": true}}`, ""},
			{"its replacements may overlap", false, `{"spec": {"podReplacementPolicy": "TerminatingOrFailed"}}`, ""},
		} {
			c.name = how + ": " + c.name
			c.try(t, author, job)
		}
	}
}

// Not the condition's presence counts.
func TestAJobThatIsSaidNotToBeCompleteIsGuarded(t *testing.T) {
	job := waitingJob(t, newNamespace(t))
	said := `{"status": {"conditions": [{"type": "Complete", "status": "False"}, {"type": "Failed", "status": "Unknown"}]}}`
	if err := author.Status().Patch(t.Context(), job, client.RawPatch(types.MergePatchType, []byte(said))); err != nil {
		t.Fatal(err)
	}
	change{"it is started", false, `{"spec": {"suspend": false}}`, suspendIsOur}.try(t, author, job)
}

// What makes it safe that a finished Job is free: whoever can write jobs/status
// can call a waiting Job complete, but the API server lets nobody take it back,
// and the Job controller does not start it.
func TestAJobCalledFinishedNeverRuns(t *testing.T) {
	job := waitingJob(t, newNamespace(t))
	called := `{"status": {"conditions": [{"type": "Complete", "status": "True"}, {"type": "SuccessCriteriaMet", "status": "True"}], "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:00Z"}}`
	if err := author.Status().Patch(t.Context(), job, client.RawPatch(types.MergePatchType, []byte(called))); err != nil {
		t.Fatal(err)
	}
	patchAs(t, author, job, `{"metadata": {"annotations": {"distlock.dev/lock": null}, "labels": {"distlock.dev/gated": null}}, "spec": {"suspend": false}}`)
	for _, back := range []string{
		`{"status": {"conditions": null, "startTime": null, "completionTime": null}}`,
		`{"status": {"conditions": [{"type": "Complete", "status": "False"}, {"type": "SuccessCriteriaMet", "status": "True"}], "completionTime": null}}`,
		`{"status": {"conditions": [{"type": "Failed", "status": "True"}], "completionTime": null}}`,
		`{"status": null}`,
	} {
		err := author.Status().Patch(t.Context(), job.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(back)))
		expect(t, err, "cannot disable the terminal Complete=True condition")
	}
	// A Job that the controller got to see later has run: so it has seen this one.
	finishedJob(t, job.Namespace, batchv1.JobComplete, command("true"))
	if pods := podsOf(t, job); len(pods) != 0 {
		t.Errorf("%d pods", len(pods))
	}
}

func waitingJob(t *testing.T, namespace string, edits ...edit) *batchv1.Job {
	t.Helper()
	job := newJob(namespace, append(edits, locked)...)
	if err := author.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	return job
}

// runningJob has one pod, whose container runs until somebody ends it.
func runningJob(t *testing.T, namespace string, edits ...edit) *batchv1.Job {
	t.Helper()
	job := waitingJob(t, namespace, edits...)
	resume(t, job)
	awaitJob(t, job, "has a pod", func() bool { return job.Status.Active == 1 })
	return job
}

// finishedJob has run a command to its end, whichever that was.
func finishedJob(t *testing.T, namespace string, end batchv1.JobConditionType, edits ...edit) *batchv1.Job {
	t.Helper()
	job := waitingJob(t, namespace, edits...)
	resume(t, job)
	awaitJob(t, job, "is "+string(end), func() bool { return isTrue(job, end) })
	return job
}

// resume is what the controller does with a grant, here with the token 7.
func resume(t *testing.T, job *batchv1.Job) {
	t.Helper()
	patchAs(t, controller, job, `{"spec": {"suspend": false, "template": {"metadata": {"annotations": {"distlock.dev/fencing-token": "7"}}}}}`)
}

func awaitJob(t *testing.T, job *batchv1.Job, what string, is func() bool) {
	t.Helper()
	err := eventually(t.Context(), func(ctx context.Context) error {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		if !is() {
			return fmt.Errorf("waiting for: the Job %s; its status is %+v", what, job.Status)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func podsOf(t *testing.T, job *batchv1.Job) []corev1.Pod {
	t.Helper()
	pods, err := listPods(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

func listPods(ctx context.Context, job *batchv1.Job) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := admin.List(ctx, &pods, client.InNamespace(job.Namespace), client.MatchingLabels{batchv1.ControllerUidLabel: string(job.UID)})
	return pods.Items, err
}

func patchAs(t *testing.T, as client.Client, o client.Object, patch string) {
	t.Helper()
	if err := as.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
}
