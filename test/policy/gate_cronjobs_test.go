package policy

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

type annotations = map[string]string

// What a CronJob's annotations and those of its jobTemplate become with a
// write.
func TestACronJobHandsItsAnnotationsToItsJobs(t *testing.T) {
	for _, r := range []struct {
		name                  string
		ownBefore, jobsBefore annotations // nil: it is a creation
		own, jobs             annotations // as written
		wantJobs              annotations
	}{
		{name: "on creation",
			own:      annotations{"distlock.dev/lock": "a", "distlock.dev/mode": "Shared", "distlock.dev/permits": "2", "example.com/x": "y"},
			jobs:     annotations{"example.com/z": "z"},
			wantJobs: annotations{"distlock.dev/lock": "a", "distlock.dev/mode": "Shared", "distlock.dev/permits": "2", "example.com/z": "z"}},
		{name: "and its own count, not those of the jobTemplate",
			own:      annotations{"distlock.dev/lock": "a"},
			jobs:     annotations{"distlock.dev/lock": "b", "distlock.dev/mode": "Shared"},
			wantJobs: annotations{"distlock.dev/lock": "a", "distlock.dev/mode": "Shared"}},
		{name: "but leaves alone a jobTemplate annotated by itself",
			jobs:     annotations{"distlock.dev/lock": "b", "distlock.dev/permits": "2"},
			wantJobs: annotations{"distlock.dev/lock": "b", "distlock.dev/permits": "2"}},
		{name: "when it gets one later",
			ownBefore: annotations{},
			own:       annotations{"distlock.dev/lock": "a"},
			wantJobs:  annotations{"distlock.dev/lock": "a"}},
		{name: "and takes them out again",
			ownBefore: annotations{"distlock.dev/lock": "a", "distlock.dev/mode": "Shared", "distlock.dev/permits": "2"},
			jobs:      annotations{"distlock.dev/lock": "a", "distlock.dev/mode": "Shared", "distlock.dev/permits": "2", "example.com/z": "z"},
			wantJobs:  annotations{"example.com/z": "z"}},
		{name: "and takes one out alone",
			ownBefore: annotations{"distlock.dev/lock": "a", "distlock.dev/mode": "Shared"},
			own:       annotations{"distlock.dev/lock": "a"},
			jobs:      annotations{"distlock.dev/lock": "a", "distlock.dev/mode": "Shared"},
			wantJobs:  annotations{"distlock.dev/lock": "a"}},
		{name: "and changes them",
			ownBefore: annotations{"distlock.dev/lock": "a"},
			own:       annotations{"distlock.dev/lock": "b"},
			jobs:      annotations{"distlock.dev/lock": "a"},
			wantJobs:  annotations{"distlock.dev/lock": "b"}},
		{name: "even if they are taken out of the jobTemplate by hand",
			ownBefore: annotations{"distlock.dev/lock": "a"},
			own:       annotations{"distlock.dev/lock": "a"},
			wantJobs:  annotations{"distlock.dev/lock": "a"}},
		{name: "but what an author puts in the jobTemplate in the same write stays there",
			ownBefore: annotations{"distlock.dev/lock": "a"},
			jobs:      annotations{"distlock.dev/lock": "b"},
			wantJobs:  annotations{"distlock.dev/lock": "b"}},
		{name: "but a jobTemplate annotated by itself stays so when the CronJob changes",
			ownBefore: annotations{}, jobsBefore: annotations{"distlock.dev/lock": "b"},
			own:      annotations{"example.com/x": "y"},
			jobs:     annotations{"distlock.dev/lock": "b"},
			wantJobs: annotations{"distlock.dev/lock": "b"}},
	} {
		t.Run(r.name, func(t *testing.T) {
			cron := newCronJob(newNamespace(t))
			write := func() error { return author.Create(t.Context(), cron, client.DryRunAll) }
			if r.ownBefore != nil {
				cron.Annotations, cron.Spec.JobTemplate.Annotations = r.ownBefore, r.jobsBefore
				if err := author.Create(t.Context(), cron); err != nil {
					t.Fatal(err)
				}
				write = func() error { return author.Update(t.Context(), cron, client.DryRunAll) }
			}
			cron.Annotations, cron.Spec.JobTemplate.Annotations = r.own, r.jobs
			if err := write(); err != nil {
				t.Fatal(err)
			}
			if got := cron.Spec.JobTemplate.Annotations; !maps.Equal(got, r.wantJobs) {
				t.Errorf("jobTemplate's annotations are %v, want %v", got, r.wantJobs)
			}
		})
	}
}

// As GitOps tools do: the manifest knows nothing of what was handed down.
func TestApplyingACronJobAgainChangesNothing(t *testing.T) {
	const manifest = `{"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly", "annotations": {"distlock.dev/lock": "a"}},
		"spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}]}}}}}}`
	namespace := newNamespace(t)
	var generations []int64
	for range 3 {
		o := &unstructured.Unstructured{}
		if err := o.UnmarshalJSON([]byte(manifest)); err != nil {
			t.Fatal(err)
		}
		o.SetNamespace(namespace)
		if err := author.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("gitops")); err != nil {
			t.Fatal(err)
		}
		jobs, _, _ := unstructured.NestedStringMap(o.Object, "spec", "jobTemplate", "metadata", "annotations")
		if jobs["distlock.dev/lock"] != "a" {
			t.Fatalf("jobTemplate's annotations are %v", jobs)
		}
		generations = append(generations, o.GetGeneration())
	}
	if slices.Max(generations) != generations[0] {
		t.Errorf("generations %v", generations)
	}
}

func TestTakingTheAnnotationOffACronJobIsSaidAloud(t *testing.T) {
	var said warnings
	warned, err := clientWith(rest.ImpersonationConfig{UserName: authorUser}, &said)
	if err != nil {
		t.Fatal(err)
	}
	cron := newCronJob(newNamespace(t))
	if err := warned.Create(t.Context(), cron); err != nil {
		t.Fatal(err)
	}
	for _, a := range []annotations{{"example.com/x": "y"}, {"distlock.dev/lock": "a"}, {"distlock.dev/lock": "b"}} {
		cron.Annotations = a
		if err := warned.Update(t.Context(), cron); err != nil {
			t.Fatal(err)
		}
	}
	if got := said.all(); len(got) != 0 {
		t.Errorf("warned of changes: %q", got)
	}
	delete(cron.Annotations, "distlock.dev/lock")
	if err := warned.Update(t.Context(), cron); err != nil {
		t.Fatal(err)
	}
	const want = "Validation failed for ValidatingAdmissionPolicy 'distlock-warn-cronjobs' with binding 'distlock-warn-cronjobs':" +
		" metadata.annotations[distlock.dev/lock] was removed, and with it the one in spec.jobTemplate:" +
		" the next Jobs of this CronJob take no lock. If you meant to move it to spec.jobTemplate, apply again"
	if got := said.all(); !slices.Equal(got, []string{want}) {
		t.Errorf("warned %q, want %q", got, want)
	}
}

type warnings struct {
	mu   sync.Mutex
	said []string
}

func (w *warnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, text)
}

func (w *warnings) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.said)
}

func TestFault40ReplaceIsRefusedWithALock(t *testing.T) {
	const want = "spec.concurrencyPolicy: Replace deletes a Job that waits for its lock"
	onCron := func(c *batchv1.CronJob) { c.Annotations = annotations{"distlock.dev/lock": "a"} }
	onJobs := func(c *batchv1.CronJob) { c.Spec.JobTemplate.Annotations = annotations{"distlock.dev/lock": "a"} }
	for _, r := range []struct {
		name     string
		annotate func(*batchv1.CronJob)
		policy   batchv1.ConcurrencyPolicy
		want     string
	}{
		{"Replace, annotated itself", onCron, batchv1.ReplaceConcurrent, want},
		{"Replace, annotated in its jobTemplate", onJobs, batchv1.ReplaceConcurrent, want},
		{"Replace without a lock", func(*batchv1.CronJob) {}, batchv1.ReplaceConcurrent, ""},
		{"Forbid", onCron, batchv1.ForbidConcurrent, ""},
		{"Allow", onCron, batchv1.AllowConcurrent, ""},
		{"the default", onJobs, "", ""},
	} {
		t.Run(r.name, func(t *testing.T) {
			cron := newCronJob(newNamespace(t))
			cron.Spec.ConcurrencyPolicy = r.policy
			r.annotate(cron)
			expect(t, author.Create(t.Context(), cron, client.DryRunAll), r.want)
		})
	}
	t.Run("a change to it later", func(t *testing.T) {
		cron := newCronJob(newNamespace(t))
		onCron(cron)
		if err := author.Create(t.Context(), cron); err != nil {
			t.Fatal(err)
		}
		cron.Spec.ConcurrencyPolicy = batchv1.ReplaceConcurrent
		expect(t, author.Update(t.Context(), cron), want)
	})
	t.Run("the annotation on a CronJob that has it", func(t *testing.T) {
		cron := newCronJob(newNamespace(t))
		cron.Spec.ConcurrencyPolicy = batchv1.ReplaceConcurrent
		if err := author.Create(t.Context(), cron); err != nil {
			t.Fatal(err)
		}
		onCron(cron)
		expect(t, author.Update(t.Context(), cron), want)
	})
}

// The garbage collector takes its finalizer off a CronJob that was there before
// DistLock and is not as it should be.
func TestACronJobThatIsBeingDeletedIsNotChecked(t *testing.T) {
	cron := newCronJob(newNamespace(t))
	cron.Finalizers = []string{"example.com/hold"}
	cron.Annotations = annotations{"distlock.dev/lock": "a"}
	if err := author.Create(t.Context(), cron); err != nil {
		t.Fatal(err)
	}
	if err := author.Delete(t.Context(), cron); err != nil {
		t.Fatal(err)
	}
	// Not as it should be, twice over.
	patch := `{"metadata": {"annotations": {"distlock.dev/unknown": ""}}, "spec": {"concurrencyPolicy": "Replace"}}`
	if err := author.Patch(t.Context(), cron, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Error(err)
	}
	if err := author.Patch(t.Context(), cron, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`))); err != nil {
		t.Error(err)
	}
}

func TestTheLockOfACronJobCannotBeChangedThroughItsStatus(t *testing.T) {
	cron := newCronJob(newNamespace(t))
	cron.Annotations = annotations{"distlock.dev/lock": "a"}
	if err := author.Create(t.Context(), cron); err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct{ name, patch, want string }{
		{"taken off", `{"metadata": {"annotations": {"distlock.dev/lock": null}}}`, "metadata.annotations: the distlock.dev/ annotations cannot be changed through cronjobs/status"},
		{"changed", `{"metadata": {"annotations": {"distlock.dev/lock": "b"}}}`, "metadata.annotations: the distlock.dev/ annotations cannot be changed through cronjobs/status"},
		{"another added", `{"metadata": {"annotations": {"distlock.dev/mode": "Shared"}}}`, "metadata.annotations: the distlock.dev/ annotations cannot be changed through cronjobs/status"},
		{"permits added", `{"metadata": {"annotations": {"distlock.dev/permits": "2"}}}`, "metadata.annotations: the distlock.dev/ annotations cannot be changed through cronjobs/status"},
		{"the status itself", `{"status": {"lastScheduleTime": "2026-01-01T00:00:00Z"}}`, ""},
	} {
		t.Run(r.name, func(t *testing.T) {
			err := author.Status().Patch(t.Context(), cron.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(r.patch)), client.DryRunAll)
			expect(t, err, r.want)
		})
	}
}
