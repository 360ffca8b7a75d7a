package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// scheme knows Kubernetes' types and DistLock's.
var scheme = runtime.NewScheme()

func init() {
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
}

// plugin is what all verbs share.
type plugin struct {
	genericiooptions.IOStreams
	flags *genericclioptions.ConfigFlags
	begun bool // the command line was understood, and a verb began
}

func newPlugin(streams genericiooptions.IOStreams) *plugin {
	return &plugin{IOStreams: streams, flags: genericclioptions.NewConfigFlags(true)}
}

// command is kubectl distlock with all its verbs.
func (p *plugin) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "kubectl-distlock",
		Short:         "See, take, revoke and mend DistLocks",
		Long:          "See who holds a DistLock and who waits for it, run a command under one, and mend what went wrong.",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl distlock"},
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(p.In)
	root.SetOut(p.Out)
	root.SetErr(p.ErrOut)
	p.flags.AddFlags(root.PersistentFlags())
	p.completeGlobalFlags(root)
	root.AddCommand(
		p.listCommand(), p.describeCommand(), p.waitingCommand(),
		p.acquireCommand(), p.releaseCommand(), p.runCommand(),
		p.revokeCommand(), p.raiseCommand(),
	)
	return root
}

// verb is the RunE of a verb: an error from here on is not one of usage, unless
// it says so.
func (p *plugin) verb(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		p.begun = true
		return run(cmd.Context(), args)
	}
}

// say writes a line for people, which is no part of the output.
func (p *plugin) say(format string, args ...any) {
	_, _ = fmt.Fprintf(p.ErrOut, "distlock: "+format+"\n", args...)
}

// examples are those of a verb, as the help indents them.
func examples(text string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		b.WriteString("  " + strings.TrimSpace(line) + "\n")
	}
	return strings.TrimRight(b.String(), "\n")
}

// cluster is the API server and the namespace that the flags name.
type cluster struct {
	client.WithWatch
	config    *rest.Config
	namespace string
}

// connect reads the kubeconfig; no request is made yet.
func (p *plugin) connect() (*cluster, error) {
	ctrl.SetLogger(logr.Discard()) // the client's, which has nothing to tell a user
	config, err := p.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 50, 100
	config.UserAgent = "kubectl-distlock/" + version
	config.WarningHandler = rest.NewWarningWriter(p.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	namespace, _, err := p.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	return &cluster{WithWatch: c, config: config, namespace: namespace}, nil
}

func (c *cluster) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: c.namespace, Name: name}
}

// in is where to list: the namespace, or all of them.
func (c *cluster) in(allNamespaces bool) client.InNamespace {
	if allNamespaces {
		return ""
	}
	return client.InNamespace(c.namespace)
}

// lock reads a DistLock; it fails with exitNoLock where there is none.
func (c *cluster) lock(ctx context.Context, name string) (*v1alpha1.DistLock, error) {
	l := &v1alpha1.DistLock{}
	err := c.Get(ctx, c.key(name), l)
	if apierrors.IsNotFound(err) {
		return nil, c.noLock(name)
	}
	return l, err
}

func (c *cluster) noLock(name string) error {
	return exitWith(exitNoLock, "there is no DistLock %q in namespace %q: create it, or name another namespace with -n", name, c.namespace)
}

// lines writes each of some lines.
func lines(w io.Writer, all ...string) error {
	_, err := io.WriteString(w, strings.Join(all, "\n")+"\n")
	return err
}
