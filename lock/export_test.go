package lock

import (
	"sync"
	"time"
)

// Clock is what a Client under test reads instead of its clocks: theirs, and so much
// more or less. Safe for concurrent use.
type Clock struct {
	mu         sync.Mutex
	mono, wall time.Duration
	stopped    *instant // what it shows while it stands still
}

// WithClock has a Client read a Clock.
func WithClock(clock *Clock) ClientOption { return func(c *Client) { c.now = clock.read } }

func (c *Clock) read() instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped != nil {
		return *c.stopped
	}
	now := readClocks()
	return instant{mono: now.mono + c.mono, wall: now.wall.Add(c.wall)}
}

// Jump sets the two clocks forward, or back.
func (c *Clock) Jump(mono, wall time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mono += mono
	c.wall += wall
	if c.stopped != nil {
		c.stopped = &instant{mono: c.stopped.mono + mono, wall: c.stopped.wall.Add(wall)}
	}
}

// Stop has both clocks stand still.
func (c *Clock) Stop() {
	now := c.read()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = &now
}

// Left is how long the holder may go on.
func (h *Hold) Left() time.Duration { return h.left(h.c.now()) }
