package main

import (
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestTheShareOfSomeDrainsIsTheirMedian(t *testing.T) {
	of := func(rates ...float64) (all []drained) {
		for _, r := range rates {
			all = append(all, drained{waiters: 100, rate: r, bareRate: 200})
		}
		return all
	}
	for _, c := range []struct {
		all  []drained
		want float64
	}{{of(100), 0.5}, {of(40, 180, 100), 0.5}, {of(180, 100, 140, 20), 0.6}} {
		if got := shareOf(c.all); got != c.want {
			t.Errorf("%v: got %v, want %v", c.all, got, c.want)
		}
	}
}

func TestWhatADrainPutsOnTheWireIsCountedForEachThatWaited(t *testing.T) {
	got := map[string]float64{}
	for _, m := range measuresOf([]drained{
		{waiters: 100, rate: 50, bareRate: 100, events: 100, spent: spent{0, 0, 40 * time.Millisecond}, requests: map[string]int{"clients PUT distlocks/status": 101}},
		{waiters: 100, rate: 70, bareRate: 100, events: 102, requests: map[string]int{"clients PUT distlocks/status": 101, "clients PUT distlocks/status (409)": 1}},
	}) {
		got[m.Name] = m.Value
	}
	want := map[string]float64{
		"drain-100": 0.6, "drain-100-events": 1.01,
		"drain-100-cpu-the-api-server": 0, "drain-100-cpu-etcd": 0, "drain-100-cpu-the-controller": 0.2, "drain-100-cpu-the-clients": 0,
		"drain-100-clients-put-distlocks-status": 1.01, "drain-100-clients-put-distlocks-status-409": 0.005,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestEveryEventOfAWatchIsCountedHoweverItArrives(t *testing.T) {
	stream := strings.Repeat("{\"type\":\"MODIFIED\",\"object\":{}}\n", 5)
	for size := 1; size <= len(stream); size++ {
		var events atomic.Int64
		body := countingBody{io.NopCloser(strings.NewReader(stream)), &events}
		for buffer := make([]byte, size); ; {
			if _, err := body.Read(buffer); err != nil {
				break
			}
		}
		if events.Load() != 5 {
			t.Fatalf("%d bytes at a time: got %d events, want 5", size, events.Load())
		}
	}
}

func TestPhasesOfPackageLockShareAStage(t *testing.T) {
	got := onStages([]string{"rounds", "idle", "client", "drain"})
	want := [][]string{{"rounds"}, {"idle"}, {"client", "drain"}}
	if !slices.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("got %v, want %v", got, want)
	}
}
