package main

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// attemptAnnotation marks a claim that acquire made. Its value is another one for
// each run, and so tells a claim whose creation got no reply from that of another.
const attemptAnnotation = "distlock.dev/acquired-by"

// settleTime is how long the API server is asked again about a claim of which it
// must be known whether it is there, also after the program was interrupted.
const settleTime = 20 * time.Second

// handle names one claim: made anew under its name it has another one.
func handle(c *v1alpha1.LockClaim) string {
	return c.Namespace + "/" + c.Name + "/" + string(c.UID)
}

// createClaim creates a claim under its name, once, however often the reply is
// lost (L9): where it is not known whether it was stored, it is created again
// under the same name. That goes on after ctx ended, since what may be there must
// be known to be removed.
func (c *cluster) createClaim(ctx context.Context, claim *v1alpha1.LockClaim) (*v1alpha1.LockClaim, error) {
	claim.Annotations = map[string]string{attemptAnnotation: "kubectl-distlock-" + string(uuid.NewUUID())}
	settle, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	for {
		created := claim.DeepCopy()
		err := c.Create(settle, created)
		switch {
		case err == nil:
			return created, nil
		case apierrors.IsAlreadyExists(err):
			return c.adopt(settle, claim)
		case !outcomeUnknown(err):
			return nil, err
		case settle.Err() != nil:
			return nil, fmt.Errorf("the API server did not say whether LockClaim %q was created: when it answers again, kubectl delete -n %s lockclaim %s: %w",
				claim.Name, claim.Namespace, claim.Name, err)
		}
		sleep(settle, pause)
	}
}

// adopt returns the claim that is there under a name, if this attempt made it.
func (c *cluster) adopt(ctx context.Context, claim *v1alpha1.LockClaim) (*v1alpha1.LockClaim, error) {
	there := &v1alpha1.LockClaim{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(claim), there); err != nil {
		return nil, err
	}
	if there.Annotations[attemptAnnotation] != claim.Annotations[attemptAnnotation] {
		return nil, exitWith(exitFailed, "--claim: LockClaim %q exists already: choose another name, or if it is left over from a run of yours, kubectl distlock release %s",
			claim.Name, handle(there))
	}
	return there, nil
}

// deleteClaim deletes this claim, and no other one of its name; also after ctx
// ended.
func (c *cluster) deleteClaim(ctx context.Context, claim *v1alpha1.LockClaim) error {
	settle, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	for {
		err := c.Delete(settle, claim.DeepCopy(), client.Preconditions{UID: &claim.UID})
		switch {
		case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
			return nil
		case !passes(err), settle.Err() != nil:
			return fmt.Errorf("LockClaim %q was not removed, and holds its lock or its place: kubectl delete -n %s lockclaim %s: %w",
				claim.Name, claim.Namespace, claim.Name, err)
		}
		sleep(settle, pause)
	}
}
