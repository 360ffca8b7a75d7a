package policy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

const heldBy = "status.holders: held by "

// Fault 32.
func TestAHeldLockIsNotDeleted(t *testing.T) {
	namespace := newNamespace(t)
	lock := heldLock(t, namespace, "job/nightly/1")
	expect(t, author.Delete(t.Context(), lock), heldBy+"job/nightly/1; let the holders finish")
	expect(t, author.Delete(t.Context(), lock, client.GracePeriodSeconds(0), client.PropagationPolicy(metav1.DeletePropagationBackground)), heldBy)
	expect(t, author.Delete(t.Context(), lock, client.PropagationPolicy(metav1.DeletePropagationForeground)), heldBy)
	expect(t, author.DeleteAllOf(t.Context(), &v1alpha1.DistLock{}, client.InNamespace(namespace)), heldBy)
	expect(t, controller.Delete(t.Context(), lock), heldBy)

	lock.Status.Holders = nil
	if err := admin.Status().Update(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	expect(t, author.Delete(t.Context(), lock), "")
}

// Fault 32. It is a deletion and a creation.
func TestAHeldLockIsNotReplacedByForce(t *testing.T) {
	lock := heldLock(t, newNamespace(t), "job/nightly/1")
	manifest := filepath.Join(t.TempDir(), "lock.yaml")
	if err := os.WriteFile(manifest, []byte("{apiVersion: distlock.dev/v1alpha1, kind: DistLock, metadata: {name: "+lock.Name+"}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := controlPlane.Kubectl(t.Context(), "replace", "--force", "--namespace", lock.Namespace, "-f", manifest)
	expect(t, err, heldBy+"job/nightly/1")
	again := newLock(lock.Namespace, lock.Name)
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(lock), again); err != nil || again.UID != lock.UID || len(again.Status.Holders) != 1 {
		t.Errorf("the lock is %+v, %v", again, err)
	}
}

func TestARefusalNamesOneHolderAndCountsTheOthers(t *testing.T) {
	lock := heldLock(t, newNamespace(t), "job/a/1", "job/b/2", "job/c/3")
	expect(t, author.Delete(t.Context(), lock), heldBy+"job/a/1 and 2 more;")
}

func TestALockThatNobodyHoldsIsDeleted(t *testing.T) {
	namespace := newNamespace(t)
	for _, name := range []string{"a", "b"} {
		if err := author.Create(t.Context(), newLock(namespace, name)); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, author.Delete(t.Context(), newLock(namespace, "a")), "")
	expect(t, author.DeleteAllOf(t.Context(), &v1alpha1.DistLock{}, client.InNamespace(namespace)), "")
}

// Faults 30 and 32: with its namespace a held lock goes, and a gated Job with
// its pod, too.
func TestAHeldLockGoesWithItsNamespace(t *testing.T) {
	namespace := newNamespace(t)
	heldLock(t, namespace, "job/nightly/1")
	runningJob(t, namespace, spec(func(s *batchv1.JobSpec) {
		s.Template.Spec.TerminationGracePeriodSeconds = ptr.To(int64(1)) // for which the namespace controller waits
	}))
	waitingJob(t, namespace)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := author.Delete(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	err := eventually(t.Context(), func(ctx context.Context) error {
		err := admin.Get(ctx, client.ObjectKeyFromObject(ns), ns)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("still there: %+v", ns.Status)
	})
	if err != nil {
		t.Error(err)
	}
}

func newLock(namespace, name string) *v1alpha1.DistLock {
	lock := &v1alpha1.DistLock{}
	lock.Namespace, lock.Name = namespace, name
	return lock
}

// heldLock is held by owners together.
func heldLock(t *testing.T, namespace string, owners ...string) *v1alpha1.DistLock {
	t.Helper()
	lock := newLock(namespace, "held")
	err := admin.Create(t.Context(), lock)
	now := metav1.NowMicro()
	lock.Status.FencingToken = 1
	for _, o := range owners {
		lock.Status.Holders = append(lock.Status.Holders, v1alpha1.Hold{
			Owner: o, Mode: v1alpha1.Shared, Permits: 1, FencingToken: 1, AcquireTime: now, RenewTime: now,
		})
	}
	if err := errors.Join(err, admin.Status().Update(t.Context(), lock)); err != nil {
		t.Fatal(err)
	}
	return lock
}
