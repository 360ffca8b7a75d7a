// Command bench measures DistLock on local control planes, and prints one table. Its
// phases are, of the controller, each on a control plane of its own:
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
// And of package lock, on one control plane and with the controller running:
//
// client: Acquire and Release of a lock that nobody else wants. The floor is one status
// update of a DistLock by a typed client, in JSON, over a connection of its own.
//
// handover: ten processes wait while one holds for 50 ms; from the start of Release to
// the next holder running. The floor is a status update and its event at a watcher in
// another process, measured within each hold. The same with what they could use
// instead: a mutex in the API server's etcd, a Lease that is polled, and client-go's
// leader election with its defaults (a tenth as often: it takes long).
//
// drain: 100 wait and hold for no time, and 1,000, ten in each process; they are there,
// with their claims, before the clock starts. Their rate, as a part of that of status
// updates, one after the other, right before and right after; and what goes over the
// wire for each, until the claims are gone, too. What the writes are for:
//
//   - clients PUT distlocks/status: the handover, one for each; (409): somebody else
//     wrote meanwhile, so it is read (GET distlocks) and decided again;
//   - clients DELETE lockclaims: the place in the queue goes, after the handover;
//   - controller PUT distlocks/status: the stored queue is filled up; (409): it was
//     handed over meanwhile.
//
// many: the connections, goroutines and memory of a process that holds 100 locks and
// waits for 100 more.
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
var phases = slices.Concat([]string{"rounds", "waiting", "size", "idle"}, lockPhases)

// lockPhases are those of package lock, which share a control plane.
var lockPhases = []string{"client", "handover", "drain", "many"}

func main() {
	n := flag.Int("n", 200, "rounds, each of which gives one sample of every figure and four of the floor and takes some five seconds; and as many handovers with few and with many waiting, and of each kind in package lock's phases")
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
	for _, together := range onStages(phases) {
		in := dir
		if in != "" {
			in = filepath.Join(dir, together[0])
		}
		err := onStage(ctx, in, func(ctx context.Context, s *stage) error { return r.addAll(ctx, s, together, n) })
		if err != nil {
			failed = err
			break // what was measured before is printed all the same
		}
	}
	r.loadAfter = load()
	if asJSON {
		return errors.Join(failed, r.printJSON(os.Stdout))
	}
	return errors.Join(failed, r.printTable(os.Stdout))
}

// onStages are the phases by the stages that they are measured on.
func onStages(phases []string) [][]string {
	var stages [][]string
	for _, p := range phases {
		if last := len(stages) - 1; last >= 0 && slices.Contains(lockPhases, p) && slices.Contains(lockPhases, stages[last][0]) {
			stages[last] = append(stages[last], p)
		} else {
			stages = append(stages, []string{p})
		}
	}
	return stages
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

// addAll measures phases on one stage.
func (r *report) addAll(ctx context.Context, s *stage, phases []string, n int) error {
	for _, phase := range phases {
		_, _ = fmt.Fprintf(os.Stderr, "bench: %s\n", phase)
		if err := r.add(ctx, s, phase, n); err != nil {
			return fmt.Errorf("%s: %w", phase, err)
		}
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
	case "client":
		figures, err = measureUncontended(ctx, s, n)
	case "handover":
		figures, err = measureHandover(ctx, s, n)
	case "drain":
		measures, err = measureDrain(ctx, s, n)
	case "many":
		measures, err = measureMany(ctx, s)
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
