// Command demo plays DistLock's main job on a local control plane, from nothing to
// a summary, for a person to watch: CronJobs and Jobs that take turns, a crash of
// the controller in the middle, and attempts to get around the lock. It exits with
// 1 when anything was not as the README promises, and leaves nothing behind.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if err := play(); err != nil {
		fmt.Fprintf(os.Stderr, "\n%s %v\n", red("The demo failed:"), err)
		os.Exit(1)
	}
}

func play() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	began := time.Now()
	d, err := setUp(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.cleanUp()) }()
	for _, step := range []func(context.Context) error{
		d.scheduleCronJobs,
		d.contend,
		d.cheat,
		d.crash,
		d.awaitCronJobs,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return d.summary(time.Since(began))
}
