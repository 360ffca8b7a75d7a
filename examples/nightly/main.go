// Command nightly is started by cron on two servers, and does its work on one.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/distlock-dev/distlock/lock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	locks, err := lock.NewClient(nil) // the pod's service account, or your kubeconfig
	if err != nil {
		return err
	}
	defer locks.Close(context.Background())

	h, err := locks.TryAcquire(ctx, "nightly")
	if errors.Is(err, lock.ErrHeld) {
		fmt.Println("the other one does it:", err)
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(report(h.Context(), h.Token()), h.Release(ctx))
}

// report is the work. Its context ends when the lock is lost; the token goes to
// whatever it writes to.
func report(ctx context.Context, token int64) error {
	fmt.Println("reporting with fencing token", token)
	return ctx.Err()
}
