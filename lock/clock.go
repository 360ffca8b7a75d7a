package lock

import "time"

// instant is one reading of both clocks.
type instant struct {
	mono time.Duration // since the program began; it may stand still while the machine is suspended
	wall time.Time     // it may be set
}

var began = time.Now()

func readClocks() instant {
	now := time.Now()
	return instant{mono: now.Sub(began), wall: now.Round(0)}
}

// elapsed is how long ago an earlier instant was, by the clock that says more. A
// holder counts with it (L4): it believes neither a monotonic clock that stood
// still nor a wall clock that was set back.
func (i instant) elapsed(earlier instant) time.Duration {
	return max(i.mono-earlier.mono, i.wall.Sub(earlier.wall))
}

// observed is how long ago an earlier instant was, by the monotonic clock alone.
// Whoever expires another's hold counts with it (L4).
func (i instant) observed(earlier instant) time.Duration { return i.mono - earlier.mono }
