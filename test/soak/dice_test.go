package soak

import (
	"math/rand/v2"
	"sync"
	"time"
)

// dice are chance that a seed repeats as far as the order of the throws does. Safe
// for concurrent use.
type dice struct {
	mu   sync.Mutex
	rand *rand.Rand
}

func newDice(seed, stream uint64) *dice { return &dice{rand: rand.New(rand.NewPCG(seed, stream))} }

// upTo is from 0 to n-1.
func (d *dice) upTo(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rand.IntN(n)
}

func (d *dice) oneIn(n int) bool { return d.upTo(n) == 0 }

func (d *dice) duration(upTo time.Duration) time.Duration { return time.Duration(d.upTo(int(upTo))) }
