package policy

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"
)

// sabotageLabel, on a Job or CronJob, says what the webhook does to it.
const sabotageLabel = "example.com/sabotage"

// sabotages are what other people's mutations may do after ours, and what must
// come of it: a refusal that says want.
var sabotages = map[string]struct {
	job  func(*batchv1.Job)
	want string
}{
	"starts-the-job":  {func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(false) }, "spec.suspend: must be true"},
	"forgets-suspend": {func(j *batchv1.Job) { j.Spec.Suspend = nil }, "spec.suspend: must be true"},
	"replaces-early": {func(j *batchv1.Job) {
		j.Spec.PodReplacementPolicy = ptr.To(batchv1.TerminatingOrFailed)
	}, "spec.podReplacementPolicy: must be Failed"},
	"takes-the-label":      {func(j *batchv1.Job) { delete(j.Labels, "distlock.dev/gated") }, "metadata.labels[distlock.dev/gated]: must be true"},
	"changes-the-label":    {func(j *batchv1.Job) { j.Labels["distlock.dev/gated"] = "false" }, "metadata.labels[distlock.dev/gated]: must be true"},
	"takes-the-pods-label": {func(j *batchv1.Job) { delete(j.Spec.Template.Labels, "distlock.dev/gated") }, "spec.template.metadata.labels[distlock.dev/gated]: must be true"},
	"takes-the-pods-lock":  {func(j *batchv1.Job) { j.Spec.Template.Annotations = nil }, "spec.template.metadata.annotations[distlock.dev/lock]: must be as in metadata.annotations"},
	"takes-the-name":       {dropEnv("DISTLOCK_NAME"), "spec.template.spec.containers[].env[DISTLOCK_NAME]: must be in every container"},
	"takes-the-token":      {dropEnv("DISTLOCK_FENCING_TOKEN"), "spec.template.spec.containers[].env[DISTLOCK_FENCING_TOKEN]: must be in every container"},
	"takes-all-variables":  {func(j *batchv1.Job) { j.Spec.Template.Spec.Containers[0].Env = nil }, "spec.template.spec.containers[].env[DISTLOCK_NAME]: must be in every container"},
	"forges-the-token": {func(j *batchv1.Job) {
		e := &j.Spec.Template.Spec.Containers[0].Env[1]
		e.Value, e.ValueFrom = "7", nil
	}, "spec.template.spec.containers[].env[DISTLOCK_FENCING_TOKEN]: set by DistLock"},
	"adds-a-bare-container": {func(j *batchv1.Job) {
		bare := *j.Spec.Template.Spec.Containers[0].DeepCopy()
		bare.Name, bare.Env = "bare", nil
		j.Spec.Template.Spec.InitContainers = []corev1.Container{bare}
	}, "spec.template.spec.containers[].env[DISTLOCK_NAME]: must be in every container"},
}

func dropEnv(name string) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		c := &j.Spec.Template.Spec.Containers[0]
		c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name })
	}
}

// Fault 34. A webhook runs after every mutating policy, and with IfNeeded again
// after the policies ran again: it has the last word.
func TestAWebhookCannotUndoTheGate(t *testing.T) {
	startWebhook(t)
	for name, s := range sabotages {
		t.Run(name, func(t *testing.T) {
			expect(t, author.Create(t.Context(), newJob("default", locked, label(sabotageLabel, name)), client.DryRunAll), s.want)
		})
	}
}

// Fault 34. The gate is not invoked again where it was not invoked before.
func TestAnAnnotationThatAWebhookAddsIsRefused(t *testing.T) {
	startWebhook(t)
	expect(t, author.Create(t.Context(), newJob("default", label(sabotageLabel, "annotates")), client.DryRunAll), "spec.suspend: must be true")
	cron := newCronJob("default")
	cron.Labels = map[string]string{sabotageLabel: "annotates"}
	expect(t, author.Create(t.Context(), cron, client.DryRunAll), "spec.jobTemplate.metadata.annotations: must have")
}

func TestAWebhookCannotTakeTheAnnotationOutOfAJobTemplate(t *testing.T) {
	startWebhook(t)
	cron := newCronJob("default")
	cron.Annotations = map[string]string{"distlock.dev/lock": "nightly"}
	cron.Labels = map[string]string{sabotageLabel: "ungates"}
	expect(t, author.Create(t.Context(), cron, client.DryRunAll), "spec.jobTemplate.metadata.annotations: must have")
}

// Fault 34. Mutating policies have no order; whichever comes last, no Job gets
// by that has the annotation and not the gate.
func TestAnotherMutatingPolicyNeverLetsAJobStartUngated(t *testing.T) {
	for _, s := range []struct {
		name, mutation, reinvocation string
		edits                        []edit
	}{
		{"starts-jobs", "Object{spec: Object.spec{suspend: false}}", "Never", []edit{locked}},
		{"starts-jobs-again", "Object{spec: Object.spec{suspend: false}}", "IfNeeded", []edit{locked}},
		{"annotates-jobs", "Object{metadata: Object.metadata{annotations: {'distlock.dev/lock': 'nightly'}}}", "Never", nil},
		{"annotates-jobs-again", "Object{metadata: Object.metadata{annotations: {'distlock.dev/lock': 'nightly'}}}", "IfNeeded", nil},
	} {
		t.Run(s.name, func(t *testing.T) {
			startPolicy(t, s.name, s.mutation, s.reinvocation)
			job := newJob("default", append(s.edits, label(sabotageLabel, s.name))...)
			err := author.Create(t.Context(), job, client.DryRunAll)
			switch {
			case err != nil && strings.Contains(err.Error(), "spec.suspend: must be true"):
			case err != nil:
				t.Error(err)
			case gateMissing(job) != nil:
				t.Errorf("admitted without %v", gateMissing(job))
			}
		})
	}
}

// startPolicy stores a mutating policy for Jobs that bear sabotageLabel, and
// returns when it is in effect.
func startPolicy(t *testing.T, name, mutation, reinvocation string) {
	t.Helper()
	const manifests = `
{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingAdmissionPolicy, metadata: {name: %[1]s}, spec: {
  failurePolicy: Fail, reinvocationPolicy: %[2]s,
  matchConstraints: {
    objectSelector: {matchLabels: {example.com/sabotage: %[1]s}},
    resourceRules: [{apiGroups: [batch], apiVersions: [v1], operations: [CREATE], resources: [jobs]}]},
  mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: %[3]q}}]}}
---
{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingAdmissionPolicyBinding, metadata: {name: %[1]s}, spec: {policyName: %[1]s}}`
	for m := range strings.SplitSeq(fmt.Sprintf(manifests, name, reinvocation, mutation), "---") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(m), o); err != nil {
			t.Fatal(err)
		}
		create(t, o)
	}
	if err := controlPlane.AwaitPolicies(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// startWebhook serves a mutating webhook for what bears sabotageLabel, and
// returns when it is in effect.
func startWebhook(t *testing.T) {
	t.Helper()
	server := httptest.NewTLSServer(&admission.Webhook{Handler: admission.HandlerFunc(sabotage)})
	t.Cleanup(server.Close)
	create(t, &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "sabotage"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "sabotage.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      ptr.To(server.URL),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"batch"}, APIVersions: []string{"v1"}, Resources: []string{"jobs", "cronjobs"}},
			}},
			ObjectSelector:          &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: sabotageLabel, Operator: metav1.LabelSelectorOpExists}}},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			ReinvocationPolicy:      ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy),
			AdmissionReviewVersions: []string{"v1"},
		}},
	})
	err := eventually(t.Context(), func(ctx context.Context) error {
		job := newJob("default", label(sabotageLabel, "none"))
		if err := author.Create(ctx, job, client.DryRunAll); err != nil {
			return err
		}
		if job.Labels["example.com/seen"] == "" {
			return errors.New("the webhook is not in effect")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, o client.Object) {
	t.Helper()
	if err := admin.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := admin.Delete(context.WithoutCancel(t.Context()), o); err != nil {
			t.Error(err)
		}
	})
}

func sabotage(_ context.Context, request admission.Request) admission.Response {
	var meta metav1.PartialObjectMetadata
	if err := json.Unmarshal(request.Object.Raw, &meta); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	how := meta.Labels[sabotageLabel]
	if request.Kind.Kind == "CronJob" {
		return mutate(request, func(c *batchv1.CronJob) { sabotageCronJob(c, how) })
	}
	return mutate(request, func(j *batchv1.Job) { sabotageJob(j, how) })
}

func sabotageJob(job *batchv1.Job, how string) {
	job.Labels["example.com/seen"] = "true"
	if how == "annotates" {
		job.Annotations = map[string]string{"distlock.dev/lock": "nightly"}
	}
	if s, ok := sabotages[how]; ok {
		s.job(job)
	}
}

func sabotageCronJob(cron *batchv1.CronJob, how string) {
	switch how {
	case "annotates":
		cron.Annotations = map[string]string{"distlock.dev/lock": "nightly"}
	case "ungates":
		cron.Spec.JobTemplate.Annotations = nil
	}
}

func mutate[T any](request admission.Request, change func(*T)) admission.Response {
	o := new(T)
	if err := json.Unmarshal(request.Object.Raw, o); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	change(o)
	raw, err := json.Marshal(o)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(request.Object.Raw, raw)
}
