package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// upTo is 1 ns, 2 ns, … n ns, shuffled.
func upTo(n int) []time.Duration {
	all := make([]time.Duration, n)
	for i := range all {
		all[i] = time.Duration(i + 1)
	}
	rand.Shuffle(n, func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

func TestTheMedianIsTheMiddleOrTheMeanOfTheMiddleTwo(t *testing.T) {
	for _, c := range []struct {
		samples []time.Duration
		want    time.Duration
	}{
		{nil, 0},
		{[]time.Duration{7}, 7},
		{[]time.Duration{9, 5}, 7},
		{[]time.Duration{1000, 1, 2}, 2},
		{[]time.Duration{8, 1, 4, 1000}, 6},
		{[]time.Duration{3, -3, 1}, 1},
		{upTo(201), 101},
		{upTo(200), 100}, // 100.5, cut to whole nanoseconds
	} {
		if got := median(c.samples); got != c.want {
			t.Errorf("median of %d samples %v: got %d, want %d", len(c.samples), c.samples[:min(4, len(c.samples))], got, c.want)
		}
	}
}

func TestP99LeavesOneInAHundredAbove(t *testing.T) {
	for _, c := range []struct {
		n    int
		want time.Duration
	}{{0, 0}, {1, 1}, {2, 2}, {99, 99}, {100, 99}, {101, 100}, {200, 198}, {600, 594}, {1000, 990}} {
		if got := quantile(upTo(c.n), 0.99); got != c.want {
			t.Errorf("p99 of 1 to %d: got %d, want %d", c.n, got, c.want)
		}
	}
}

func TestStatisticsLeaveTheSamplesInTheirOrder(t *testing.T) {
	samples := []time.Duration{3, 1, 2}
	median(samples)
	quantile(samples, 0.99)
	if !slices.Equal(samples, []time.Duration{3, 1, 2}) {
		t.Errorf("got %v", samples)
	}
}

func TestEveryFigureIsComparedWithTheFloor(t *testing.T) {
	s := samples{
		update: []time.Duration{5}, floor: []time.Duration{10, 10, 30}, freeLock: []time.Duration{25},
		nextFromComplete: []time.Duration{35}, nextFromPod: []time.Duration{45}, complete: []time.Duration{100},
	}
	want := map[string]float64{
		"update": 0.5, "floor": 1, "free-lock": 2.5, "next-from-complete": 3.5, "next-from-pod": 4.5, "complete": 10,
	}
	figures := s.figures()
	if len(figures) != len(want) {
		t.Errorf("got %d figures, want %d", len(figures), len(want))
	}
	for _, f := range figures {
		if f.Ratio != want[f.Name] {
			t.Errorf("%s: got ratio %v, want %v", f.Name, f.Ratio, want[f.Name])
		}
	}
}
