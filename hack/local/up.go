package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/hack/assets"
	"github.com/distlock-dev/distlock/hack/cluster"
)

// up starts the supervisor and waits for what it says on a pipe: its steps, and last
// that it is ready. The end of the pipe without that is a failure.
func up(ctx context.Context, p place) error {
	pid, err := p.supervisor()
	if err != nil {
		return err
	}
	if pid == 0 {
		if err := launch(ctx, p); err != nil {
			return err
		}
	}
	fmt.Printf("The control plane is up. To use it:\n\n  export KUBECONFIG=%s\n", p.kubeconfig())
	if folder, err := assets.Find(ctx); err == nil {
		if _, err := exec.LookPath("kubectl"); err != nil {
			fmt.Printf("  export PATH=\"%s:$PATH\"   # kubectl\n", folder)
		}
	}
	fmt.Printf("\nStart the controller, without which gated Jobs wait:\n\n  KUBECONFIG=%s go run .\n", p.controllerKubeconfig())
	fmt.Print("\nPods run as processes of yours, by their `command`; one without a command runs until it is deleted.\n")
	return nil
}

func launch(ctx context.Context, p place) error {
	if err := os.MkdirAll(string(p), 0o700); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	steps, said, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = steps.Close() }()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), self, "-dir", string(p), "supervise")
	cmd.Stdout, cmd.Stderr = said, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives this terminal
	if err := errors.Join(cmd.Start(), said.Close()); err != nil {
		return err
	}
	ready := make(chan bool, 1)
	go func() { ready <- follow(steps, os.Stderr) }()
	select {
	case ok := <-ready:
		if ok {
			return nil
		}
		_ = cmd.Wait()
		content, _ := os.ReadFile(p.logFile())
		return fmt.Errorf("the control plane did not start; %s says:\n%s", p.logFile(), content)
	case <-ctx.Done():
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return errors.Join(errors.New("interrupted"), cmd.Wait())
	}
}

// readyLine is the last that a supervisor says.
const readyLine = "ready"

// follow copies lines until one says ready, or there are no more.
func follow(from io.Reader, to io.Writer) (ready bool) {
	var line strings.Builder
	one := make([]byte, 1)
	for {
		if _, err := from.Read(one); err != nil {
			return false
		}
		if one[0] != '\n' {
			line.WriteByte(one[0])
			continue
		}
		if line.String() == readyLine {
			return true
		}
		_, _ = fmt.Fprintln(to, line.String())
		line.Reset()
	}
}

// supervise runs the control plane until it is asked to stop or one of its parts
// ends.
func supervise(ctx context.Context, p place) error {
	lock, err := p.lock()
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := sweep(ctx, p); err != nil {
		return err
	}
	tree, err := assets.Root()
	if err != nil {
		return err
	}
	c, err := cluster.Start(ctx, cluster.Options{Dir: p.clusterDir(), Log: os.Stdout})
	if err != nil {
		return err
	}
	defer func() { _ = c.Stop() }()
	fmt.Println("installing CRDs, RBAC and policies")
	if err := c.Install(ctx, tree); err != nil {
		return err
	}
	if _, err := c.ServiceAccountKubeconfig(ctx, v1alpha1.ControllerNamespace, v1alpha1.ControllerServiceAccount); err != nil {
		return err
	}
	fmt.Println(readyLine)
	if err := os.Stdout.Close(); err != nil {
		return err
	}
	return c.Wait(ctx)
}
