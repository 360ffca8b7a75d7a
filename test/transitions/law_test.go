package transitions

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

func specOf(capacity int32) v1alpha1.DistLockSpec {
	if capacity == 0 {
		return v1alpha1.DistLockSpec{}
	}
	return v1alpha1.DistLockSpec{Capacity: &capacity}
}

func TestTheProtocolJudgesEveryTransitionAsTheTableSays(t *testing.T) {
	for _, c := range table {
		t.Run(c.name, func(t *testing.T) {
			spec, stored := specOf(c.capacity), v1alpha1.DistLockStatus{}
			for _, st := range c.history {
				if err := protocol.Legal(spec, stored, st); err != nil {
					t.Fatalf("the history is not legal: %v", err)
				}
				stored = st
			}
			if c.later != nil {
				spec = specOf(*c.later)
			}
			if err := protocol.Legal(spec, stored, c.write); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

func TestTheAPIServerJudgesEveryTransitionAsTheTableSays(t *testing.T) {
	for _, c := range table {
		t.Run(c.name, func(t *testing.T) {
			l, err := newLock(t.Context(), specOf(c.capacity))
			if err != nil {
				t.Fatal(err)
			}
			for _, st := range c.history {
				if rules, err := write(t.Context(), l, st); err != nil || rules != nil {
					t.Fatalf("the history is not legal: %v %q", err, rules)
				}
			}
			if c.later != nil {
				l.Spec.Capacity = c.later
				if err := admin.Update(t.Context(), l); err != nil {
					t.Fatal(err)
				}
			}
			var want []string
			if c.want != nil {
				want = []string{refusal(c.want)}
			}
			if rules, err := write(t.Context(), l, c.write); err != nil || !slices.Equal(rules, want) {
				t.Errorf("error %v, it breaks %q; want %q", err, rules, want)
			}
		})
	}
}

func TestEveryRuleOfTheLawIsBrokenInTheTable(t *testing.T) {
	for _, law := range laws {
		if !slices.ContainsFunc(table, func(c transition) bool { return errors.Is(c.want, law) }) {
			t.Errorf("no transition breaks: %v", law)
		}
	}
}

// laws are all that protocol.Legal returns.
var laws = []error{
	protocol.ErrTokenDecreased, protocol.ErrTokenOutOfRange, protocol.ErrStaleToken, protocol.ErrNotAlone,
	protocol.ErrOverCapacity, protocol.ErrTooManyHolders, protocol.ErrHoldChanged, protocol.ErrRevokedRenewed,
}

func TestTheSchemaHasNoOtherRulesThanTheLaw(t *testing.T) {
	raw, err := os.ReadFile("../../config/crd/bases/distlock.dev_distlocks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(raw, &crd); err != nil {
		t.Fatal(err)
	}
	got := rulesOf(*crd.Spec.Versions[0].Schema.OpenAPIV3Schema)
	var want []string
	for _, law := range laws {
		if bounds[law] == "" {
			want = append(want, law.Error())
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the schema's rules are\n%q, the law's\n%q", got, want)
	}
}

func rulesOf(schema apiextensionsv1.JSONSchemaProps) (messages []string) {
	for _, rule := range schema.XValidations {
		messages = append(messages, rule.Message)
	}
	for _, property := range schema.Properties {
		messages = append(messages, rulesOf(property)...)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		messages = append(messages, rulesOf(*schema.Items.Schema)...)
	}
	return messages
}

func TestRenewing256HoldsOverAndOverStaysWithinTheServersLimits(t *testing.T) {
	l, err := newLock(t.Context(), v1alpha1.DistLockSpec{})
	if err != nil {
		t.Fatal(err)
	}
	reversed := many(0, 256, 7, renewed(2))
	slices.Reverse(reversed)
	for i, c := range []struct {
		write v1alpha1.DistLockStatus
		want  error
	}{
		{status(7, many(0, 256, 7)...), nil},
		{status(7, many(0, 256, 7, renewed(1))...), nil},
		{status(7, reversed...), nil},
		{status(7, append(many(0, 255, 7), s(fmt.Sprintf("%0320d", 999), 7))...), protocol.ErrStaleToken},
		{status(7, many(0, 256, 7, permits(2))...), protocol.ErrHoldChanged},
		{status(7, many(0, 256, 7, revoked)...), nil},
		{status(7, many(0, 256, 7, revoked, renewed(1))...), protocol.ErrRevokedRenewed},
		{status(8, many(1, 257, 8)...), nil},
		{status(9, append(many(1, 256, 8), x("a", 9))...), protocol.ErrNotAlone},
	} {
		rules, err := write(t.Context(), l, c.write)
		if err != nil {
			t.Fatal(err)
		}
		rules = slices.Compact(rules)
		if c.want == nil && rules != nil || c.want != nil && !slices.Equal(rules, []string{c.want.Error()}) {
			t.Errorf("write %d breaks %q, want %v", i+1, rules, c.want)
		}
	}
}
