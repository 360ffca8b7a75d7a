package controllers_test

import (
	"net/http"
	"strings"
	"sync"
	"time"
)

// blindTo makes a controller whose caches lack objects, by resource and name, as
// if they had not arrived yet. It can still read them by name.
func blindTo(hidden map[string]string) func(*settings) {
	return func(s *settings) { s.hidden = hidden }
}

// blinded takes the hidden objects out of what a LIST or WATCH asks for.
func (n *network) blinded(req *http.Request) *http.Request {
	name := n.hidden[req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]]
	if name == "" || req.Method != http.MethodGet {
		return req
	}
	req = req.Clone(req.Context())
	query := req.URL.Query()
	selector := "metadata.name!=" + name
	if more := query.Get("fieldSelector"); more != "" {
		selector += "," + more
	}
	query.Set("fieldSelector", selector)
	req.URL.RawQuery = query.Encode()
	return req
}

// steppedClock is a clock that jumps ahead when it is told to, in its wall and in
// its monotonic reading.
type steppedClock struct {
	mu    sync.Mutex
	ahead time.Duration
}

func (c *steppedClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

func (c *steppedClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func (c *steppedClock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

func readsClock(c *steppedClock) func(*settings) { return func(s *settings) { s.clock = c } }
