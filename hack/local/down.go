package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// stopTimeout is what a supervisor gets to stop its parts in order.
const stopTimeout = time.Minute

// down stops the supervisor, and what one that was killed has left behind, and
// removes the place. Where nothing is, nothing is to do.
func down(ctx context.Context, p place) error {
	pid, err := p.supervisor()
	if err != nil {
		return err
	}
	if pid != 0 {
		if err := stop(ctx, p, pid); err != nil {
			return err
		}
	}
	if err := sweep(ctx, p); err != nil {
		return err
	}
	return p.remove()
}

func stop(ctx context.Context, p place, pid int) error {
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("stopping process %d: %w", pid, err)
	}
	gone := func(context.Context) (bool, error) {
		pid, err := p.supervisor()
		return pid == 0, err
	}
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, stopTimeout, true, gone)
	if wait.Interrupted(err) && ctx.Err() == nil {
		return syscall.Kill(pid, syscall.SIGKILL)
	}
	return err
}

// sweep kills the parts that a killed supervisor left behind (where the kernel does
// not), and removes their data. Each part names a file of this place among its
// arguments; that is how it is told from whoever has its process id by now.
func sweep(ctx context.Context, p place) error {
	out, err := exec.CommandContext(ctx, "ps", "-A", "-o", "pid=,command=").Output()
	if err != nil {
		return fmt.Errorf("looking for what was left behind: %w", err)
	}
	var errs []error
	for line := range strings.Lines(string(out)) {
		number, command, _ := strings.Cut(strings.TrimSpace(line), " ")
		pid, err := strconv.Atoi(number)
		if err != nil || !strings.Contains(command, p.clusterDir()+string(filepath.Separator)) || !isPart(command) {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, os.RemoveAll(p.clusterDir()))...)
}

func isPart(command string) bool {
	program, _, _ := strings.Cut(strings.TrimSpace(command), " ")
	switch filepath.Base(program) {
	case "etcd", "kube-apiserver", "kube-controller-manager":
		return true
	}
	return false
}

// status reports on standard output what up would.
func status(_ context.Context, p place) error {
	pid, err := p.supervisor()
	if err != nil {
		return err
	}
	if pid == 0 {
		return errors.New("no control plane runs here")
	}
	fmt.Printf("running, KUBECONFIG=%s\n", p.kubeconfig())
	return nil
}
