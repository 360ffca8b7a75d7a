// Command local runs a control plane with DistLock's CRDs, RBAC and policies in the
// background: `make up` and `make down`. The controller is not part of it; run it
// with the printed KUBECONFIG.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

const usage = `usage: local [-dir DIR] up|down|status

  up      start a control plane in the background, wait until it is ready and print
          how to use it; one that runs already is left alone
  down    stop it and remove DIR, also when it was killed
  status  say whether it runs; the exit code is 0 if it does

Two run side by side in two folders.
`

// commands by their name. The last is what up starts in the background.
var commands = map[string]func(context.Context, place) error{
	"up": up, "down": down, "status": status, "supervise": supervise,
}

func main() {
	flag.Usage = func() { _, _ = fmt.Fprint(flag.CommandLine.Output(), usage); flag.PrintDefaults() }
	dir := flag.String("dir", filepath.Join("bin", "local"), "folder of the control plane's data, keys and logs")
	flag.Parse()
	command, known := commands[flag.Arg(0)]
	if !known || flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(command, *dir); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", flag.Arg(0), err)
		os.Exit(1)
	}
}

func run(command func(context.Context, place) error, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	return command(ctx, place(dir))
}
