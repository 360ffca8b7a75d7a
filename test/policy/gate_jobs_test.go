package policy

import (
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const tokenPath = "metadata.annotations['distlock.dev/fencing-token']"

// gateMissing lists what a Job lacks of the gate's marks, for the lock
// "nightly".
func gateMissing(job *batchv1.Job) []string {
	var missing []string
	check := func(what string, is bool) {
		if !is {
			missing = append(missing, what)
		}
	}
	check("suspend", ptr.Deref(job.Spec.Suspend, false))
	check("podReplacementPolicy", ptr.Deref(job.Spec.PodReplacementPolicy, "") == batchv1.Failed)
	check("label", job.Labels["distlock.dev/gated"] == "true")
	check("template label", job.Spec.Template.Labels["distlock.dev/gated"] == "true")
	check("template annotation", job.Spec.Template.Annotations["distlock.dev/lock"] == "nightly")
	pod := job.Spec.Template.Spec
	for _, c := range append(pod.Containers, pod.InitContainers...) {
		var name, token int
		for _, e := range c.Env {
			switch e.Name {
			case "DISTLOCK_NAME":
				check(c.Name+" DISTLOCK_NAME", e.Value == "nightly")
				name++
			case "DISTLOCK_FENCING_TOKEN":
				check(c.Name+" DISTLOCK_FENCING_TOKEN", e.ValueFrom != nil && e.ValueFrom.FieldRef.FieldPath == tokenPath)
				token++
			}
		}
		check(fmt.Sprintf("%s: one DISTLOCK_NAME and one DISTLOCK_FENCING_TOKEN, not %d and %d", c.Name, name, token), name == 1 && token == 1)
	}
	return missing
}

func TestAJobWithTheAnnotationIsGated(t *testing.T) {
	for _, r := range []struct {
		name  string
		edits []edit
	}{
		{"with nothing else", nil},
		{"with an init container", []edit{initContainer()}},
		{"with variables of its own", []edit{variables(corev1.EnvVar{Name: "A", Value: "a"}), initContainer(corev1.EnvVar{Name: "A", Value: "a"})}},
		{"with several containers, some with variables", []edit{
			variables(corev1.EnvVar{Name: "A", Value: "a"}),
			spec(func(s *batchv1.JobSpec) {
				s.Template.Spec.Containers = append(s.Template.Spec.Containers, corev1.Container{Name: "side", Image: "example.com/side"})
			}),
		}},
		{"without any metadata on its pods", []edit{spec(func(s *batchv1.JobSpec) {
			s.Template.Annotations, s.Template.Labels = nil, nil
		})}},
		{"with another lock on its pods", []edit{annotatePods("distlock.dev/lock", "other")}},
		{"suspended by its author", []edit{spec(func(s *batchv1.JobSpec) { s.Suspend = ptr.To(true) })}},
		{"started by its author", []edit{spec(func(s *batchv1.JobSpec) { s.Suspend = ptr.To(false) })}},
		{"with replacements beside terminating pods", []edit{spec(func(s *batchv1.JobSpec) {
			s.PodReplacementPolicy = ptr.To(batchv1.TerminatingOrFailed)
		})}},
		{"labelled otherwise by hand", []edit{label("distlock.dev/gated", "false"), labelPods("distlock.dev/gated", "false")}},
	} {
		t.Run(r.name, func(t *testing.T) {
			job := newJob("default", append(r.edits, locked)...)
			if err := author.Create(t.Context(), job, client.DryRunAll); err != nil {
				t.Fatal(err)
			}
			if missing := gateMissing(job); missing != nil {
				t.Errorf("lacks %s", strings.Join(missing, ", "))
			}
		})
	}
}

// A variable may refer only to those in front of it.
func TestAContainersVariablesMayReferToTheToken(t *testing.T) {
	job := newJob("default", locked, variables(corev1.EnvVar{Name: "A", Value: "$(DISTLOCK_NAME)/$(DISTLOCK_FENCING_TOKEN)"}))
	if err := author.Create(t.Context(), job, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range job.Spec.Template.Spec.Containers[0].Env {
		names = append(names, e.Name)
	}
	if got := strings.Join(names, " "); got != "DISTLOCK_NAME DISTLOCK_FENCING_TOKEN A" {
		t.Errorf("variables in the order %s", got)
	}
}

func TestAJobWithoutTheAnnotationIsLeftAsItIs(t *testing.T) {
	job := newJob("default", initContainer(corev1.EnvVar{Name: "A", Value: "a"}))
	if err := author.Create(t.Context(), job, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	want := newJob("default", initContainer(corev1.EnvVar{Name: "A", Value: "a"}))
	if !equality.Semantic.DeepEqual(job.Labels, want.Labels) || len(job.Annotations)+len(job.Spec.Template.Annotations) != 0 {
		t.Errorf("labels %v, annotations %v and %v", job.Labels, job.Annotations, job.Spec.Template.Annotations)
	}
	if *job.Spec.Suspend || *job.Spec.PodReplacementPolicy != batchv1.TerminatingOrFailed {
		t.Errorf("suspend %v, podReplacementPolicy %s", *job.Spec.Suspend, *job.Spec.PodReplacementPolicy)
	}
	pod := job.Spec.Template.Spec
	if len(pod.Containers[0].Env) != 0 || len(pod.InitContainers[0].Env) != 1 {
		t.Errorf("variables %v and %v", pod.Containers[0].Env, pod.InitContainers[0].Env)
	}
}

// As after a backup, or a copy to another namespace: all marks are there.
func TestAnExportedJobIsCreatedAgainAsItWas(t *testing.T) {
	first := newJob(newNamespace(t), locked, mode("Shared"), permits("2"), initContainer(),
		variables(corev1.EnvVar{Name: "A", Value: "$(DISTLOCK_NAME)"}))
	if err := author.Create(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	again := exported(first)
	if err := author.Create(t.Context(), again, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if got, want := exported(again), exported(first); !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("created again as\n%+v\nwas\n%+v", got, want)
	}
}

// exported is a Job without what the API server gave it.
func exported(job *batchv1.Job) *batchv1.Job {
	e := newJob("default")
	e.Annotations, e.Labels = job.Annotations, job.Labels
	e.Spec = *job.Spec.DeepCopy()
	e.Spec.Selector = nil
	for _, l := range []string{"controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name"} {
		delete(e.Spec.Template.Labels, l)
	}
	return e
}

// CEL in the API server has a budget. A Job near the largest that can be
// stored stays within it.
func TestAHugeJobIsGated(t *testing.T) {
	const containers, variables = 100, 100
	huge := spec(func(s *batchv1.JobSpec) {
		s.Template.Spec.Containers = nil
		for c := range containers {
			container := corev1.Container{Name: fmt.Sprintf("c%d", c), Image: "example.com/main"}
			for v := range variables {
				container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprintf("SOME_VARIABLE_%d", v), Value: strings.Repeat("x", 40)})
			}
			s.Template.Spec.Containers = append(s.Template.Spec.Containers, container)
		}
	})
	job := newJob("default", locked, huge)
	if err := author.Create(t.Context(), job, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if missing := gateMissing(job); missing != nil {
		t.Errorf("lacks %s", strings.Join(missing, ", "))
	}
	expect(t, author.Create(t.Context(), newCronJob("default", locked, huge), client.DryRunAll), "")
}
