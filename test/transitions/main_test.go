// Package transitions holds the two laws against each other: internal/protocol's
// and the one in the schema of a DistLock, which a real API server enforces. They
// must forbid the same writes for the same reasons, and allow whatever the
// protocol does.
package transitions

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/hack/cluster"
	"github.com/distlock-dev/distlock/internal/protocol"
	"github.com/distlock-dev/distlock/test/env"
)

// admin writes what the test of its package name asks for; the API server
// refuses it nothing but what the schema forbids.
var admin client.Client

func TestMain(m *testing.M) {
	os.Exit(env.Main(m, func(_ context.Context, e *env.Env) error {
		admin = e.Client()
		return nil
	}, func(o *cluster.Options) { o.NoControllerManager = true }))
}

var locks atomic.Int64

// newLock creates a lock of its own for a test.
func newLock(ctx context.Context, spec v1alpha1.DistLockSpec) (*v1alpha1.DistLock, error) {
	l := &v1alpha1.DistLock{Spec: spec}
	l.Namespace, l.Name = metav1.NamespaceDefault, fmt.Sprintf("lock-%d-%d", os.Getpid(), locks.Add(1))
	return l, admin.Create(ctx, l)
}

// write stores a status in place of l's, and on success l is what is stored. It
// returns the rules that the write breaks.
func write(ctx context.Context, l *v1alpha1.DistLock, st v1alpha1.DistLockStatus, options ...client.SubResourceUpdateOption) ([]string, error) {
	next := l.DeepCopy()
	next.Status = *st.DeepCopy()
	err := admin.Status().Update(ctx, next, options...)
	if err == nil {
		*l = *next
		return nil, nil
	}
	return broken(err)
}

// broken are the rules that an API server's refusal names: the messages of the
// schema's rules, or what its bounds say.
func broken(err error) ([]string, error) {
	var refused apierrors.APIStatus
	if !errors.As(err, &refused) || !apierrors.IsInvalid(err) || refused.Status().Details == nil {
		return nil, err
	}
	var rules []string
	for _, c := range refused.Status().Details.Causes {
		if !strings.Contains(c.Message, "some validation rules were not checked") { // beside a bound
			rules = append(rules, strings.TrimPrefix(c.Message, "Invalid value: "))
		}
	}
	return rules, nil
}

// bounds are what the API server says where the schema states the law without a
// rule.
var bounds = map[error]string{
	protocol.ErrTooManyHolders:  "Too many: 257: must have at most 256 items",
	protocol.ErrTokenOutOfRange: "9007199254740992: fencingToken in body should be less than or equal to 9007199254740991",
}

// refusal is what the API server says of a write that breaks a rule of the law.
func refusal(law error) string {
	if bound, ok := bounds[law]; ok {
		return bound
	}
	return law.Error()
}
