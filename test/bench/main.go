// Command bench measures DistLock's controller on local control planes, and prints
// one table. Its phases, each on a control plane of its own:
//
// rounds: Jobs take turns on one lock for which at most one other waits.
//
//   - the floor: one status update of a DistLock and its event at a watcher, which is
//     the least that any change of hands costs;
//   - a Job on a free lock: from the return of its creation to the event in which
//     spec.suspend is false;
//   - the next Job: to the same event, from the event in which the holder's Complete
//     condition is True, where only that can end the hold (an Indexed Job); and from
//     the return of the write that ends the holder's last pod, where the pod decides;
//   - what the controller asks of the API server for each of these.
//
// waiting: the same handovers with 50 and with 5,000 Jobs waiting for the lock. What
// the floor grows by is the API server's own share.
//
// size: the peak of the controller's memory with 1,000 locks and 5,000 gated Jobs,
// and with 20,000 foreign Jobs and 20,000 foreign pods beside them.
//
// idle: what it does when nothing happens, here and at the end of the phase before.
//
// Read the ratios to the floor, not the milliseconds: the floor is measured right
// before each of the others, so the machine and what else it does cancel out.
//
// The controller is the program that users run, in a process of its own and under its
// service account. Jobs get their pods from a real kube-controller-manager; this
// program plays the kubelet.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// warmUp rounds are not counted: in them the controller starts, connections are made
// and the API server compiles its expressions.
const warmUp = 5

// phases are what can be measured, in order.
var phases = []string{"rounds", "waiting", "size", "idle"}

func main() {
	n := flag.Int("n", 200, "rounds, each of which gives one sample of every figure and four of the floor and takes some five seconds; and as many handovers with few and with many waiting")
	only := flag.String("only", "", "phases to run, separated by commas: "+strings.Join(phases, ", ")+"; by default all")
	asJSON := flag.Bool("json", false, "print one JSON object per figure, each on a line of its own, and no table")
	dir := flag.String("dir", "", "folder for the control planes' data and logs, which are kept; by default a temporary one")
	flag.Parse()
	chosen, err := choose(*only)
	if flag.NArg() > 0 || *n < 1 || err != nil {
		fmt.Fprintln(os.Stderr, "bench: wants a positive -n, known phases and no other arguments; see -help")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *n, chosen, *asJSON, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:gocritic // exitAfterDefer: the process ends here, and its signal handler with it
	}
}

// choose returns the phases that are named, in order; all of none.
func choose(only string) ([]string, error) {
	if only == "" {
		return phases, nil
	}
	var chosen []string
	named := strings.Split(only, ",")
	for _, p := range phases {
		if slices.Contains(named, p) {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) != len(named) {
		return nil, fmt.Errorf("%q names a phase that there is not", only)
	}
	return chosen, nil
}

func run(ctx context.Context, n int, phases []string, asJSON bool, dir string) error {
	r := report{loadBefore: load()}
	var failed error
	for _, phase := range phases {
		in := dir
		if in != "" {
			in = filepath.Join(dir, phase)
		}
		_, _ = fmt.Fprintf(os.Stderr, "bench: %s\n", phase)
		if err := onStage(ctx, in, func(ctx context.Context, s *stage) error { return r.add(ctx, s, phase, n) }); err != nil {
			failed = fmt.Errorf("%s: %w", phase, err)
			break // what was measured before is printed all the same
		}
	}
	r.loadAfter = load()
	if asJSON {
		return errors.Join(failed, r.printJSON(os.Stdout))
	}
	return errors.Join(failed, r.printTable(os.Stdout))
}

// onStage measures something on a stage of its own.
func onStage(ctx context.Context, dir string, measure func(context.Context, *stage) error) (err error) {
	s, err := newStage(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	ctx, cancel := context.WithCancel(ctx) // before the stage goes, or its watches complain
	defer cancel()
	if err := measure(ctx, s); err != nil {
		return fmt.Errorf("%w\nthe end of the controller's log:\n%s", err, s.controllerLogTail())
	}
	return nil
}

// add measures a phase.
func (r *report) add(ctx context.Context, s *stage, phase string, n int) (err error) {
	if r.machine, err = factsOf(s); err != nil {
		return err
	}
	var figures []figure
	var measures []measure
	switch phase {
	case "rounds":
		figures, r.requests, err = measureRounds(ctx, s, n)
	case "waiting":
		figures, measures, err = measureWaiting(ctx, s, n)
	case "size":
		measures, err = measureSize(ctx, s)
	case "idle":
		measures, err = measureIdleAlone(ctx, s)
	}
	r.figures, r.measures = append(r.figures, figures...), append(r.measures, measures...)
	return err
}

// measureRounds returns what n rounds on a stage showed.
func measureRounds(ctx context.Context, s *stage, n int) ([]figure, requestCounts, error) {
	p, err := newPlay(ctx, s)
	if err != nil {
		return nil, requestCounts{}, err
	}
	for i := range warmUp {
		if err := p.round(ctx, fmt.Sprintf("warm-up-%d", i)); err != nil {
			return nil, requestCounts{}, fmt.Errorf("warm-up round %d: %w", i, err)
		}
	}
	p.samples, p.acts = samples{}, nil
	began := time.Now()
	for i := range n {
		if err := p.round(ctx, fmt.Sprintf("round-%d", i)); err != nil {
			return nil, requestCounts{}, fmt.Errorf("round %d: %w", i, err)
		}
		if done := i + 1; done%10 == 0 {
			fmt.Fprintf(os.Stderr, "bench: %d of %d rounds, %s\n", done, n, time.Since(began).Round(time.Second))
		}
	}
	requests, err := s.requests(p.acts)
	return p.samples.figures(), requests, err
}
