// Package cluster starts a Kubernetes control plane on loopback for tests, for the
// demo and for `make up`: etcd, kube-apiserver and kube-controller-manager as child
// processes, and in place of a node the pod runner of package podrunner.
//
// Why not controller-runtime's envtest: it starts no kube-controller-manager, so no
// Job gets a pod and no object is garbage collected; none of its parts can be
// killed, paused or restarted alone; and its children outlive a test that was
// killed. The folder of binaries (package assets) serves envtest too.
//
// The parts act as in a cluster made with kubeadm: the controllers under their own
// service accounts, the pod runner as system:node and system:kube-scheduler, so
// that RBAC and admission policies meet the identities they will meet in earnest.
// Only the ServiceAccount admission plugin is off: pods need no service account and
// get no token.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/distlock-dev/distlock/hack/assets"
	"github.com/distlock-dev/distlock/hack/podrunner"
)

// NodeName is the name of the one node.
const NodeName = "local"

// Options of Start. The zero value starts everything.
type Options struct {
	// Dir holds the data, keys, logs and kubeconfigs. It is made, and may be left
	// over from an earlier cluster, whose data it then goes on with. By default a
	// temporary folder that Stop removes, or the next Start if this process is killed.
	Dir string
	// Assets is the folder of binaries; by default what assets.Find returns.
	Assets string
	// Log gets one line per step; nil discards it. What the parts themselves log is
	// in Dir/logs.
	Log io.Writer

	// EtcdArgs, APIServerArgs and ControllerManagerArgs are appended to the flags,
	// so they override those set here.
	EtcdArgs, APIServerArgs, ControllerManagerArgs []string

	// Fsync makes etcd write as durably as in earnest, and so as slowly.
	Fsync bool
	// NoControllerManager and NoPods leave out a part.
	NoControllerManager, NoPods bool
}

// Cluster is a control plane that is running. Its parts may be stopped, paused and
// started again while it does; ControllerManager and Pods are nil when left out.
type Cluster struct {
	Etcd, APIServer, ControllerManager *Component
	Pods                               *podrunner.Runner

	dir       string
	temporary *temporary // nil when the caller chose dir
	assets    string
	log       io.Writer
	pki       *pki
	port      int // of the API server
	etcdPort  int
	config    *rest.Config
	client    kubernetes.Interface
}

// Start returns when the API server is ready, the controllers work and the node is
// there: after about six seconds. On an error nothing is left running. ctx bounds
// the starting only: the cluster runs until Stop or until this process ends,
// however it ends (on Linux; elsewhere a killed process leaves it running).
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c, err := prepare(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("starting a control plane: %w", err)
	}
	if err := c.start(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("starting a control plane: %w", err), c.Stop())
	}
	return c, nil
}

// prepare makes all that the parts need to start.
func prepare(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{dir: o.Dir, assets: o.Assets, log: o.Log}
	if c.log == nil {
		c.log = io.Discard
	}
	var err error
	if c.assets == "" {
		if c.assets, err = assets.Find(ctx); err != nil {
			return nil, err
		}
	}
	if missing := assets.Missing(c.assets); missing != nil {
		return nil, fmt.Errorf("%s has no %v", c.assets, missing)
	}
	if c.dir == "" {
		if c.temporary, err = newTemporary(); err != nil {
			return nil, err
		}
		c.dir = c.temporary.dir
	}
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return nil, err
	}
	if err := c.prepareIn(ctx, o); err != nil {
		return nil, errors.Join(err, c.temporary.remove())
	}
	return c, nil
}

func (c *Cluster) prepareIn(ctx context.Context, o Options) error {
	for _, sub := range []string{"logs", "pki", "kubeconfigs"} {
		if err := os.MkdirAll(filepath.Join(c.dir, sub), 0o700); err != nil {
			return err
		}
	}
	ports, err := freePorts(ctx, 2)
	if err != nil {
		return err
	}
	c.etcdPort, c.port = ports[0], ports[1]
	if c.pki, err = newPKI(filepath.Join(c.dir, "pki")); err != nil {
		return err
	}
	if c.config, err = c.userConfig("admin", "system:masters"); err != nil {
		return err
	}
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return err
	}
	if err := writeKubeconfig(c.Kubeconfig(), c.config, ""); err != nil {
		return err
	}
	c.Etcd = c.etcd(o)
	c.APIServer = c.apiServer(o)
	if o.NoControllerManager {
		return nil
	}
	c.ControllerManager, err = c.controllerManager(o)
	return err
}

func (c *Cluster) start(ctx context.Context, o Options) error {
	for _, component := range []*Component{c.Etcd, c.APIServer, c.ControllerManager} {
		if component == nil {
			continue
		}
		_, _ = fmt.Fprintf(c.log, "starting %s\n", component.Name)
		if err := component.Start(ctx); err != nil {
			return err
		}
	}
	if !o.NoPods {
		_, _ = fmt.Fprintf(c.log, "starting the pod runner\n")
		if err := c.startPods(ctx); err != nil {
			return err
		}
	}
	_, _ = fmt.Fprintf(c.log, "ready: %s\n", c.config.Host)
	return nil
}

func (c *Cluster) startPods(ctx context.Context) error {
	kubelet, err := c.userConfig("system:node:"+NodeName, "system:nodes")
	if err != nil {
		return err
	}
	scheduler, err := c.userConfig("system:kube-scheduler")
	if err != nil {
		return err
	}
	c.Pods, err = podrunner.Start(ctx, podrunner.Options{
		Kubelet: kubelet, Scheduler: scheduler, NodeName: NodeName, Dir: filepath.Join(c.dir, "pods"),
	})
	return err
}

// Stop ends everything, the API server before etcd, and removes a temporary folder.
// Pods' processes are killed: their objects stay as they are in etcd. The second
// call does nothing.
func (c *Cluster) Stop() error {
	if c.Pods != nil {
		c.Pods.Stop()
	}
	for _, component := range []*Component{c.ControllerManager, c.APIServer, c.Etcd} {
		if component != nil {
			component.Stop()
		}
	}
	return c.temporary.remove()
}

// Wait returns when ctx ends, with nil, or when a part ends by itself, with an error
// that names it.
func (c *Cluster) Wait(ctx context.Context) error {
	ended := make(chan string, 3)
	for _, component := range []*Component{c.Etcd, c.APIServer, c.ControllerManager} {
		if component != nil {
			go func() {
				<-component.child.Done()
				ended <- component.Name
			}()
		}
	}
	select {
	case <-ctx.Done():
		return nil
	case name := <-ended:
		return fmt.Errorf("%s has ended by itself; its log is in %s", name, filepath.Join(c.dir, "logs"))
	}
}

// Dir is the folder of data, keys, logs and kubeconfigs.
func (c *Cluster) Dir() string { return c.dir }

// server is the address of the API server.
func (c *Cluster) server() string {
	return "https://" + net.JoinHostPort(loopback, strconv.Itoa(c.port))
}
