package policy

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What may be asked for: the same for a Job, a CronJob annotated in its
// jobTemplate, and a CronJob annotated on its own metadata. A refusal is
// expected to begin with the field's path.
var requests = []struct {
	name  string
	edits []edit
	want  string // of the refusal, from the field on; empty if admitted
}{
	{"a lock alone is enough", []edit{locked}, ""},
	{"a lock may be shared", []edit{locked, mode("Shared")}, ""},
	{"a lock may be exclusive", []edit{locked, mode("Exclusive")}, ""},
	{"permits go with a shared lock", []edit{locked, mode("Shared"), permits("3")}, ""},
	{"permits without a mode leave it to the lock", []edit{locked, permits("1000000")}, ""},
	{"one permit goes with an exclusive lock", []edit{locked, mode("Exclusive"), permits("1")}, ""},
	{"a lock's name may have dots", []edit{lock("nightly.reports-2")}, ""},
	{"a lock's name may have 253 characters", []edit{lock(strings.Repeat("abcdefg.", 31) + "abcde")}, ""},
	{"the Job controller may be named", []edit{locked, managedBy(batchv1.JobControllerName)}, ""},
	{"an explicit manualSelector false is no harm", []edit{locked, spec(func(s *batchv1.JobSpec) { s.ManualSelector = ptr.To(false) })}, ""},
	{"a queue that holds back pods is no harm", []edit{locked, labelPods("queue", "root.default"), annotatePods("scheduling.volcano.sh/queue-name", "q")}, ""},
	{"other annotations and labels are no harm", []edit{locked, annotate("example.com/lock", "x"), label("app", "x")}, ""},
	{"the gate's own labels are no harm", []edit{locked, label("distlock.dev/gated", "true"), labelPods("distlock.dev/gated", "true")}, ""},
	{"an author's suspend is overridden, not refused", []edit{locked, spec(func(s *batchv1.JobSpec) { s.Suspend = ptr.To(true) })}, ""},

	{"an unknown annotation is refused", []edit{locked, annotate("distlock.dev/lease", "1")}, "metadata.annotations[distlock.dev/lease]: not for authors"},
	{"a misspelt annotation is refused", []edit{annotate("distlock.dev/locks", "nightly")}, "metadata.annotations[distlock.dev/locks]: not for authors"},
	{"a place in the queue cannot be chosen", []edit{locked, annotate("distlock.dev/queued-at", "2000-01-01T00:00:00.000000Z")}, "metadata.annotations[distlock.dev/queued-at]: not for authors"},
	{"a token on the Job is refused", []edit{locked, annotate("distlock.dev/fencing-token", "7")}, "metadata.annotations[distlock.dev/fencing-token]: not for authors"},
	{"a label for the lock is refused", []edit{label("distlock.dev/lock", "nightly")}, "metadata.labels[distlock.dev/lock]: not known"},
	{"a mode without a lock is refused", []edit{mode("Shared")}, "metadata.annotations[distlock.dev/lock]: missing"},
	{"permits without a lock are refused", []edit{permits("2")}, "metadata.annotations[distlock.dev/lock]: missing"},
	{"an empty lock name is refused", []edit{lock("")}, "metadata.annotations[distlock.dev/lock]: must be the name of a DistLock"},
	{"upper case in a lock name is refused", []edit{lock("Nightly")}, "metadata.annotations[distlock.dev/lock]: must be the name of a DistLock"},
	{"a lock of another namespace is refused", []edit{lock("other/nightly")}, "metadata.annotations[distlock.dev/lock]: must be the name of a DistLock"},
	{"two locks are refused", []edit{lock("a,b")}, "metadata.annotations[distlock.dev/lock]: must be the name of a DistLock"},
	{"an overlong lock name is refused", []edit{lock(strings.Repeat("abcdefg.", 31) + "abcdef")}, "metadata.annotations[distlock.dev/lock]: must be the name of a DistLock"},
	{"a mode in lower case is refused", []edit{locked, mode("exclusive")}, "metadata.annotations[distlock.dev/mode]: must be Exclusive or Shared"},
	{"an empty mode is refused", []edit{locked, mode("")}, "metadata.annotations[distlock.dev/mode]: must be Exclusive or Shared"},
	{"no permits are refused", []edit{locked, permits("0")}, "metadata.annotations[distlock.dev/permits]: must be a whole number from 1 to 1000000"},
	{"negative permits are refused", []edit{locked, permits("-1")}, "metadata.annotations[distlock.dev/permits]: must be a whole number from 1 to 1000000"},
	{"permits with a leading zero are refused", []edit{locked, permits("01")}, "metadata.annotations[distlock.dev/permits]: must be a whole number from 1 to 1000000"},
	{"half a permit is refused", []edit{locked, permits("1.5")}, "metadata.annotations[distlock.dev/permits]: must be a whole number from 1 to 1000000"},
	{"empty permits are refused", []edit{locked, permits("")}, "metadata.annotations[distlock.dev/permits]: must be a whole number from 1 to 1000000"},
	{"permits in words are refused", []edit{locked, permits("two")}, "metadata.annotations[distlock.dev/permits]: must be a whole number from 1 to 1000000"},
	{"more than a million permits are refused", []edit{locked, permits("1000001")}, "metadata.annotations[distlock.dev/permits]: must be a whole number from 1 to 1000000"},
	{"permits beyond any integer are refused", []edit{locked, permits(strings.Repeat("9", 30))}, "metadata.annotations[distlock.dev/permits]: must be a whole number from 1 to 1000000"},
	{"permits with an exclusive lock are refused", []edit{locked, mode("Exclusive"), permits("2")}, "metadata.annotations[distlock.dev/permits]: goes with mode Shared"},
	{"a token on the pod template is refused", []edit{locked, annotatePods("distlock.dev/fencing-token", "7")}, "spec.template.metadata.annotations[distlock.dev/fencing-token]: not for authors"},
	{"a mode on the pod template is refused", []edit{locked, annotatePods("distlock.dev/mode", "Shared")}, "spec.template.metadata.annotations[distlock.dev/mode]: not for authors"},
	{"an unknown label on the pod template is refused", []edit{locked, labelPods("distlock.dev/lock", "nightly")}, "spec.template.metadata.labels[distlock.dev/lock]: not known"},
	{"a lock on the pod template alone is refused", []edit{annotatePods("distlock.dev/lock", "nightly")}, "metadata.annotations[distlock.dev/lock]: missing"},
	{"the gated label alone is refused", []edit{label("distlock.dev/gated", "true")}, "metadata.annotations[distlock.dev/lock]: missing"},
	{"the gated label on the pod template alone is refused", []edit{labelPods("distlock.dev/gated", "true")}, "metadata.annotations[distlock.dev/lock]: missing"},
	{"another controller of the Job is refused", []edit{locked, managedBy("example.com/other")}, "spec.managedBy: not with distlock.dev/lock"},
	{"Kueue's label is refused", []edit{locked, label("kueue.x-k8s.io/queue-name", "q")}, "metadata.labels[kueue.x-k8s.io/queue-name]: not with distlock.dev/lock"},
	{"a JobSet's Job is refused", []edit{locked, label("jobset.sigs.k8s.io/jobset-name", "s")}, "metadata.labels[jobset.sigs.k8s.io/jobset-name]: not with distlock.dev/lock"},
	{"an author's own DISTLOCK_NAME is refused", []edit{locked, variables(corev1.EnvVar{Name: "DISTLOCK_NAME", Value: "other"})}, "spec.template.spec.containers[].env[DISTLOCK_NAME]: set by DistLock"},
	{"an author's own token is refused", []edit{locked, variables(corev1.EnvVar{Name: "DISTLOCK_FENCING_TOKEN", Value: "7"})}, "spec.template.spec.containers[].env[DISTLOCK_FENCING_TOKEN]: set by DistLock"},
	{"a token from another annotation is refused", []edit{locked, variables(fieldEnv("DISTLOCK_FENCING_TOKEN", "metadata.annotations['mine']"))}, "spec.template.spec.containers[].env[DISTLOCK_FENCING_TOKEN]: set by DistLock"},
	{"an author's own token in an init container is refused", []edit{locked, initContainer(corev1.EnvVar{Name: "DISTLOCK_FENCING_TOKEN", Value: "7"})}, "spec.template.spec.containers[].env[DISTLOCK_FENCING_TOKEN]: set by DistLock"},
	{"a second DISTLOCK_NAME behind the right one is refused", []edit{locked, variables(corev1.EnvVar{Name: "DISTLOCK_NAME", Value: "nightly"}, corev1.EnvVar{Name: "DISTLOCK_NAME", Value: "other"})}, "spec.template.spec.containers[].env[DISTLOCK_NAME]: set by DistLock"},
}

func lock(name string) edit    { return annotate("distlock.dev/lock", name) }
func mode(m string) edit       { return annotate("distlock.dev/mode", m) }
func permits(n string) edit    { return annotate("distlock.dev/permits", n) }
func managedBy(by string) edit { return spec(func(s *batchv1.JobSpec) { s.ManagedBy = &by }) }

func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

func TestAJobAsksForALock(t *testing.T) {
	for _, r := range requests {
		t.Run(r.name, func(t *testing.T) {
			expectFrom(t, author.Create(t.Context(), newJob("default", r.edits...), client.DryRunAll), "denied request: ", r.want)
		})
	}
}

func TestACronJobAsksForALockInItsJobTemplate(t *testing.T) {
	for _, r := range requests {
		t.Run(r.name, func(t *testing.T) {
			at := "denied request: spec.jobTemplate."
			if strings.Contains(r.want, "[distlock.dev/lock]: missing") {
				at = "denied request: " // the right place is the CronJob's own metadata
			}
			expectFrom(t, author.Create(t.Context(), newCronJob("default", r.edits...), client.DryRunAll), at, r.want)
		})
	}
}

// Handed down by the gate, a CronJob's own annotations are checked in the
// jobTemplate; what the gate does not hand down, and labels, where they are.
func TestACronJobAsksForALockOnItsOwnMetadata(t *testing.T) {
	for _, r := range requests {
		t.Run(r.name, func(t *testing.T) {
			cron := newCronJob("default", r.edits...)
			cron.Annotations, cron.Spec.JobTemplate.Annotations = cron.Spec.JobTemplate.Annotations, nil
			expectFrom(t, author.Create(t.Context(), cron, client.DryRunAll), "", r.want)
		})
	}
}

func TestACronJobIsCheckedAgainWhenItChanges(t *testing.T) {
	cron := newCronJob(newNamespace(t), locked)
	if err := author.Create(t.Context(), cron); err != nil {
		t.Fatal(err)
	}
	cron.Spec.JobTemplate.Annotations["distlock.dev/mode"] = "shared"
	expect(t, author.Update(t.Context(), cron), "spec.jobTemplate.metadata.annotations[distlock.dev/mode]: must be Exclusive or Shared")
}

func expectFrom(t *testing.T, err error, at, want string) {
	t.Helper()
	if want != "" {
		want = at + want
	}
	expect(t, err, want)
}

// manualSelector needs a selector of the author's own to be valid otherwise.
// For a CronJob the API server itself refuses it.
func TestAJobWithItsOwnSelectorIsRefused(t *testing.T) {
	own := func(t *batchv1.JobTemplateSpec) {
		t.Spec.ManualSelector = ptr.To(true)
		t.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
		t.Spec.Template.Labels["app"] = "x"
	}
	expect(t, author.Create(t.Context(), newJob("default", own), client.DryRunAll), "")
	expect(t, author.Create(t.Context(), newJob("default", own, locked), client.DryRunAll), "denied request: spec.manualSelector: not with distlock.dev/lock")
	expect(t, author.Create(t.Context(), newCronJob("default", own), client.DryRunAll), "spec.jobTemplate.spec.manualSelector: Unsupported value")
}

func TestWithoutAMarkNothingIsChecked(t *testing.T) {
	edits := []edit{
		managedBy("example.com/other"), label("kueue.x-k8s.io/queue-name", "q"),
		variables(corev1.EnvVar{Name: "DISTLOCK_NAME", Value: "other"}), annotate("example.com/distlock.dev", "x"),
	}
	expect(t, author.Create(t.Context(), newJob("default", edits...), client.DryRunAll), "")
	cron := newCronJob("default", edits...)
	cron.Spec.ConcurrencyPolicy = batchv1.ReplaceConcurrent
	expect(t, author.Create(t.Context(), cron, client.DryRunAll), "")
}
