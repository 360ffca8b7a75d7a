package fence

import (
	"errors"
	"fmt"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// ErrStaleToken means that the resource has seen a greater token: whoever bears this
// one no longer holds the lock, and has to stop. Trying again is of no use. Errors
// that match it are of type *[StaleTokenError].
var ErrStaleToken = errors.New("stale fencing token")

// StaleTokenError is the refusal of a token. It matches [ErrStaleToken].
type StaleTokenError struct {
	// Resource is the name given to [Dialect.Advance], or NAMESPACE/NAME of an object.
	Resource string
	// Token is the one that was refused.
	Token int64
	// Mark is the greatest token that the resource has seen.
	Mark int64
}

// Error names the resource, the token and the mark.
func (e *StaleTokenError) Error() string {
	return fmt.Sprintf("fence: %s: %v %d, the resource has seen %d", e.Resource, ErrStaleToken, e.Token, e.Mark)
}

// Unwrap returns [ErrStaleToken].
func (e *StaleTokenError) Unwrap() error { return ErrStaleToken }

// checkToken refuses what no lock has ever granted.
func checkToken(token int64) error {
	if token < 1 || token > v1alpha1.MaxToken {
		return fmt.Errorf("fence: %d is not a fencing token: want 1 to %d", token, int64(v1alpha1.MaxToken))
	}
	return nil
}
