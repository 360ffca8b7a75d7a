// Command kubectl-distlock is the kubectl plugin of DistLock: put it into the
// PATH, and kubectl distlock is there. One file is one verb; docs/kubectl.md is
// the reference.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// version is set by the linker in a release build.
var version = "devel"

func main() {
	if os.Getpid() == 1 {
		os.Exit(runAsInit())
	}
	os.Exit(execute(context.Background(), os.Args[1:], genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}))
}

// execute runs one command line and returns its exit code. Errors go to ErrOut.
func execute(ctx context.Context, args []string, streams genericiooptions.IOStreams) int {
	p := newPlugin(streams)
	root := p.command() //nolint:contextcheck // what completes gets the command's
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if !p.begun {
		err = usageError("%w; see --help", err)
	}
	if text := explain(err).Error(); text != "" {
		_, _ = fmt.Fprintln(streams.ErrOut, "error:", text)
	}
	return exitCode(err)
}
