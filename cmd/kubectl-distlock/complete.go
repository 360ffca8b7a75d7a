package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// completionTime is how long the shell may be kept waiting.
const completionTime = 3 * time.Second

const noFiles = cobra.ShellCompDirectiveNoFileComp

type completion = func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective)

// complete makes a completion of what finds all there is; errors complete
// nothing.
func (p *plugin) complete(find func(ctx context.Context, c *cluster, args []string) ([]string, error)) completion {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		c, err := p.connect()
		if err != nil {
			return nil, noFiles
		}
		all, err := find(ctx, c, args)
		if err != nil {
			return nil, noFiles
		}
		return slices.DeleteFunc(all, func(s string) bool {
			return !strings.HasPrefix(s, begun) || slices.Contains(args, s)
		}), noFiles
	}
}

// completeLocks completes up to so many names of locks; -1: any number.
func (p *plugin) completeLocks(most int) completion {
	return p.complete(func(ctx context.Context, c *cluster, args []string) ([]string, error) {
		if most >= 0 && len(args) >= most {
			return nil, nil
		}
		return c.namesOf(ctx, &v1alpha1.DistLockList{})
	})
}

// completeOwners completes a lock and one of its holders.
func (p *plugin) completeOwners(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return p.complete(func(ctx context.Context, c *cluster, args []string) ([]string, error) {
		switch len(args) {
		case 0:
			return c.namesOf(ctx, &v1alpha1.DistLockList{})
		case 1:
			l, err := c.lock(ctx, args[0])
			if err != nil {
				return nil, err
			}
			var all []string
			for _, h := range l.Status.Holders {
				all = append(all, behind(h.Owner, h.Ref))
			}
			return all, nil
		}
		return nil, nil
	})(cmd, args, begun)
}

// completeClaims completes the claims that acquire made.
func (p *plugin) completeClaims(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return p.complete(func(ctx context.Context, c *cluster, args []string) ([]string, error) {
		if len(args) > 0 {
			return nil, nil
		}
		claims, err := c.claims(ctx, client.InNamespace(c.namespace))
		var all []string
		for i := range claims {
			if claims[i].Annotations[attemptAnnotation] != "" {
				all = append(all, claims[i].Name)
			}
		}
		return all, err
	})(cmd, args, begun)
}

// completeWaiting completes the Jobs that wait.
func (p *plugin) completeWaiting(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return p.complete(func(ctx context.Context, c *cluster, _ []string) ([]string, error) {
		jobs, err := c.waitingJobs(ctx, client.InNamespace(c.namespace))
		var all []string
		for i := range jobs {
			all = append(all, jobs[i].Name)
		}
		return all, err
	})(cmd, args, begun)
}

// completeGlobalFlags completes namespaces, contexts and the like.
func (p *plugin) completeGlobalFlags(root *cobra.Command) {
	_ = root.RegisterFlagCompletionFunc("namespace", p.complete(func(ctx context.Context, c *cluster, _ []string) ([]string, error) {
		c.namespace = ""
		return c.namesOf(ctx, &corev1.NamespaceList{})
	}))
	for flag, names := range map[string]func(clientcmdapi.Config) []string{
		"context": func(c clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.Contexts)) },
		"cluster": func(c clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.Clusters)) },
		"user":    func(c clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.AuthInfos)) },
	} {
		_ = root.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			config, err := p.flags.ToRawKubeConfigLoader().RawConfig()
			if err != nil {
				return nil, noFiles
			}
			return names(config), noFiles
		})
	}
}

// namesOf are the names in a list of the namespace.
func (c *cluster) namesOf(ctx context.Context, list client.ObjectList) ([]string, error) {
	if err := c.List(ctx, list, client.InNamespace(c.namespace)); err != nil {
		return nil, err
	}
	var all []string
	err := meta.EachListItem(list, func(o runtime.Object) error {
		all = append(all, o.(client.Object).GetName())
		return nil
	})
	return all, err
}
