package lock

import (
	"context"
	"errors"
)

// Do acquires the lock, calls f and releases the lock, also when f panics. The context
// that f gets ends with ctx and when the hold is lost or revoked (context.Cause says
// why); f then has to return before the lease ends, see Hold.ValidUntil. Do's error
// joins f's and the loss, if there was one: what f did may then have been beside
// another holder. An API server that cannot be reached at the end is no error, since
// the hold ends with its lease.
func (c *Client) Do(ctx context.Context, name string, f func(ctx context.Context, h *Hold) error, opts ...Option) error {
	h, err := c.Acquire(ctx, name, opts...)
	if err != nil {
		return err
	}
	lost, err := h.do(ctx, f)
	if lost != nil {
		return errors.Join(lost, err)
	}
	return err
}

// do calls f and releases the hold. It returns f's error, and why the hold was lost if
// it was.
func (h *Hold) do(ctx context.Context, f func(ctx context.Context, h *Hold) error) (lost, err error) {
	defer func() {
		lost = h.lossSoFar()
		if released := h.Release(ctx); errors.Is(released, ErrNotHeld) && lost == nil {
			lost = errors.Join(ErrLost, released)
		}
	}()
	guarded, cancel := h.during(ctx)
	defer cancel()
	return nil, f(guarded, h)
}

// during is ctx while the hold lasts.
func (h *Hold) during(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(h.ctx, func() { cancel(context.Cause(h.ctx)) })
	return ctx, func() {
		stop()
		cancel(context.Canceled)
	}
}

// lossSoFar is why the hold was lost or revoked; nil where it was not, by either clock
// and as it is now.
func (h *Hold) lossSoFar() error {
	if h.ctx.Err() == nil && h.left(h.c.now()) <= 0 {
		return h.lose(ErrLost)
	}
	if err := h.over(); !errors.Is(err, ErrNotHeld) {
		return err
	}
	return nil
}
