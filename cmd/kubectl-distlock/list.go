package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

type listOptions struct {
	*plugin
	out           *output
	allNamespaces bool
	watch         bool
	selector      string
}

func (p *plugin) listCommand() *cobra.Command {
	o := &listOptions{plugin: p, out: newOutput()}
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls", "get"},
		Short:   "List locks: who holds each, since when, and how many wait",
		Example: examples(`
			# The locks of the current namespace
			kubectl distlock list
			# Those of all namespaces, with capacity and owners
			kubectl distlock list -A -o wide
			# Every change from now on
			kubectl distlock list --watch
			# For scripts
			kubectl distlock list -o json`),
		Args: cobra.NoArgs,
		RunE: p.verb(func(ctx context.Context, _ []string) error { return o.run(ctx) }),
	}
	o.out.addFlags(cmd)
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "List the locks of all namespaces.")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "After the list, print each lock again when it changes, until interrupted.")
	cmd.Flags().StringVarP(&o.selector, "selector", "l", "", "List only locks with these labels, such as team=billing.")
	return cmd
}

func (o *listOptions) run(ctx context.Context) error {
	c, err := o.connect()
	if err != nil {
		return err
	}
	selector, err := labels.Parse(o.selector)
	if err != nil {
		return usageError("--selector: %w", err)
	}
	list := &v1alpha1.DistLockList{}
	where := []client.ListOption{c.in(o.allNamespaces), client.MatchingLabelsSelector{Selector: selector}}
	if o.watch {
		return o.follow(ctx, c, list, where)
	}
	if err := c.List(ctx, list, where...); err != nil {
		return err
	}
	if !o.out.isTable() {
		return o.out.printList(list, objects(list.Items), o.Out)
	}
	if len(list.Items) == 0 {
		o.say("no DistLocks found; create one, or look elsewhere with -n or -A")
		return nil
	}
	return o.out.table(o.allNamespaces).PrintObj(locksTable(list.Items), o.Out)
}

// follow prints each lock, and again with each change.
func (o *listOptions) follow(ctx context.Context, c *cluster, list *v1alpha1.DistLockList, where []client.ListOption) error {
	printer := o.out.table(o.allNamespaces)
	if !o.out.isTable() {
		var err error
		if printer, err = o.out.printer(); err != nil {
			return err
		}
	}
	shown := map[string]string{} // versions, by uid
	return versions(ctx, c, list, func(v state) error {
		l, ok := v.object.(*v1alpha1.DistLock)
		if !ok || v.gone || shown[string(l.UID)] == l.ResourceVersion {
			return nil
		}
		shown[string(l.UID)] = l.ResourceVersion
		if o.out.isTable() {
			return printer.PrintObj(locksTable([]v1alpha1.DistLock{*l}), o.Out)
		}
		return printer.PrintObj(l, o.Out)
	}, where...)
}

func locksTable(locks []v1alpha1.DistLock) *metav1.Table {
	t := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		column("Name", "string", false), column("Holder", "string", false), column("Token", "integer", false),
		column("Held", "string", false), column("Expires", "string", false), column("Waiting", "integer", false),
		column("Age", "string", false), column("Permits", "string", true), column("Owners", "string", true),
	}}
	now := time.Now()
	for i := range locks {
		l := &locks[i]
		held, expires := none, none
		if len(l.Status.Holders) > 0 {
			held, expires = ago(now, l.Status.Holders[0].AcquireTime.Time), expiry(now, l.Status.Holders[0])
		}
		t.Rows = append(t.Rows, row(l, l.Name, holder(l), l.Status.FencingToken, held, expires,
			int64(l.Status.Waiting), ago(now, l.CreationTimestamp.Time), permits(l), owners(l)))
	}
	return t
}

// objects are the items of a list as the objects they are.
func objects[T any, P interface {
	*T
	client.Object
}](items []T) []client.Object {
	all := make([]client.Object, len(items))
	for i := range items {
		all[i] = P(&items[i])
	}
	return all
}
