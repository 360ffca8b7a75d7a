package lock

import (
	"context"
	"errors"
)

// Lead runs f as the leader, again and again: it waits for the lock, calls f with a
// context that ends when the hold is lost or revoked, and once f has returned waits
// for the lock again. It returns when f returns while it still leads, with f's error,
// and when ctx ends or the lock cannot be waited for; once it has led it waits for an
// API server that cannot be reached, too. Among all who Lead on one lock there is one
// leader at a time, as far as f heeds its context; the token is greater with each.
func (c *Client) Lead(ctx context.Context, name string, f func(ctx context.Context, h *Hold) error, opts ...Option) error {
	led := false
	for pauses := retryPauses(); ; {
		h, err := c.Acquire(ctx, name, opts...)
		switch {
		case led && errors.Is(err, errNoAnswer) && ctx.Err() == nil:
			pause(ctx, pauses.Step())
			continue
		case err != nil:
			return err
		}
		led, pauses = true, retryPauses()
		lost, err := h.do(ctx, f)
		switch {
		case lost == nil:
			return err
		case ctx.Err() != nil:
			return errors.Join(lost, err)
		}
	}
}
