package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// controllers are those of kube-controller-manager that somebody here needs: Jobs
// and CronJobs, deletion, and what gives RBAC and policies their effect.
var controllers = []string{
	"clusterrole-aggregation-controller",
	"cronjob-controller",
	"garbage-collector-controller",
	"job-controller",
	"namespace-controller",
	"pod-garbage-collector-controller",
	"serviceaccount-controller",
	"ttl-after-finished-controller",
	"validatingadmissionpolicy-status-controller",
}

func (c *Cluster) component(name string, ready func(context.Context) error, args ...[]string) *Component {
	part := &Component{
		Name: name, ready: ready,
		path:    filepath.Join(c.assets, name),
		LogFile: filepath.Join(c.dir, "logs", name+".log"),
	}
	for _, more := range args {
		part.args = append(part.args, more...)
	}
	return part
}

func (c *Cluster) etcd(o Options) *Component {
	url := c.EtcdURL()
	args := []string{
		"--data-dir=" + filepath.Join(c.dir, "etcd"),
		"--listen-client-urls=" + url,
		"--advertise-client-urls=" + url,
		"--listen-peer-urls=http://" + loopback + ":0", // it is alone
		"--log-level=warn",
	}
	if !o.Fsync {
		args = append(args, "--unsafe-no-fsync")
	}
	ready := func(ctx context.Context) error { return isHealthy(ctx, url+"/health") }
	return c.component("etcd", ready, args, o.EtcdArgs)
}

// EtcdURL is where etcd is, which asks for no credentials.
func (c *Cluster) EtcdURL() string {
	return "http://" + net.JoinHostPort(loopback, strconv.Itoa(c.etcdPort))
}

func (c *Cluster) apiServer(o Options) *Component {
	args := []string{
		"--etcd-servers=" + c.EtcdURL(),
		"--bind-address=" + loopback,
		fmt.Sprintf("--secure-port=%d", c.port),
		"--tls-cert-file=" + c.pki.serverCertFile(),
		"--tls-private-key-file=" + c.pki.serverKeyFile(),
		"--client-ca-file=" + c.pki.caFile(),
		"--authorization-mode=Node,RBAC",
		"--disable-admission-plugins=ServiceAccount",
		"--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.pki.serviceAccountsFile(),
		"--service-account-signing-key-file=" + c.pki.serviceAccountsFile(),
		"--service-cluster-ip-range=10.96.0.0/16",
		"--endpoint-reconciler-type=none", // nobody reaches it by a Service
		"--kubelet-preferred-address-types=InternalIP",
	}
	return c.component("kube-apiserver", c.apiServerReady, args, o.APIServerArgs)
}

func (c *Cluster) apiServerReady(ctx context.Context) error {
	return c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

func (c *Cluster) controllerManager(o Options) (*Component, error) {
	config, err := c.userConfig("system:kube-controller-manager")
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(c.dir, "kubeconfigs", "kube-controller-manager")
	if err := writeKubeconfig(kubeconfig, config, ""); err != nil {
		return nil, err
	}
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--controllers=" + strings.Join(controllers, ","),
		"--use-service-account-credentials",
		"--service-account-private-key-file=" + c.pki.serviceAccountsFile(),
		"--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=500", "--kube-api-burst=1000", // 20 and 30 make hundreds of Jobs wait
	}
	return c.component("kube-controller-manager", c.controllersWork, args, o.ControllerManagerArgs), nil
}

// controllersWork asks for a thing that controllers make: they have no health
// endpoint without a port of their own.
func (c *Cluster) controllersWork(ctx context.Context) error {
	_, err := c.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}

func isHealthy(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	if err := response.Body.Close(); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}
