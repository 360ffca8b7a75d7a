//go:build unix

package main

import (
	"errors"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// child is the command that was started, at the head of a process group of its own.
type child struct {
	pid    int // and the number of the group
	events <-chan childEvent
	cmd    *exec.Cmd
}

// childEvent is what became of the command: it was stopped, or it ended.
type childEvent struct {
	stopped syscall.Signal
	ended   *syscall.WaitStatus
}

// startChild starts a command, in the foreground of the terminal if run is.
func startChild(command command, env []string, streams genericiooptions.IOStreams, t *terminal) (*child, error) {
	cmd := &exec.Cmd{
		Path: command.path, Args: command.argv, Env: env,
		Stdin: streams.In, Stdout: streams.Out, Stderr: streams.ErrOut,
		WaitDelay:   time.Second, // for output of a test; that of a program is a file
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	t.inForeground(cmd.SysProcAttr)
	dieWithParent(cmd.SysProcAttr)
	events := make(chan childEvent, 16)
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the kernel ends the command with the thread that started it
		err := cmd.Start()
		started <- err
		if err == nil {
			follow(cmd.Process.Pid, events)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return &child{pid: cmd.Process.Pid, events: events, cmd: cmd}, nil
}

// follow tells what becomes of the command, until it has ended and is reaped.
func follow(pid int, events chan<- childEvent) {
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(pid, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // it is nobody else's to reap, so this cannot be
			events <- childEvent{ended: &status}
			return
		case status.Stopped():
			events <- childEvent{stopped: status.StopSignal()}
		case status.Exited(), status.Signaled():
			events <- childEvent{ended: &status}
			return
		}
	}
}

// finish waits for the last of the output, where that is not a file.
func (c *child) finish() { _ = c.cmd.Wait() } // the status is had already
