package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
)

// tokenLifetime of service account tokens; nothing here runs longer.
const tokenLifetime = 24 * time.Hour

// Config returns a new copy of the admin's configuration, without a rate limit.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Kubeconfig is the path of the admin's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// ServiceAccountConfig returns a configuration that acts as a service account,
// which must be there, for a day.
func (c *Cluster) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(int64(tokenLifetime.Seconds())),
	}}
	token, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("a token of service account %s/%s: %w", namespace, name, err)
	}
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken = token.Status.Token
	return config, nil
}

// ServiceAccountKubeconfig returns the path of a kubeconfig that does what
// ServiceAccountConfig does. Its current namespace is the service account's.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	config, err := c.ServiceAccountConfig(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.dir, "kubeconfigs", namespace+"_"+name)
	return path, writeKubeconfig(path, config, namespace)
}

// Kubectl runs the kubectl of the assets as the admin and returns its standard
// output. The error of a failed one holds its standard error.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) ([]byte, error) {
	return c.kubectl(ctx, nil, args...)
}

func (c *Cluster) kubectl(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	flags := []string{"--kubeconfig", c.Kubeconfig(), "--cache-dir", filepath.Join(c.dir, "kubectl-cache")}
	cmd := exec.CommandContext(ctx, filepath.Join(c.assets, "kubectl"), append(flags, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.Bytes(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// userConfig returns a configuration that acts as a user with a client certificate.
func (c *Cluster) userConfig(user string, groups ...string) (*rest.Config, error) {
	certPEM, keyPEM, err := c.pki.client(user, groups...)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:            c.server(),
		TLSClientConfig: rest.TLSClientConfig{CAData: c.pki.caPEM(), CertData: certPEM, KeyData: keyPEM},
		QPS:             -1,
	}, nil
}

// writeKubeconfig writes config as a kubeconfig that needs no other file.
func writeKubeconfig(path string, config *rest.Config, namespace string) error {
	const name = "distlock-local"
	k := clientcmdapi.NewConfig()
	k.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	k.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken,
	}
	k.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: namespace}
	k.CurrentContext = name
	content, err := clientcmd.Write(*k)
	if err != nil {
		return fmt.Errorf("a kubeconfig: %w", err)
	}
	return os.WriteFile(path, content, 0o600)
}
