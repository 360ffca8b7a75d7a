// Package policy tests config/policy: the real manifests in a real API server,
// as a person with every right and no special standing would meet them.
//
// Most rows create or change something with dryRun, which runs the whole
// admission chain and stores nothing.
package policy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/hack/cluster"
	"github.com/distlock-dev/distlock/test/env"
)

const (
	authorUser = "ada"
	// patience is how long anything asynchronous may take: a policy to come
	// into effect, a controller of the control plane to act.
	patience = time.Minute
)

var (
	controlPlane *cluster.Cluster
	// adminConfig is that of system:masters, as the cluster hands it out.
	adminConfig *rest.Config
	// admin arranges what a test needs.
	admin client.Client
	// author is ada, a cluster administrator, who is nobody to the policies.
	author client.Client
	// controller is DistLock's service account.
	controller client.Client
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "policy:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx := context.Background()
	log.SetLogger(logr.Discard()) // of the webhook that plays the saboteur
	if controlPlane, err = cluster.Start(ctx, cluster.Options{}); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, controlPlane.Stop()) }()
	adminConfig = controlPlane.Config()
	if admin, err = clientAs(""); err != nil {
		return 0, err
	}
	if author, err = clientAs(authorUser); err != nil {
		return 0, err
	}
	if controller, err = clientAs(v1alpha1.ControllerUser); err != nil {
		return 0, err
	}
	if err := grantEverything(ctx, authorUser, v1alpha1.ControllerUser); err != nil {
		return 0, err
	}
	if err := install(ctx); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

func clientAs(user string) (client.Client, error) {
	return clientWith(rest.ImpersonationConfig{UserName: user}, nil)
}

func clientWith(as rest.ImpersonationConfig, warnings rest.WarningHandlerWithContext) (client.Client, error) {
	cfg := rest.CopyConfig(adminConfig)
	cfg.Impersonate = as
	cfg.WarningHandler = rest.NoWarnings{}
	cfg.WarningHandlerWithContext = warnings
	return client.New(cfg, client.Options{Scheme: env.Scheme()})
}

// grantEverything makes users cluster administrators, so that RBAC never
// refuses before a policy does.
func grantEverything(ctx context.Context, users ...string) error {
	binding := &rbacv1.ClusterRoleBinding{
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}
	binding.Name = "policy-tests"
	for _, u := range users {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: u})
	}
	return client.IgnoreAlreadyExists(admin.Create(ctx, binding))
}

// eventually calls done until it returns nil, and returns its last error when
// patience is at its end.
func eventually(ctx context.Context, done func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		last = done(ctx)
		return last == nil, nil
	})
	if err != nil && last != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return err
}

// newNamespace is a namespace of the test's own. It is not deleted: that takes
// the namespace controller seconds, and the cluster goes anyway.
func newNamespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{}
	ns.GenerateName = "policy-"
	if err := admin.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	return ns.Name
}
