package policy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

const (
	policyFolder = "../../config/policy"
	crdFolder    = "../../config/crd/bases"
)

// install applies the policies in the least convenient order: the last of the
// kustomization first, each binding before its policy, and the CRDs after all.
// It returns when everything is in effect.
func install(ctx context.Context) error {
	files, err := policyFiles()
	if err != nil {
		return err
	}
	slices.Reverse(files)
	crds, err := filepath.Glob(filepath.Join(crdFolder, "*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range append(files, crds...) {
		objects, err := manifests(file)
		if err != nil {
			return err
		}
		slices.Reverse(objects)
		for _, o := range objects {
			if err := admin.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("policy-tests")); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	if err := controlPlane.AwaitPolicies(ctx); err != nil {
		return err
	}
	return eventually(ctx, func(ctx context.Context) error { return admin.List(ctx, &v1alpha1.DistLockList{}) })
}

// policyFiles are the files that config/policy/kustomization.yaml names.
func policyFiles() ([]string, error) {
	raw, err := os.ReadFile(filepath.Join(policyFolder, "kustomization.yaml"))
	if err != nil {
		return nil, err
	}
	var kustomization struct {
		Resources []string `json:"resources"`
	}
	if err := yaml.Unmarshal(raw, &kustomization); err != nil {
		return nil, err
	}
	files := kustomization.Resources
	for i, f := range files {
		files[i] = filepath.Join(policyFolder, f)
	}
	return files, nil
}

func manifests(file string) ([]*unstructured.Unstructured, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(o); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		objects = append(objects, o)
	}
}

func TestEveryFileIsInTheKustomization(t *testing.T) {
	listed, err := policyFiles()
	if err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(policyFolder, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if filepath.Base(f) != "kustomization.yaml" && !slices.Contains(listed, f) {
			t.Errorf("%s is not in the kustomization", f)
		}
	}
}

// They compile whatever else is there, because nothing they need can be
// missing: no parameters; and they fail closed.
func TestEveryPolicyStandsAloneAndFailsClosed(t *testing.T) {
	var mutating admissionregistrationv1.MutatingAdmissionPolicyList
	var validating admissionregistrationv1.ValidatingAdmissionPolicyList
	if err := errors.Join(admin.List(t.Context(), &mutating), admin.List(t.Context(), &validating)); err != nil {
		t.Fatal(err)
	}
	for _, p := range mutating.Items {
		if p.Spec.ParamKind != nil || *p.Spec.FailurePolicy != admissionregistrationv1.Fail || p.Spec.ReinvocationPolicy != admissionregistrationv1.IfNeededReinvocationPolicy {
			t.Errorf("%s: has parameters, may be ignored or is not invoked again", p.Name)
		}
		binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{}
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(&p), binding); err != nil || binding.Spec.PolicyName != p.Name {
			t.Errorf("%s: no binding of its name: %v", p.Name, err)
		}
	}
	for _, p := range validating.Items {
		if p.Spec.ParamKind != nil || *p.Spec.FailurePolicy != admissionregistrationv1.Fail {
			t.Errorf("%s: has parameters or may be ignored", p.Name)
		}
		binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(&p), binding); err != nil || binding.Spec.PolicyName != p.Name {
			t.Errorf("%s: no binding of its name: %v", p.Name, err)
			continue
		}
		want := admissionregistrationv1.Deny
		if p.Name == "distlock-warn-cronjobs" {
			want = admissionregistrationv1.Warn
		}
		if !slices.Equal(binding.Spec.ValidationActions, []admissionregistrationv1.ValidationAction{want}) {
			t.Errorf("%s: validationActions %v, want %s", p.Name, binding.Spec.ValidationActions, want)
		}
	}
	if len(mutating.Items)+len(validating.Items) < 11 {
		t.Errorf("only %d policies", len(mutating.Items)+len(validating.Items))
	}
}

// kube-controller-manager checks the types of validating policies and writes
// what it finds into their status.
func TestNoPolicyHasExpressionWarnings(t *testing.T) {
	err := eventually(t.Context(), func(ctx context.Context) error {
		var policies admissionregistrationv1.ValidatingAdmissionPolicyList
		if err := admin.List(ctx, &policies); err != nil {
			return err
		}
		for _, p := range policies.Items {
			if p.Status.TypeChecking == nil || p.Status.ObservedGeneration != p.Generation {
				return fmt.Errorf("%s: types not checked yet", p.Name)
			}
			for _, w := range p.Status.TypeChecking.ExpressionWarnings {
				t.Errorf("%s: %s: %s", p.Name, w.FieldRef, w.Warning)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestTheSamplesAreAdmitted(t *testing.T) {
	out, err := controlPlane.Kubectl(t.Context(), "apply", "--server-side", "--dry-run=server", "--namespace", newNamespace(t), "-k", "../../config/samples")
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
