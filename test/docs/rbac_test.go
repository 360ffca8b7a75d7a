package docs

import (
	"context"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/distlock-dev/distlock/test/env"
)

// what somebody asks to do, and whether they may.
type access struct {
	verb, resource, subresource, name string
	selecting                         string // by metadata.name
	allowed                           bool
}

func TestTheClustersOwnRolesHaveTheLocksInThem(t *testing.T) {
	ns := namespace(t)
	read := []access{
		{verb: "get", resource: "distlocks", allowed: true},
		{verb: "list", resource: "lockclaims", allowed: true},
		{verb: "watch", resource: "distlocks", allowed: true},
		{verb: "get", resource: "distlocks", subresource: "status", allowed: true},
		{verb: "update", resource: "lockclaims", subresource: "status"}, // nobody but the controller
	}
	write := func(allowed bool) []access {
		return []access{
			{verb: "create", resource: "distlocks", allowed: allowed},
			{verb: "update", resource: "distlocks", allowed: allowed},
			{verb: "delete", resource: "lockclaims", allowed: allowed},
			{verb: "patch", resource: "distlocks", subresource: "status", allowed: allowed},
		}
	}
	hold := []access{
		{verb: "patch", resource: "distlocks", subresource: "status", allowed: true},
		{verb: "get", resource: "distlocks", subresource: "status", allowed: true},
		{verb: "create", resource: "lockclaims", allowed: true},
		{verb: "delete", resource: "lockclaims", allowed: true},
		{verb: "update", resource: "distlocks"},
		{verb: "delete", resource: "distlocks"},
	}
	for role, wants := range map[string][]access{
		"view": append(write(false), read...), "edit": append(write(true), read...), "admin": append(write(true), read...),
		"distlock-holder-role": hold,
	} {
		t.Run(role, func(t *testing.T) {
			user := "user-of-" + role
			shell(t, ns, "kubectl create rolebinding "+role+" --clusterrole="+role+" --user="+user)
			for _, want := range wants {
				wantAccess(t, ns, user, want)
			}
		})
	}
}

func TestTheExampleRoleIsForOneLock(t *testing.T) {
	ns := namespace(t)
	testEnv.Shell(t, env.Root(t), ns, "kubectl apply -f config/samples/one-lock.yaml")
	who := "system:serviceaccount:" + ns + ":report-service"
	for _, want := range []access{
		{verb: "get", resource: "distlocks", name: "reports", allowed: true},
		{verb: "get", resource: "distlocks", name: "ledger"},
		{verb: "list", resource: "distlocks", selecting: "reports", allowed: true},
		{verb: "watch", resource: "distlocks", selecting: "reports", allowed: true},
		{verb: "list", resource: "distlocks"},
		{verb: "watch", resource: "distlocks", selecting: "ledger"},
		{verb: "get", resource: "distlocks", subresource: "status", name: "reports", allowed: true},
		{verb: "update", resource: "distlocks", subresource: "status", name: "reports", allowed: true},
		{verb: "patch", resource: "distlocks", subresource: "status", name: "reports", allowed: true},
		{verb: "patch", resource: "distlocks", subresource: "status", name: "ledger"},
		{verb: "update", resource: "distlocks", name: "reports"},
		{verb: "delete", resource: "distlocks", name: "reports"},
		{verb: "create", resource: "lockclaims", allowed: true},
		{verb: "watch", resource: "lockclaims", selecting: "mine", allowed: true},
		{verb: "delete", resource: "lockclaims", name: "mine", allowed: true},
		{verb: "list", resource: "lockclaims"},
		{verb: "update", resource: "lockclaims", name: "mine"},
	} {
		wantAccess(t, ns, who, want)
	}
	question := strings.ReplaceAll(env.Commands(t, "docs/rbac.md", "can"), "serviceaccount:default:", "serviceaccount:"+ns+":")
	if out := shell(t, ns, question); out != "yes\n" {
		t.Errorf("kubectl auth can-i says %q", out)
	}
	if out := refused(t, ns, strings.ReplaceAll(question, "distlocks/reports", "distlocks/ledger")); !strings.HasPrefix(out, "no") {
		t.Errorf("of another lock, kubectl auth can-i says %q", out)
	}
}

// A request is authorized by what is in it, so a list of one name is made for real.
func TestTheExampleRoleListsItsLockByName(t *testing.T) {
	ns := namespace(t, strings.ReplaceAll(lock, "ledger", "reports"), lock)
	testEnv.Shell(t, env.Root(t), ns, "kubectl apply -f config/samples/one-lock.yaml")
	as := " --as=system:serviceaccount:" + ns + ":report-service"
	until(t, ns, "kubectl get distlocks --field-selector=metadata.name=reports -o name"+as, "distlock.distlock.dev/reports")
	if out := refused(t, ns, "kubectl get distlocks"+as); !strings.Contains(out, "cannot list") {
		t.Errorf("says %q", out)
	}
}

// wantAccess asks the API server until it answers as wanted: roles take a moment to
// come into effect.
func wantAccess(t *testing.T, ns, user string, want access) {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{}
	review.Spec.User = user
	if rest, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
		group, _, _ := strings.Cut(rest, ":")
		review.Spec.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + group}
	}
	review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Namespace: ns, Verb: want.verb, Group: "distlock.dev", Resource: want.resource, Subresource: want.subresource, Name: want.name,
	}
	if want.selecting != "" {
		review.Spec.ResourceAttributes.Name = want.selecting // as the API server does
		review.Spec.ResourceAttributes.FieldSelector = &authorizationv1.FieldSelectorAttributes{
			RawSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, want.selecting).String(),
		}
	}
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		asked := review.DeepCopy()
		err := testEnv.Client().Create(ctx, asked)
		return err == nil && asked.Status.Allowed == want.allowed, err
	})
	if err != nil {
		t.Errorf("%s: %+v: the answer is never so: %v", user, want, err)
	}
}
