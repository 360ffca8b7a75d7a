package controllers

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"reflect"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/config/policy"
)

// policyPrefix begins the names of all policies and bindings of config/policy,
// and of no other.
const policyPrefix = "distlock-"

// policyKinds are the kinds of objects in config/policy.
func policyKinds() []client.Object {
	return []client.Object{
		&admissionregistrationv1.MutatingAdmissionPolicy{},
		&admissionregistrationv1.MutatingAdmissionPolicyBinding{},
		&admissionregistrationv1.ValidatingAdmissionPolicy{},
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{},
	}
}

// policyCaches keep of other people's policies no more than their names. They are
// not left out by a label: a policy that has lost its label is still in effect.
func policyCaches() map[client.Object]cache.ByObject {
	caches := map[client.Object]cache.ByObject{}
	for _, kind := range policyKinds() {
		caches[kind] = cache.ByObject{Transform: stripPolicy}
	}
	return caches
}

func stripPolicy(obj any) (any, error) {
	o, ok := obj.(client.Object)
	if !ok {
		return obj, nil
	}
	o.SetManagedFields(nil)
	if strings.HasPrefix(o.GetName(), policyPrefix) {
		return o, nil
	}
	bare := reflect.New(reflect.TypeOf(o).Elem()).Interface().(client.Object)
	bare.SetName(o.GetName())
	bare.SetUID(o.GetUID())
	bare.SetResourceVersion(o.GetResourceVersion())
	return bare, nil
}

// shippedPolicies are the policies and bindings that this version is built with.
func shippedPolicies() ([]client.Object, error) {
	files, err := fs.Glob(policy.Manifests, "*.yaml")
	if err != nil {
		return nil, err
	}
	var shipped []client.Object
	for _, file := range files {
		if file == "kustomization.yaml" {
			continue
		}
		objects, err := policiesIn(file)
		if err != nil {
			return nil, fmt.Errorf("config/policy/%s: %w", file, err)
		}
		shipped = append(shipped, objects...)
	}
	return shipped, nil
}

func policiesIn(file string) ([]client.Object, error) {
	raw, err := policy.Manifests.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var objects []client.Object
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		o, _, err := clientgoscheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
		if err != nil {
			return nil, err
		}
		objects = append(objects, o.(client.Object))
	}
}

// findFaults compares the policies of the cluster with those that this version is
// built with: one line for each that is missing, differs or does not compile, and
// a mark that changes with each change of one that counts.
func findFaults(ctx context.Context, cluster client.Reader, shipped []client.Object) (faults []string, mark string, err error) {
	var marks strings.Builder
	for _, want := range shipped {
		have := reflect.New(reflect.TypeOf(want).Elem()).Interface().(client.Object)
		name := want.GetObjectKind().GroupVersionKind().Kind + " " + want.GetName()
		err := cluster.Get(ctx, client.ObjectKeyFromObject(want), have)
		switch {
		case apierrors.IsNotFound(err):
			faults = append(faults, name+" is missing")
			continue
		case err != nil:
			return nil, "", fmt.Errorf("reading %s: %w", name, err)
		}
		fmt.Fprintf(&marks, "%s/%d ", have.GetUID(), have.GetGeneration())
		differ, err := differences(want, have)
		if err != nil {
			return nil, "", fmt.Errorf("comparing %s: %w", name, err)
		}
		if len(differ) > 0 {
			faults = append(faults, name+" is not as this version needs it: "+strings.Join(differ, ", "))
			continue
		}
		for _, w := range typeWarnings(have) {
			faults = append(faults, fmt.Sprintf("%s does not compile: %s: %s", name, w.FieldRef, strings.TrimSpace(w.Warning)))
		}
	}
	return faults, marks.String(), nil
}

// typeWarnings are what kube-controller-manager found in a validating policy. A
// mutating one has no status, but the API server stores none that does not compile.
func typeWarnings(o client.Object) []admissionregistrationv1.ExpressionWarning {
	p, ok := o.(*admissionregistrationv1.ValidatingAdmissionPolicy)
	if !ok || p.Status.TypeChecking == nil || p.Status.ObservedGeneration != p.Generation {
		return nil
	}
	return p.Status.TypeChecking.ExpressionWarnings
}

// differences are the fields of spec in which two policies, or two bindings, are
// not the same. Labels and annotations are the installer's own.
func differences(want, have client.Object) ([]string, error) {
	a, err := specOf(want)
	if err != nil {
		return nil, err
	}
	b, err := specOf(have)
	if err != nil {
		return nil, err
	}
	var differ []string
	for _, field := range slices.Sorted(maps.Keys(a)) {
		if !same(field, folded(a[field]), folded(b[field])) {
			differ = append(differ, "spec."+field)
		}
		delete(b, field)
	}
	for _, field := range slices.Sorted(maps.Keys(b)) {
		differ = append(differ, "spec."+field)
	}
	return differ, nil
}

// same compares a field of spec. An action of somebody else's beside ours takes
// nothing away, and stays when ours are applied again.
func same(field string, want, have any) bool {
	actions, isList := want.([]any)
	others, _ := have.([]any)
	if field == "validationActions" && isList {
		return !slices.ContainsFunc(actions, func(a any) bool { return !slices.Contains(others, a) })
	}
	return reflect.DeepEqual(want, have)
}

// folded has each text with single spaces for all white space: kustomize adds empty
// lines to folded YAML, and to CEL they are the same.
func folded(v any) any {
	switch v := v.(type) {
	case string:
		return strings.Join(strings.Fields(v), " ")
	case []any:
		list := make([]any, 0, len(v))
		for _, e := range v {
			list = append(list, folded(e))
		}
		return list
	case map[string]any:
		m := make(map[string]any, len(v))
		for k, e := range v {
			m[k] = folded(e)
		}
		return m
	}
	return v
}

// specOf is the spec as the API server stores it: with its defaults.
func specOf(o client.Object) (map[string]any, error) {
	all, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	spec, _ := all["spec"].(map[string]any)
	match, ok := spec["matchConstraints"].(map[string]any)
	if !ok {
		return spec, nil
	}
	setDefault(match, "matchPolicy", string(admissionregistrationv1.Equivalent))
	setDefault(match, "namespaceSelector", map[string]any{})
	setDefault(match, "objectSelector", map[string]any{})
	rules, _ := match["resourceRules"].([]any)
	for _, rule := range rules {
		if rule, ok := rule.(map[string]any); ok {
			setDefault(rule, "scope", string(admissionregistrationv1.AllScopes))
		}
	}
	return spec, nil
}

func setDefault(m map[string]any, key string, value any) {
	if _, ok := m[key]; !ok {
		m[key] = value
	}
}
