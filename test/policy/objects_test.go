package policy

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// An edit changes a template: what a Job is, or what a CronJob makes its Jobs
// from.
type edit func(*batchv1.JobTemplateSpec)

// newTemplate has one container and no mark of DistLock's.
func newTemplate(edits ...edit) batchv1.JobTemplateSpec {
	t := batchv1.JobTemplateSpec{}
	t.Annotations = map[string]string{}
	// A Job without any label of its own would take over its pod template's.
	t.Labels = map[string]string{"app": "test"}
	t.Spec.Template.Annotations = map[string]string{}
	t.Spec.Template.Labels = map[string]string{}
	t.Spec.Template.Spec = corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers:    []corev1.Container{{Name: "main", Image: "example.com/main"}},
	}
	for _, e := range edits {
		e(&t)
	}
	return t
}

func newJob(namespace string, edits ...edit) *batchv1.Job {
	t := newTemplate(edits...)
	job := &batchv1.Job{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
	job.GenerateName, job.Namespace = "job-", namespace
	return job
}

// newCronJob is due once a year.
func newCronJob(namespace string, edits ...edit) *batchv1.CronJob {
	cron := &batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: "0 0 1 1 *", JobTemplate: newTemplate(edits...)}}
	cron.GenerateName, cron.Namespace = "cron-", namespace
	return cron
}

// locked asks for the lock "nightly".
var locked = annotate(v1alpha1.LockAnnotation, "nightly")

func annotate(key, value string) edit {
	return func(t *batchv1.JobTemplateSpec) { t.Annotations[key] = value }
}

func label(key, value string) edit {
	return func(t *batchv1.JobTemplateSpec) { t.Labels[key] = value }
}

func annotatePods(key, value string) edit {
	return func(t *batchv1.JobTemplateSpec) { t.Spec.Template.Annotations[key] = value }
}

func labelPods(key, value string) edit {
	return func(t *batchv1.JobTemplateSpec) { t.Spec.Template.Labels[key] = value }
}

func variables(vars ...corev1.EnvVar) edit {
	return func(t *batchv1.JobTemplateSpec) { t.Spec.Template.Spec.Containers[0].Env = vars }
}

func initContainer(vars ...corev1.EnvVar) edit {
	return func(t *batchv1.JobTemplateSpec) {
		t.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "example.com/init", Env: vars}}
	}
}

func spec(change func(*batchv1.JobSpec)) edit {
	return func(t *batchv1.JobTemplateSpec) { change(&t.Spec) }
}

// expect fails the test unless err is a refusal that says want, or nil where
// want is empty.
func expect(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && err == nil:
		t.Errorf("admitted, want a refusal with %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("refused with\n  %v\nwant\n  %s", err, want)
	}
}
