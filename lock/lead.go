package lock

import (
	"context"
	"errors"
)

// Lead runs f as the leader, again and again: it waits for the lock, calls f with a
// context that ends when the hold is lost or revoked, and once f has returned waits
// for the lock again. It returns when f returns while it still leads, with f's error,
// and when ctx ends or the lock cannot be waited for. Among all who Lead on one lock
// there is one leader at a time, as far as f heeds its context; the token is greater
// with each.
func (c *Client) Lead(ctx context.Context, name string, f func(ctx context.Context, h *Hold) error, opts ...Option) error {
	for {
		led := false
		err := c.Do(ctx, name, func(ctx context.Context, h *Hold) error {
			led = true
			return f(ctx, h)
		}, opts...)
		deposed := errors.Is(err, ErrLost) || errors.Is(err, ErrRevoked)
		if !led || !deposed || ctx.Err() != nil {
			return err
		}
	}
}
