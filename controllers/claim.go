package controllers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

func claimRef(c *v1alpha1.LockClaim) *v1alpha1.ObjectRef {
	return &v1alpha1.ObjectRef{APIVersion: v1alpha1.GroupVersion.String(), Kind: "LockClaim", Name: c.Name, UID: c.UID}
}

// claimWaits reports whether a claim wants the lock: it is not being deleted, and
// was not granted it before.
func claimWaits(c *v1alpha1.LockClaim) bool {
	return c.DeletionTimestamp == nil && c.Status.FencingToken == 0
}

// claimRequest is what a claim asks for.
func claimRequest(c *v1alpha1.LockClaim, spec v1alpha1.DistLockSpec, seen int64) protocol.Request {
	return protocol.Request{
		Waiter: protocol.NewWaiter(spec, protocol.ClaimOwner(c.UID), c.Spec.Mode, c.Spec.Permits, c.Spec.LeaseDurationSeconds, claimRef(c)),
		Since:  c.CreationTimestamp.Time,
		Seen:   seen,
	}
}

// grantClaim tells a bound claim that it holds the lock, once that is proven.
func (r *Reconciler) grantClaim(ctx context.Context, c *v1alpha1.LockClaim, h v1alpha1.Hold) error {
	next := c.DeepCopy()
	next.Status.FencingToken = h.FencingToken
	return r.setGranted(ctx, c, next, metav1.ConditionTrue, v1alpha1.ReasonGranted,
		fmt.Sprintf("holds DistLock %s with fencing token %d", c.Spec.LockName, h.FencingToken))
}

// refuseClaim tells a bound claim why it does not hold the lock.
func (r *Reconciler) refuseClaim(ctx context.Context, c *v1alpha1.LockClaim, reason, message string) error {
	return r.setGranted(ctx, c, c.DeepCopy(), metav1.ConditionFalse, reason, message)
}

// setGranted writes the Granted condition, guarded by the claim's
// resourceVersion, where status or reason differ from what stands there.
func (r *Reconciler) setGranted(ctx context.Context, before, next *v1alpha1.LockClaim, status metav1.ConditionStatus, reason, message string) error {
	if before.Spec.LeaseDurationSeconds != nil || before.DeletionTimestamp != nil {
		return nil
	}
	now := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.GrantedCondition)
	if now != nil && now.Status == status && now.Reason == reason && before.Status.FencingToken == next.Status.FencingToken {
		return nil
	}
	meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type: v1alpha1.GrantedCondition, Status: status, Reason: reason, Message: message, ObservedGeneration: next.Generation,
	})
	if err := client.IgnoreNotFound(r.Client.Status().Update(ctx, next)); err != nil {
		return fmt.Errorf("writing the status of LockClaim %s/%s: %w", next.Namespace, next.Name, err)
	}
	return nil
}

// finishClaim deletes the claim of a stale or ended hold, so that it cannot queue
// again; its deletion wakes the reconciler, which then ends the hold. Nothing guards
// the deletion, so that the hold is still as it was judged, the API server says.
func (r *Reconciler) finishClaim(ctx context.Context, g *gathered, h v1alpha1.Hold) error {
	lock := &v1alpha1.DistLock{}
	if err := r.Live.Get(ctx, g.key, lock); err != nil {
		return fmt.Errorf("reading DistLock %s: %w", g.key, err) // or gone: then its claims wait for another
	}
	r.observe(lock)
	now, holds := protocol.State{Status: lock.Status}.Hold(h.Owner)
	if !holds || now.FencingToken != h.FencingToken || !now.RenewTime.Equal(&h.RenewTime) {
		return errChanged
	}
	namespace, ref := g.key.Namespace, h.Ref
	claim := &v1alpha1.LockClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ref.Name}}
	// Not waited for in the cache: it may never have had this claim, and then every
	// later list would wait for its deletion in vain.
	err := r.Client.Delete(ctx, claim, client.Preconditions{UID: &ref.UID}, client.DisableReadYourWritesConsistency)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting LockClaim %s/%s: %w", namespace, ref.Name, err)
	}
	return nil
}

func claimIsGranted(c *v1alpha1.LockClaim, token int64) bool {
	return c.Status.FencingToken == token && meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.GrantedCondition)
}

// claimIsLost reports whether a claim was granted while the lock, as it was after
// that grant, has no such hold.
func claimIsLost(c *v1alpha1.LockClaim, lock *v1alpha1.DistLock) bool {
	token := c.Status.FencingToken
	if token == 0 || lock.Status.FencingToken < token {
		return false
	}
	h, holds := protocol.State{Status: lock.Status}.Hold(protocol.ClaimOwner(c.UID))
	return !holds || h.FencingToken != token
}

func claimReason(c *v1alpha1.LockClaim) string {
	if granted := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.GrantedCondition); granted != nil {
		return granted.Reason
	}
	return ""
}
