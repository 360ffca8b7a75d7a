package podrunner

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/distlock-dev/distlock/hack/process"
)

// Exit codes that a kubelet or a container runtime makes up.
const (
	exitCannotStart = 128 // StartError
	exitKilled      = 137 // 128 + SIGKILL
	exitTerminated  = 143 // 128 + SIGTERM
)

// container is one container of a pod and what became of it.
type container struct {
	spec  *corev1.Container
	init  bool
	child *process.Process // of the last start; nil without a command

	state    corev1.ContainerState
	last     corev1.ContainerState // of the start before
	restarts int32
}

func newContainer(spec *corev1.Container, init bool) *container {
	c := &container{spec: spec, init: init}
	c.state.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	if init {
		c.state.Waiting.Reason = "PodInitializing"
	}
	return c
}

// isNew says whether the container was never started.
func (c *container) isNew() bool { return c.state.Waiting != nil && c.restarts == 0 }

// ended says whether the container has ended; one that will be started again has not.
func (c *container) ended() bool { return c.state.Terminated != nil }

func (c *container) exitCode() int32 { return c.state.Terminated.ExitCode }

// start starts the command in dir, which also gets its log. Without a command an
// init container has ended, and any other runs without a process. A program that
// cannot be started ends the container, as it does with a container runtime.
func (c *container) start(pod *corev1.Pod, dir string) {
	c.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	if len(c.spec.Command) == 0 {
		if c.init {
			c.end(0, "Completed", "")
		}
		return
	}
	child, err := c.launch(pod, dir)
	if err == nil {
		c.child = child
	} else {
		c.end(exitCannotStart, "StartError", err.Error())
	}
}

func (c *container) launch(pod *corev1.Pod, dir string) (*process.Process, error) {
	env, err := environment(pod, c.spec)
	if err != nil {
		return nil, err
	}
	var words []string
	for _, word := range append(append([]string{}, c.spec.Command...), c.spec.Args...) {
		words = append(words, expand(word, env))
	}
	log, err := os.OpenFile(filepath.Join(dir, c.spec.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(words[0], words[1:]...) //nolint:noctx // running what the pod says is the purpose; package process ends it
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	child, err := process.Start(cmd)
	return child, errors.Join(err, log.Close())
}

// started says whether the last start made a process, whose end is or will be among
// the worker's exits.
func (c *container) started() bool { return c.child != nil && c.state.Running != nil }

// running says whether there is a process that has not ended.
func (c *container) running() bool { return c.child != nil && !c.child.Exited() }

// reap records how the process ended, and kills what it left behind in its group.
func (c *container) reap() {
	_ = c.child.Signal(syscall.SIGKILL)
	code := int32(c.child.ExitCode()) //nolint:gosec // 0..255
	reason := "Completed"
	if code != 0 {
		reason = "Error"
	}
	c.end(code, reason, "")
}

func (c *container) end(code int32, reason, message string) {
	terminated := &corev1.ContainerStateTerminated{
		ExitCode: code, Reason: reason, Message: message, FinishedAt: metav1.Now(),
	}
	if c.state.Running != nil {
		terminated.StartedAt = c.state.Running.StartedAt
	}
	c.state = corev1.ContainerState{Terminated: terminated}
}

// awaitRestart makes an ended container one that will be started again.
func (c *container) awaitRestart() {
	c.last = c.state
	c.restarts++
	c.state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
		Reason: "CrashLoopBackOff", Message: fmt.Sprintf("starts again in %s", restartDelay),
	}}
}

func (c *container) status() corev1.ContainerStatus {
	started := c.state.Running != nil
	status := corev1.ContainerStatus{
		Name: c.spec.Name, Image: c.spec.Image, ImageID: c.spec.Image,
		State: c.state, LastTerminationState: c.last, RestartCount: c.restarts,
		Started: &started, Ready: started || (c.init && c.ended() && c.exitCode() == 0),
	}
	if c.child != nil {
		status.ContainerID = fmt.Sprintf("process://%d", c.child.PID())
	}
	return status
}
