// Command bench measures how fast DistLock's controller is, in one run on a local
// control plane, and prints one table:
//
//   - the floor: one status update of a DistLock and its event at a watcher, which is
//     the least that any change of hands costs;
//   - a Job on a free lock: from the return of its creation to the event in which
//     spec.suspend is false;
//   - the next Job: to the same event, from the event in which the holder's Complete
//     condition is True, and from the return of the write that ends the holder's last
//     pod;
//   - what the controller asks of the API server for each of these.
//
// Read the ratios to the floor, not the milliseconds: the floor is measured right
// before each of the others, so the machine and what else it does cancel out.
//
// The controller is the program that users run, in a process of its own and under its
// service account. Jobs get their pods from a real kube-controller-manager; this
// program plays the kubelet. It waits for nothing but watch events.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// warmUp rounds are not counted: in them the controller starts, connections are made
// and the API server compiles its expressions.
const warmUp = 5

func main() {
	n := flag.Int("n", 200, "rounds, each of which gives one sample of every figure and three of the floor; a round takes some five seconds")
	asJSON := flag.Bool("json", false, "print one JSON object per figure, each on a line of its own, and no table")
	dir := flag.String("dir", "", "folder for the control plane's data and logs, which are kept; by default a temporary one")
	flag.Parse()
	if flag.NArg() > 0 || *n < 1 {
		fmt.Fprintln(os.Stderr, "bench: wants a positive -n and no other arguments; see -help")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *n, *asJSON, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:gocritic // exitAfterDefer: the process ends here, and its signal handler with it
	}
}

func run(ctx context.Context, n int, asJSON bool, dir string) (err error) {
	s, err := newStage(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-s.controller.Done():
			cancel(errors.New("the controller has ended by itself"))
		case <-ctx.Done():
		}
	}()
	r, err := measure(ctx, s, n)
	if err != nil {
		return fmt.Errorf("%w\nthe end of the controller's log:\n%s", err, s.controllerLogTail())
	}
	if asJSON {
		return r.printJSON(os.Stdout)
	}
	return r.printTable(os.Stdout)
}

// measure returns what n rounds on a stage showed.
func measure(ctx context.Context, s *stage, n int) (report, error) {
	r := report{loadBefore: load()}
	var err error
	if r.machine, err = factsOf(s); err != nil {
		return r, err
	}
	p, err := newPlay(ctx, s)
	if err != nil {
		return r, err
	}
	for i := range warmUp {
		if err := p.round(ctx, fmt.Sprintf("warm-up-%d", i)); err != nil {
			return r, fmt.Errorf("warm-up round %d: %w", i, err)
		}
	}
	p.samples, p.acts = samples{}, nil
	began := time.Now()
	for i := range n {
		if err := p.round(ctx, fmt.Sprintf("round-%d", i)); err != nil {
			return r, fmt.Errorf("round %d: %w", i, err)
		}
		if done := i + 1; done%10 == 0 {
			fmt.Fprintf(os.Stderr, "bench: %d of %d rounds, %s\n", done, n, time.Since(began).Round(time.Second))
		}
	}
	r.loadAfter, r.figures = load(), p.samples.figures()
	r.requests, err = s.requests(p.acts)
	return r, err
}
