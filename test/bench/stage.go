package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/hack/assets"
	"github.com/distlock-dev/distlock/hack/cluster"
	"github.com/distlock-dev/distlock/hack/process"
	"github.com/distlock-dev/distlock/test/env"
)

const (
	// program is the controller's file name, and so how its requests name it.
	program = "manager"
	// grace is what the controller gets to stop in order.
	grace = 10 * time.Second
)

// stage is a control plane with DistLock installed, its controller running, and a
// namespace to play in.
type stage struct {
	*env.Env
	controller *process.Process
	namespace  string
}

func newStage(ctx context.Context, dir string) (*stage, error) {
	folder, err := assets.Ensure(ctx, assets.Options{Log: os.Stderr})
	if err != nil {
		return nil, err
	}
	s := &stage{}
	if s.Env, err = env.Start(ctx, func(o *cluster.Options) {
		o.Dir, o.Assets, o.Log = dir, folder, os.Stderr
		o.APIServerArgs = append(o.APIServerArgs, requestLogArgs...)
	}); err != nil {
		return nil, err
	}
	if err := s.setUp(ctx); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *stage) setUp(ctx context.Context) (err error) {
	if s.namespace, err = s.newNamespace(ctx, "bench"); err != nil {
		return err
	}
	if err := s.buildController(ctx); err != nil {
		return err
	}
	return s.startController(ctx)
}

func (s *stage) buildController(ctx context.Context) error {
	tree, err := assets.Root()
	if err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", s.controllerPath(), ".")
	build.Dir, build.Env = tree, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the controller: %w\n%s", err, out)
	}
	return nil
}

// startController starts the controller as config/manager does. That it works is
// seen by what it does.
func (s *stage) startController(ctx context.Context) error {
	kubeconfig, err := s.ServiceAccountKubeconfig(ctx, v1alpha1.ControllerNamespace, v1alpha1.ControllerServiceAccount)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(s.controllerLog(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(s.controllerPath(), "--leader-elect", "--health-probe-bind-address=0") //nolint:noctx // package process ends it
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	s.controller, err = process.Start(cmd)
	return err
}

// restartController puts a new process in the controller's place.
func (s *stage) restartController(ctx context.Context) error {
	s.controller.Stop(grace)
	return s.startController(ctx)
}

func (s *stage) stop() error {
	if s.controller != nil {
		s.controller.Stop(grace)
	}
	return s.Stop()
}

func (s *stage) controllerPath() string { return filepath.Join(s.Dir(), program) }

func (s *stage) controllerLog() string { return filepath.Join(s.Dir(), "logs", program+".log") }

// controllerLogTail is the last ten lines of what the controller said.
func (s *stage) controllerLogTail() string {
	content, err := os.ReadFile(s.controllerLog())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
