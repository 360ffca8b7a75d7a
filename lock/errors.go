package lock

import (
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// What can be told from other errors, with errors.Is. Where the caller's context
// ended, its error is in there too.
var (
	// ErrHeld: the lock was not to be had, or not in time; the error is a
	// *HeldError.
	ErrHeld = errors.New("the lock is held")
	// ErrLost: the hold could not be renewed in time, or is gone: somebody else
	// may hold the lock by now, or soon.
	ErrLost = errors.New("the hold was lost")
	// ErrRevoked: an administrator, or spec.maxHoldSeconds, asks the holder to
	// stop. The hold is still its own until the lease ends, and is not renewed
	// any more.
	ErrRevoked = errors.New("the hold was revoked")
	// ErrNotHeld: there is nothing to release, or the hold was released.
	ErrNotHeld = errors.New("the lock is not held")
	// ErrNoLock: there is no DistLock of that name in the namespace. Locks are
	// not created on demand: a misspelt name would be a lock of its own.
	ErrNoLock = errors.New("there is no such lock")
)

// errNoAnswer: the API server could not be asked, or not in time.
var errNoAnswer = errors.New("the API server does not answer")

// HeldError says why a lock was not to be had, as it was seen last. It is an
// ErrHeld.
type HeldError struct {
	// Lock is the DistLock's name.
	Lock string
	// Holder is the owner of the hold that is there, or of the first of several;
	// empty where the lock is closed for a while, or others wait for it.
	Holder string
	// Token is the holder's fencing token.
	Token int64
	// Since is when it was granted, by the clock of whoever granted it.
	Since time.Time
	// Waiting is how many wait. It may lag.
	Waiting int

	why error
}

// Error names the lock, its holder, and who waits.
func (e *HeldError) Error() string {
	if e.Holder == "" {
		return fmt.Sprintf("DistLock %s: %v; %d wait", e.Lock, e.why, e.Waiting)
	}
	return fmt.Sprintf("DistLock %s is held by %s with fencing token %d since %s; %d wait",
		e.Lock, e.Holder, e.Token, e.Since.UTC().Format(time.RFC3339), e.Waiting)
}

// Is makes it an ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

func heldError(l *v1alpha1.DistLock, why error) *HeldError {
	e := &HeldError{Lock: l.Name, Waiting: max(int(l.Status.Waiting), len(l.Status.Queue)), why: why}
	if len(l.Status.Holders) > 0 && !errors.Is(why, protocol.ErrClosed) {
		h := l.Status.Holders[0]
		e.Holder, e.Token, e.Since = h.Owner, h.FencingToken, h.AcquireTime.Time
	}
	return e
}

func noLock(namespace, name string) error {
	return fmt.Errorf("%w: DistLock %s in namespace %s; create it, an empty spec is enough", ErrNoLock, name, namespace)
}

// refusals tell an API server that refuses for good from one that has just started, and
// does not know yet who may do what: what it took before, it refuses for a moment.
type refusals struct {
	since *instant
}

// final takes in how a request ended that was taken before, and reports whether asking
// again does not help.
func (r *refusals) final(err error, now instant) bool {
	switch {
	case !refused(err):
		r.since = nil
		return false
	case !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err):
		return true
	case r.since == nil:
		r.since = &now
	}
	return now.observed(*r.since) > requestPatience
}

// refused reports whether the API server has said no for good: nothing was
// stored, and asking again does not help. After any other error but a conflict
// it is not known whether something was stored.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInvalid(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) ||
		apierrors.IsNotAcceptable(err) || apierrors.IsUnsupportedMediaType(err) || apierrors.IsRequestEntityTooLargeError(err)
}
