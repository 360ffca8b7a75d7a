package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// samples are what the rounds measured.
type samples struct {
	update, floor, freeLock, nextFromComplete, nextFromPod, complete []time.Duration
}

// figure is what some samples say together.
type figure struct {
	Name        string
	Label       string
	N           int
	Median, P99 time.Duration
	Ratio       float64 // of the medians, to that of the floor
}

func (s samples) figures() []figure {
	var all []figure
	for _, f := range []struct {
		name, label string
		samples     []time.Duration
	}{
		{"floor", "floor: a status update and its event", s.floor},
		{"update", "the status update alone", s.update},
		{"free-lock", "Job on a free lock, from its creation", s.freeLock},
		{"next-from-complete", "next Job, from Complete", s.nextFromComplete},
		{"next-from-pod", "next Job, from the end of the last pod", s.nextFromPod},
		{"complete", "Complete itself, from the end of the last pod", s.complete},
	} {
		if len(f.samples) == 0 {
			continue
		}
		all = append(all, figureOf(f.name, f.label, f.samples, s.floor))
	}
	return all
}

// figureOf compares samples with those of a floor.
func figureOf(name, label string, samples, floor []time.Duration) figure {
	m := median(samples)
	return figure{name, label, len(samples), m, quantile(samples, 0.99), float64(m) / float64(median(floor))}
}

// figuresWith are those of a lock for which so many wait.
func (s samples) figuresWith(waiting int) []figure {
	all := s.figures()
	for i := range all {
		all[i].Name += fmt.Sprintf("-%d-waiting", waiting)
		all[i].Label = fmt.Sprintf("%d waiting: %s", waiting, all[i].Label)
	}
	return all
}

// median is the middle sample, or the mean of the middle two; 0 of none.
func median(samples []time.Duration) time.Duration {
	n := len(samples)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// quantile is the least sample that at least the fraction q of all samples does not
// exceed (nearest rank); 0 of none.
func quantile(samples []time.Duration, q float64) time.Duration {
	n := len(samples)
	if n == 0 {
		return 0
	}
	rank := int(math.Ceil(q * float64(n)))
	return slices.Sorted(slices.Values(samples))[max(rank, 1)-1]
}
