// Command cmd prints the folder of control plane binaries as the only line on its
// standard output, and finds or makes it first: see package assets. Progress goes
// to standard error.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/distlock-dev/distlock/hack/assets"
)

func main() {
	from := flag.String("from", string(assets.FromAnywhere),
		`where to take what is not cached: "download" for releases, "modules" to build, "anywhere" for the first that works`)
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "assets: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	folder, err := assets.Ensure(ctx, assets.Options{From: assets.Source(*from), Log: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, "assets:", err)
		os.Exit(1) //nolint:gocritic // exitAfterDefer: the process ends here, and its signal handler with it
	}
	fmt.Println(folder)
}
