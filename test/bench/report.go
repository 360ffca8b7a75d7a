package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"
)

// report is the outcome of a run.
type report struct {
	machine               machine
	loadBefore, loadAfter string
	figures               []figure
	measures              []measure
	requests              requestCounts
}

// measure is a single number that was measured.
type measure struct {
	Name  string  `json:"figure"`
	Label string  `json:"-"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
}

// printTable is for people.
func (r report) printTable(out io.Writer) error {
	m := r.machine
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(w, "%d CPUs, %s, %s, Kubernetes %s, %s\n", m.CPUs, m.OS, m.Go, m.Kubernetes, fsync(m.EtcdFsync))
	_, _ = fmt.Fprintf(w, "load average %s before and %s after\n\n", r.loadBefore, r.loadAfter)
	if len(r.figures) > 0 {
		_, _ = fmt.Fprintf(w, "%-*s\tn\tmedian ms\tp99 ms\tmedian/floor\t\n", labelWidth, "")
	}
	for _, f := range r.figures {
		_, _ = fmt.Fprintf(w, "%-*s\t%d\t%.2f\t%.2f\t%.2f\t\n", labelWidth, f.Label, f.N, ms(f.Median), ms(f.P99), f.Ratio)
	}
	if len(r.measures) > 0 {
		_, _ = fmt.Fprintln(w)
	}
	for _, m := range r.measures {
		_, _ = fmt.Fprintf(w, "%-*s\t%.2f %s\t\n", labelWidth, m.Label, m.Value, m.Unit)
	}
	r.printRequests(w)
	return w.Flush()
}

func (r report) printRequests(w io.Writer) {
	if len(r.requests.counts) == 0 {
		return
	}
	_, _ = fmt.Fprintf(w, "\n%-*s\t", labelWidth, "Requests of the controller, per")
	for a := range actKinds {
		_, _ = fmt.Fprintf(w, "%s\t", a)
	}
	_, _ = fmt.Fprintln(w)
	for _, kind := range slices.Sorted(maps.Keys(r.requests.counts)) {
		_, _ = fmt.Fprintf(w, "%-*s\t", labelWidth, kind)
		for a := range actKinds {
			_, _ = fmt.Fprintf(w, "%.2f\t", r.requests.perAct(kind, a))
		}
		_, _ = fmt.Fprintln(w)
	}
}

// labelWidth of the first column, which is set to the left.
const labelWidth = 60

func fsync(is bool) string {
	if is {
		return "etcd with fsync"
	}
	return "etcd with --unsafe-no-fsync"
}

// printJSON is for programs: each line says all that it depends on.
func (r report) printJSON(out io.Writer) error {
	lines := json.NewEncoder(out)
	for _, f := range r.figures {
		if err := lines.Encode(struct {
			Figure   string  `json:"figure"`
			N        int     `json:"n"`
			MedianMS float64 `json:"medianMs"`
			P99MS    float64 `json:"p99Ms"`
			Ratio    float64 `json:"ratio"`
			machine
		}{f.Name, f.N, ms(f.Median), ms(f.P99), f.Ratio, r.machine}); err != nil {
			return err
		}
	}
	for _, m := range r.measures {
		if err := lines.Encode(struct {
			measure
			machine
		}{m, r.machine}); err != nil {
			return err
		}
	}
	return nil
}

// mib is in bytes.
const mib = 1 << 20

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
