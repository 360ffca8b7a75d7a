// Package protocol is the law of a lock as pure values: every transition takes
// the stored state and returns the state to store instead, guarded by the
// resourceVersion it was decided from. It does no IO and reads no clock; "now"
// is the caller's wall clock and is only ever written down, never compared with
// a time that another machine wrote.
//
// A caller that gets a conflict reads again and decides again. It must not
// store a state decided from another version than the one it replaces: the
// fencing token's proof (see State.nextToken) depends on it.
package protocol

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// Errors of the transitions. The state returned beside one is the state that
// came in.
var (
	// ErrHeld: the lock is held in a way that leaves no room for the request.
	ErrHeld = errors.New("the lock is held")
	// ErrClosed: the lock is closed for a while (minHoldSeconds,
	// lockDelaySeconds).
	ErrClosed = errors.New("the lock is closed for a while")
	// ErrDeleted: the lock is being deleted; a hold would go with it.
	ErrDeleted = errors.New("the lock is being deleted")
	// ErrQueued: others wait, and the request is not the first of them.
	ErrQueued = errors.New("others wait for the lock")
	// ErrTooManyPermits: the request asks for more than the lock's capacity.
	ErrTooManyPermits = errors.New("more permits than the lock's capacity")
	// ErrNotHeld: the owner has no hold with that token.
	ErrNotHeld = errors.New("the lock is not held by this owner with this token")
	// ErrRevoked: the hold was revoked and cannot be renewed.
	ErrRevoked = errors.New("the hold was revoked")
	// ErrNotLeased: the hold is bound to an object and needs no renewal.
	ErrNotLeased = errors.New("the hold is bound and needs no renewal")
	// ErrTokensExhausted: the next token would not stay below 2^53.
	ErrTokensExhausted = errors.New("no fencing token is left below 2^53")
)

// State is one stored version of a lock.
type State struct {
	// Version is the resourceVersion of the stored object; comparable integers
	// since Kubernetes 1.35.
	Version int64
	Spec    v1alpha1.DistLockSpec
	Status  v1alpha1.DistLockStatus
	// Deleted: the object has a deletionTimestamp. Nothing is granted any more.
	Deleted bool

	issued int64 // the token this pending write issues; 0: none yet
}

// StateOf is the state of a lock as it was read or as a write returned it. It
// fails when its resourceVersion is not an integer, as before Kubernetes 1.35.
func StateOf(l *v1alpha1.DistLock) (State, error) {
	version, err := strconv.ParseInt(l.ResourceVersion, 10, 64)
	if err != nil {
		return State{}, fmt.Errorf("resourceVersion %q of DistLock %s/%s is not an integer; Kubernetes 1.36 or newer is required: %w",
			l.ResourceVersion, l.Namespace, l.Name, err)
	}
	return State{Version: version, Spec: l.Spec, Status: l.Status, Deleted: l.DeletionTimestamp != nil}, nil
}

// Hold returns the owner's hold.
func (s State) Hold(owner string) (v1alpha1.Hold, bool) {
	i := s.holdIndex(owner)
	if i < 0 {
		return v1alpha1.Hold{}, false
	}
	return s.Status.Holders[i], true
}

func (s State) holdIndex(owner string) int {
	return slices.IndexFunc(s.Status.Holders, func(h v1alpha1.Hold) bool { return h.Owner == owner })
}

// heldIndex is where the hold of this owner with this token stands; the same
// owner with another token is another hold.
func (s State) heldIndex(owner string, token int64) (int, error) {
	i := s.holdIndex(owner)
	if i < 0 || s.Status.Holders[i].FencingToken != token {
		return -1, ErrNotHeld
	}
	return i, nil
}

// Differs reports whether there is anything to write to come from before to s.
func (s State) Differs(before State) bool {
	return !equality.Semantic.DeepEqual(s.Status, before.Status)
}

// clone returns a state whose status can be changed without changing s.
func (s State) clone() State {
	s.Status = *s.Status.DeepCopy()
	return s
}
