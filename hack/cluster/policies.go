package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
)

// AwaitPolicies returns when every change of an admission policy that was stored
// before the call is in effect, which takes up to two seconds.
//
// The API server takes policies in a moment after they are stored, but in the order
// in which they were, each kind by a watch of its own. So this stores one more policy
// of each kind, which concern nobody else, and tries until both have their effect.
func (c *Cluster) AwaitPolicies(ctx context.Context) error {
	probe := newPolicyProbe()
	err := c.createProbe(ctx, probe)
	if err == nil {
		err = wait.PollUntilContextTimeout(ctx, pollInterval, startTimeout, true, func(ctx context.Context) (bool, error) {
			return c.probeWorks(ctx, probe.name)
		})
	}
	if err := errors.Join(err, c.deleteProbe(context.WithoutCancel(ctx), probe.name)); err != nil {
		return fmt.Errorf("waiting for policies to be in effect: %w", err)
	}
	return nil
}

const refusal = "the policy probe is in effect"

// policyProbe is a mutating policy that labels the ConfigMap of its name, and a
// validating one that refuses it.
type policyProbe struct {
	name       string
	mutating   *admissionregistrationv1.MutatingAdmissionPolicy
	validating *admissionregistrationv1.ValidatingAdmissionPolicy
}

func newPolicyProbe() policyProbe {
	meta := metav1.ObjectMeta{Name: "policy-probe-" + rand.String(8)}
	match := &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
		ResourceNames: []string{meta.Name},
		RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
		},
	}}}
	return policyProbe{
		name: meta.Name,
		mutating: &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints:   match,
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations: []admissionregistrationv1.Mutation{{
				PatchType:          admissionregistrationv1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: `Object{metadata: Object.metadata{labels: {"probed": "true"}}}`},
			}},
		}},
		validating: &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: match,
			Validations: []admissionregistrationv1.Validation{{
				Expression: `!("labels" in object.metadata)`, Message: refusal,
				Reason: ptr.To(metav1.StatusReasonForbidden),
			}},
		}},
	}
}

// createProbe stores each kind's binding after its policy.
func (c *Cluster) createProbe(ctx context.Context, p policyProbe) error {
	api := c.client.AdmissionregistrationV1()
	meta := metav1.ObjectMeta{Name: p.name}
	_, mutating := api.MutatingAdmissionPolicies().Create(ctx, p.mutating, metav1.CreateOptions{})
	_, mutatingBinding := api.MutatingAdmissionPolicyBindings().Create(ctx, &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: meta, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: p.name},
	}, metav1.CreateOptions{})
	_, validating := api.ValidatingAdmissionPolicies().Create(ctx, p.validating, metav1.CreateOptions{})
	_, validatingBinding := api.ValidatingAdmissionPolicyBindings().Create(ctx, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: meta, Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: p.name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}, metav1.CreateOptions{})
	return errors.Join(mutating, mutatingBinding, validating, validatingBinding)
}

// probeWorks creates, as a dry run, what the one policy labels and the other
// therefore refuses.
func (c *Cluster) probeWorks(ctx context.Context, name string) (bool, error) {
	_, err := c.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsForbidden(err) { // by the probe, or because no policy is known yet
		return strings.Contains(err.Error(), refusal), nil
	}
	return false, err
}

// deleteProbe removes what createProbe made.
func (c *Cluster) deleteProbe(ctx context.Context, name string) error {
	api := c.client.AdmissionregistrationV1()
	var errs []error
	for _, err := range []error{
		api.MutatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{}),
		api.MutatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{}),
		api.ValidatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{}),
		api.ValidatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{}),
	} {
		if !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
