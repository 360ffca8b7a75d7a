package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/distlock-dev/distlock/hack/process"
)

// replica is one process of the controller.
type replica struct {
	number int
	log    string
	proc   *process.Process
}

func startReplica(ctx context.Context, number int, binary, kubeconfig, dir string) (*replica, error) {
	r := &replica{number: number, log: filepath.Join(dir, fmt.Sprintf("controller-%d.log", number))}
	log, err := os.Create(r.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process has its own
	cmd := exec.CommandContext(ctx, binary, "--leader-elect", "--health-probe-bind-address=0")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	r.proc, err = process.Start(cmd)
	return r, err
}

// leads reports whether this replica acts: it started its workers and still runs.
func (r *replica) leads() bool {
	log, err := os.ReadFile(r.log)
	return err == nil && !r.proc.Exited() && bytes.Contains(log, []byte("Starting workers"))
}

// kill is kill -9.
func (r *replica) kill() {
	r.proc.Kill()
	<-r.proc.Done()
}

func (r *replica) stop() { r.proc.Stop(10 * time.Second) }

// leader waits until one replica leads.
func (d *demo) leader(ctx context.Context) (*replica, error) {
	var leader *replica
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		for _, r := range d.replicas {
			if r.leads() {
				leader = r
			}
		}
		return leader != nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("no replica of the controller leads: %w", err)
	}
	return leader, nil
}
