package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/hack/assets"
	"github.com/distlock-dev/distlock/hack/cluster"
)

// patience is how long the demo waits for anything but the next minute.
const patience = time.Minute

// demo is the stage.
type demo struct {
	cluster  *cluster.Cluster
	replicas []*replica
	audience *audience
}

// setUp brings up a control plane with DistLock in it, and two replicas of the
// controller.
func setUp(ctx context.Context) (*demo, error) {
	heading("A Kubernetes control plane on this machine, with DistLock in it")
	root, err := assets.Root()
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, cluster.Options{Log: indented{os.Stdout}})
	if err != nil {
		return nil, err
	}
	d := &demo{cluster: c}
	if err := d.install(ctx, root); err != nil {
		return nil, errors.Join(err, d.cleanUp())
	}
	return d, nil
}

func (d *demo) install(ctx context.Context, root string) error {
	if err := d.cluster.Install(ctx, root); err != nil {
		return err
	}
	kept("CRDs, RBAC and policies are in effect")
	binary := filepath.Join(d.cluster.Dir(), "manager")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, ".")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the controller: %w\n%s", err, out)
	}
	kubeconfig, err := d.cluster.ServiceAccountKubeconfig(ctx, v1alpha1.ControllerNamespace, v1alpha1.ControllerServiceAccount)
	if err != nil {
		return err
	}
	for i := range 2 {
		r, err := startReplica(ctx, i+1, binary, kubeconfig, d.cluster.Dir())
		if err != nil {
			return err
		}
		d.replicas = append(d.replicas, r)
	}
	if _, err := d.leader(ctx); err != nil {
		return err
	}
	kept("two replicas of the controller run as %s, and one leads", v1alpha1.ControllerUser)
	d.audience, err = watchPods(ctx, d.cluster.Config())
	return err
}

// cleanUp stops everything and leaves nothing.
func (d *demo) cleanUp() error {
	for _, r := range d.replicas {
		r.stop()
	}
	return d.cluster.Stop()
}

// kubectl shows a command, runs it, and shows what it printed.
func (d *demo) kubectl(ctx context.Context, args ...string) error {
	fmt.Printf(" %s\n", bold("$ kubectl "+strings.Join(quoted(args), " ")))
	out, err := d.cluster.Kubectl(ctx, args...)
	if err == nil && len(out) > 0 {
		fmt.Println(indent(string(out)))
	}
	return err
}

func quoted(args []string) []string {
	shown := make([]string, len(args))
	for i, a := range args {
		if shown[i] = a; strings.ContainsAny(a, " {}'*") {
			shown[i] = "'" + a + "'"
		}
	}
	return shown
}

// apply applies a manifest, without showing more than its result.
func (d *demo) apply(ctx context.Context, manifest string) error {
	file := filepath.Join(d.cluster.Dir(), "manifest.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		return err
	}
	out, err := d.cluster.Kubectl(ctx, "apply", "-f", file)
	if err != nil {
		return err
	}
	fmt.Println(indent(string(out)))
	return nil
}

// indented indents each line that is written in one piece.
type indented struct{ io.Writer }

func (w indented) Write(p []byte) (int, error) {
	if _, err := fmt.Fprintln(w.Writer, indent(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
