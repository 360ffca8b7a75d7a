//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// runAsInit is for process 1 of a container: it runs this program again as its
// child, which does the work, and itself does what is asked of process 1: it reaps
// all whose parents have ended, and passes signals on. It returns the exit code.
// The two are not one, because reaping any child would take their exit codes from
// those who wait for them, such as credential plugins of the kubeconfig.
func runAsInit() int {
	caught, children := make(chan os.Signal, 64), make(chan os.Signal, 1)
	signal.Notify(caught)
	signal.Notify(children, syscall.SIGCHLD)
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	p, err := os.StartProcess(self, os.Args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		fmt.Fprintln(os.Stderr, "error: starting as process 1:", err)
		return exitRunFailed
	}
	for {
		select {
		case sig := <-caught:
			switch sig {
			case syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPIPE: // its own
			default:
				_ = syscall.Kill(p.Pid, sig.(syscall.Signal))
			}
		case <-children:
			if code, over := reap(p.Pid); over {
				return code
			}
		}
	}
}

// reap reaps all children that have ended, and reports whether one of them was the
// main one, and its exit code.
func reap(main int) (code int, over bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil || pid <= 0:
			return code, over
		case pid == main && status.Signaled():
			code, over = exitSignal+int(status.Signal()), true
		case pid == main:
			code, over = status.ExitStatus(), true
		}
	}
}
