// Command controlplane is etcd, kube-apiserver, kube-controller-manager and
// kubectl in one binary: it runs the one it is called by the name of.
//
// It exists for machines that can reach a Go module proxy and no release
// downloads: the four share most of their packages, so they compile and link
// once. Package hack/assets builds it, stamps the version and makes the links; the
// folder of links serves as KUBEBUILDER_ASSETS.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"

	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(controllermanager.NewControllerManagerCommand()))
	case "kubectl":
		kubectl(cmd.NewDefaultKubectlCommand())
	default:
		fmt.Fprintf(os.Stderr, "controlplane: called as %q; call it as etcd, kube-apiserver, kube-controller-manager or kubectl\n", name)
		os.Exit(2)
	}
}

// kubectl ends as its own main function does: with kubectl's messages and codes.
func kubectl(c *cobra.Command) {
	if err := cli.RunNoErrOutput(c); err != nil {
		util.CheckErr(err)
	}
}
