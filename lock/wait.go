package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// wait takes a place in the queue and waits until the request has the lock: nil.
// Whoever releases, or the controller, grants it, and a watch shows that. The live
// reads in between are the safety net (L8), and keep the count of the lease fresh
// (L4).
func (a *acquisition) wait(ctx context.Context) error {
	if err := a.queue(ctx); err != nil {
		return err
	}
	var no refusals
	watched := false
	for pauses := retryPauses(); ; pause(ctx, pauses.Step()) {
		w, err := a.watches.open(ctx, a) // before it is read: nothing is missed in between
		if no.final(err, a.now()) || !watched && refused(err) {
			return fmt.Errorf("watching DistLock %s: %w", a.name, err)
		}
		watched = watched || err == nil
		if read := a.tryLive(ctx, a.now()); !errors.Is(read, ErrHeld) {
			stop(w)
			return read
		}
		if err != nil {
			continue
		}
		began := a.now()
		err = a.follow(ctx, w)
		if err == nil {
			a.watch = w
			return nil
		}
		w.Stop()
		if !errors.Is(err, errWatchEnded) {
			return err
		}
		if a.now().observed(began) > time.Minute {
			pauses = retryPauses()
		}
	}
}

func stop(w watch.Interface) {
	if w != nil {
		w.Stop()
	}
}

// errWatchEnded: read, and watch again.
var errWatchEnded = errors.New("the watch ended")

// follow waits for the hold as long as the watch lasts.
func (a *acquisition) follow(ctx context.Context, w watch.Interface) error {
	every := a.lease(a.seen.Spec) / 4
	timer := time.NewTimer(wait.Jitter(every, 0.3)) // up to a third of the lease
	defer timer.Stop()
	for reads := 1; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-w.ResultChan():
			lock, isLock := e.Object.(*v1alpha1.DistLock)
			if !ok || !isLock || e.Type == watch.Deleted { // deleted, or granted to the next
				return errWatchEnded
			}
			a.view.show(lock)
			if a.holds(lock) {
				return nil
			}
		case <-timer.C:
			after := a.now()
			after.mono -= every / 2
			if err := a.tryLive(ctx, after); !errors.Is(err, ErrHeld) {
				return err
			}
			if reads%4 == 0 {
				if err := a.stillQueued(ctx); err != nil {
					return err
				}
			}
			reads++
			timer.Reset(wait.Jitter(every, 0.3))
		}
	}
}

// queue creates the LockClaim that is the place in the queue. Its name is chosen
// here, so that it can be looked up when the reply is lost (L9).
func (a *acquisition) queue(ctx context.Context) error {
	a.counted, a.claimName = a.now(), newClaimName(a.name)
	lease := int32(a.lease(a.seen.Spec) / time.Second) //nolint:gosec // at most an hour
	claim := &v1alpha1.LockClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: a.claimName, OwnerReferences: a.me.owns(a.namespace)},
		Spec:       v1alpha1.LockClaimSpec{LockName: a.name, Mode: a.mode, Permits: a.permits, LeaseDurationSeconds: &lease},
	}
	for pauses := retryPauses(); ; pause(ctx, pauses.Step()) {
		created, err := ask(ctx, a.asking, requestPatience, func(ctx context.Context) (*v1alpha1.LockClaim, error) {
			return a.asking.claims.Create(ctx, claim, metav1.CreateOptions{})
		})
		if apierrors.IsAlreadyExists(err) {
			created, err = a.getClaim(ctx)
		}
		switch {
		case err == nil:
			a.claim = created
			a.owner = protocol.ClaimOwner(created.UID)
			a.ref = &v1alpha1.ObjectRef{APIVersion: v1alpha1.GroupVersion.String(), Kind: "LockClaim", Name: created.Name, UID: created.UID}
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case refused(err):
			return fmt.Errorf("creating LockClaim %s: %w", a.claimName, err)
		}
	}
}

func newClaimName(lock string) string {
	if len(lock) > 200 { // of 253
		lock = strings.TrimRight(lock[:200], "-.")
	}
	return lock + "-" + string(uuid.NewUUID())
}

func (a *acquisition) getClaim(ctx context.Context) (*v1alpha1.LockClaim, error) {
	return ask(ctx, a.asking, requestPatience, func(ctx context.Context) (*v1alpha1.LockClaim, error) {
		return a.asking.claims.Get(ctx, a.claimName, metav1.GetOptions{})
	})
}

// stillQueued returns ErrLost when the place in the queue is gone: somebody deleted
// the LockClaim, or it was granted and had expired before this process saw that.
func (a *acquisition) stillQueued(ctx context.Context) error {
	for _, w := range a.seen.Status.Queue {
		if w.Owner == a.owner {
			return nil
		}
	}
	claim, err := a.getClaim(ctx)
	if apierrors.IsNotFound(err) || (err == nil && (claim.UID != a.claim.UID || claim.DeletionTimestamp != nil)) {
		return fmt.Errorf("%w: LockClaim %s was deleted", ErrLost, a.claimName)
	}
	return nil // or it could not be read; the next read may
}

// finishClaim deletes the LockClaim of a hold that is about to be expired, so that it
// does not queue again. Where that is not allowed, the controller sees to it.
func (a *acquisition) finishClaim(ctx context.Context, stale *v1alpha1.Hold) {
	if stale != nil && stale.Ref != nil && stale.Ref.Kind == "LockClaim" {
		_ = a.deleteClaim(ctx, stale.Ref.Name, stale.Ref.UID)
	}
}

// deleteClaim deletes a LockClaim, if it is there and is that one.
func (c *Client) deleteClaim(ctx context.Context, name string, uid types.UID) error {
	var o metav1.DeleteOptions
	if uid != "" {
		o.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	_, err := ask(ctx, c.asking, requestPatience, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, c.asking.claims.Delete(ctx, name, o)
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// leave takes the request out of everything: first the place in the queue, then what
// may have come of it meanwhile.
func (a *acquisition) leave(ctx context.Context) error {
	if a.claimName != "" {
		var uid types.UID
		if a.claim != nil {
			uid = a.claim.UID
		}
		if err := a.deleteClaim(ctx, a.claimName, uid); err != nil {
			return err
		}
	}
	lock, err := a.asking.get(ctx, a.name, requestPatience)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	before, err := protocol.StateOf(lock)
	if err != nil {
		return nil //nolint:nilerr // nothing was acquired there either
	}
	next, err := a.without(before, lock)
	if err != nil || !next.Differs(before) {
		return err
	}
	stored, err := a.asking.store(ctx, lock, next.Status, requestPatience)
	if err != nil {
		return err // a conflict: once more
	}
	a.view.show(stored)
	if _, there := next.Hold(a.owner); there {
		return errStillThere
	}
	return nil
}

// errStillThere: what is left of a request must be looked at once more.
var errStillThere = errors.New("the request is not out of the lock yet")

// without is the lock without the request. A write of its own that may be stored yet
// can be stored while the lock is as it was then, so that is done first: what is there
// can be released.
func (a *acquisition) without(before protocol.State, lock *v1alpha1.DistLock) (protocol.State, error) {
	if h, ok := before.Hold(a.owner); ok {
		return before.Leave(a.owner).Release(a.owner, h.FencingToken, 0, a.now().wall)
	}
	if a.unclear && a.seen.ResourceVersion == lock.ResourceVersion {
		if next, _, _ := a.next(lock); next != nil {
			return *next, nil
		}
	}
	return before.Leave(a.owner), nil
}

// lateness is how long a request may be under way that this process gave up.
const lateness = time.Minute

// leaveLate deletes a LockClaim that is stored after its creation was given up.
func (a *acquisition) leaveLate(ctx context.Context) error {
	if err := a.deleteClaim(ctx, a.claimName, ""); err != nil {
		return err
	}
	if a.now().observed(a.counted) < lateness {
		return errStillThere
	}
	return nil
}
