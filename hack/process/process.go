// Package process runs child processes that do not outlive the process that
// started them: where the kernel can do it (Linux), they are killed when their
// parent dies, even by SIGKILL.
package process

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is a child that was started. It leads a process group of its own, so
// that a Ctrl-C in the terminal does not reach it before its parent stops it.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// Start starts cmd. Its SysProcAttr may name who runs it (Credential); the rest of
// that and Cancel belong to this package. Its output should go to files, since with
// pipes Done also waits for grandchildren.
func Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, done: make(chan struct{})}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	dieWithParent(cmd.SysProcAttr)
	started := make(chan error)
	go func() {
		// The kernel takes the death of the thread that started the child for its
		// parent's death, so this thread must last as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // kept in cmd.ProcessState
			close(p.done)
		}
	}()
	return p, <-started
}

// Done is closed when the child has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID is also the number of the child's process group.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited says whether the child has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// ExitCode is what a shell would report: 128 + N after signal N. It waits for the
// child to end.
func (p *Process) ExitCode() int {
	<-p.done
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends sig to the child's whole process group. A group that is gone is no
// error.
func (p *Process) Signal(sig syscall.Signal) error {
	err := syscall.Kill(-p.PID(), sig)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// Terminate sends SIGTERM to the child alone, not to its children: what a container
// runtime does. A child that is gone is no error.
func (p *Process) Terminate() error {
	err := p.cmd.Process.Signal(syscall.SIGTERM)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Stop sends SIGTERM to the child and, when it has ended or after grace, SIGKILL to
// what is left of its group. It returns when the child has ended, and says whether
// it did so in time.
func (p *Process) Stop(grace time.Duration) (inTime bool) {
	_ = p.Terminate()
	_ = p.Signal(syscall.SIGCONT) // a stopped one could not end
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		inTime = true
	case <-timer.C:
	}
	p.Kill()
	return inTime
}

// Kill sends SIGKILL to the group and returns when the child has ended.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL)
	<-p.done
}
