package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/distlock-dev/distlock/hack/process"
)

const (
	// startTimeout is generous: the machine may be busy with a build.
	startTimeout = 2 * time.Minute
	// stopTimeout is what a part gets to stop in order before it is killed.
	stopTimeout = 15 * time.Second
	// pollInterval is how often a part that starts is asked whether it is ready.
	pollInterval = 50 * time.Millisecond
)

// Component is one part of the control plane, running or not. Its methods may not
// be called at the same time as each other.
type Component struct {
	// Name is that of its program.
	Name string
	// LogFile gets its output, that of earlier starts first.
	LogFile string

	path  string
	args  []string
	ready func(context.Context) error
	child *process.Process
}

// Start starts the component and returns when it is ready. One that is running is
// left alone. One that ends before it is ready is an error with the end of its log.
func (c *Component) Start(ctx context.Context) error {
	if c.child != nil && !c.child.Exited() {
		return nil
	}
	log, err := os.OpenFile(c.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(c.path, c.args...) //nolint:noctx // it lives until Stop; package process ends it
	cmd.Stdout, cmd.Stderr = log, log
	if c.child, err = process.Start(cmd); err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	return c.waitReady(ctx)
}

func (c *Component) waitReady(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, pollInterval, startTimeout, true, func(ctx context.Context) (bool, error) {
		if c.child.Exited() {
			return false, fmt.Errorf("exit code %d", c.child.ExitCode())
		}
		last = c.ready(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s did not become ready: %w; the end of %s:\n%s", c.Name, errors.Join(err, last), c.LogFile, c.logTail())
	}
	return nil
}

// Stop ends the component in order, or by force when it takes too long. One that is
// not running is left alone.
func (c *Component) Stop() {
	if c.child != nil {
		c.child.Stop(stopTimeout)
	}
}

// Kill ends the component with SIGKILL.
func (c *Component) Kill() {
	if c.child != nil {
		c.child.Kill()
	}
}

// Pause stops the component in its tracks with SIGSTOP; its connections stay open
// and silent. Resume lets it go on.
func (c *Component) Pause() error { return c.signal(syscall.SIGSTOP) }

// Resume undoes Pause.
func (c *Component) Resume() error { return c.signal(syscall.SIGCONT) }

// PID is the process id of the component's last start, and 0 without one.
func (c *Component) PID() int {
	if c.child == nil {
		return 0
	}
	return c.child.PID()
}

func (c *Component) signal(sig syscall.Signal) error {
	if c.child == nil || c.child.Exited() {
		return fmt.Errorf("%s is not running", c.Name)
	}
	return c.child.Signal(sig)
}

// logTail is the last twenty lines of the log.
func (c *Component) logTail() string {
	content, err := os.ReadFile(c.LogFile)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
