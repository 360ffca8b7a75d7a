package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

type waitingOptions struct {
	*plugin
	out           *output
	allNamespaces bool
	resume        bool
	all           bool
}

func (p *plugin) waitingCommand() *cobra.Command {
	o := &waitingOptions{plugin: p, out: newOutput()}
	cmd := &cobra.Command{
		Use:   "waiting [JOB...]",
		Short: "List the Jobs that wait for locks, and start them after an uninstall",
		Long: `List the Jobs that wait for locks: of which, since when, and at which place.

With --resume, after DistLock was uninstalled: start the Jobs that it left suspended, which nobody else does. They all run at
once, without a lock, and their DISTLOCK_FENCING_TOKEN is empty. It is refused while DistLock is there, and the API server
refuses it too while the policies are.`,
		Example: examples(`
			kubectl distlock waiting -A
			# After an uninstall: look, then start two of them, or all
			kubectl distlock waiting -A
			kubectl distlock waiting --resume -n reports nightly-29381 weekly-112
			kubectl distlock waiting --resume --all -A`),
		ValidArgsFunction: p.completeWaiting,
		RunE:              p.verb(o.run),
	}
	o.out.addFlags(cmd)
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "The Jobs of all namespaces.")
	cmd.Flags().BoolVar(&o.resume, "resume", false, "After an uninstall: start the Jobs that are named, or --all.")
	cmd.Flags().BoolVar(&o.all, "all", false, "With --resume: all of those that are listed without it.")
	return cmd
}

func (o *waitingOptions) run(ctx context.Context, names []string) error {
	if err := o.check(names); err != nil {
		return err
	}
	c, err := o.connect()
	if err != nil {
		return err
	}
	if o.resume {
		if err := o.refuseWhileInstalled(ctx, c); err != nil {
			return err
		}
	}
	jobs, err := c.waitingJobs(ctx, c.in(o.allNamespaces))
	if err != nil {
		return err
	}
	if len(names) > 0 {
		if jobs, err = named(jobs, names, c.namespace); err != nil {
			return err
		}
	}
	if o.resume {
		return o.resumeAll(ctx, c, jobs)
	}
	return o.print(ctx, c, jobs)
}

func (o *waitingOptions) check(names []string) error {
	switch {
	case o.all && !o.resume:
		return usageError("--all: goes with --resume; without it all are listed anyway")
	case o.resume && o.all == (len(names) > 0):
		return usageError("JOB: name the Jobs to resume, or give --all")
	case o.allNamespaces && len(names) > 0:
		return usageError("--all-namespaces: not together with the names of Jobs: name their namespace with -n")
	}
	return nil
}

// waitingJobs are the gated Jobs that are suspended and not finished.
func (c *cluster) waitingJobs(ctx context.Context, where client.InNamespace) ([]batchv1.Job, error) {
	jobs, err := c.gatedJobs(ctx, where)
	return slices.DeleteFunc(jobs, func(j batchv1.Job) bool { return !ptr.Deref(j.Spec.Suspend, false) || !jobWaits(&j) }), err
}

func named(jobs []batchv1.Job, names []string, namespace string) ([]batchv1.Job, error) {
	var found []batchv1.Job
	for _, name := range names {
		i := slices.IndexFunc(jobs, func(j batchv1.Job) bool { return j.Name == name })
		if i < 0 {
			return nil, exitWith(exitFailed, "JOB: no Job %q waits in namespace %q: kubectl distlock waiting -A lists those that do", name, namespace)
		}
		found = append(found, jobs[i])
	}
	return found, nil
}

func (o *waitingOptions) print(ctx context.Context, c *cluster, jobs []batchv1.Job) error {
	if !o.out.isTable() {
		return o.out.printList(&batchv1.JobList{Items: jobs}, objects(jobs), o.Out)
	}
	if len(jobs) == 0 {
		o.say("no Jobs wait for a lock here; look elsewhere with -n or -A")
		return nil
	}
	places, err := c.places(ctx, c.in(o.allNamespaces))
	if err != nil {
		return err
	}
	t := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		column("Name", "string", false), column("Lock", "string", false), column("Place", "string", false),
		column("Waits", "string", false), column("Holder", "string", false), column("Age", "string", true),
	}}
	now := time.Now()
	for i := range jobs {
		j := &jobs[i]
		p := places[jobOwner(j)]
		t.Rows = append(t.Rows, row(j, j.Name, j.Annotations[v1alpha1.LockAnnotation], orNone(p.place), ago(now, jobSince(j)),
			orNone(p.holder), ago(now, j.CreationTimestamp.Time)))
	}
	return o.out.table(o.allNamespaces).PrintObj(t, o.Out)
}

type place struct{ place, holder string }

// places are those of all waiters, by owner; none where DistLock is not
// installed.
func (c *cluster) places(ctx context.Context, where client.InNamespace) (map[string]place, error) {
	locks := &v1alpha1.DistLockList{}
	err := c.List(ctx, locks, where)
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	jobs, err := c.gatedJobs(ctx, where)
	if err != nil {
		return nil, err
	}
	claims, err := c.claims(ctx, where)
	if err != nil {
		return nil, err
	}
	jobsOf, claimsOf := map[string][]batchv1.Job{}, map[string][]v1alpha1.LockClaim{}
	for _, j := range jobs {
		key := j.Namespace + "/" + j.Annotations[v1alpha1.LockAnnotation]
		jobsOf[key] = append(jobsOf[key], j)
	}
	for _, cl := range claims {
		key := cl.Namespace + "/" + cl.Spec.LockName
		claimsOf[key] = append(claimsOf[key], cl)
	}
	all := map[string]place{}
	for i := range locks.Items {
		l := &locks.Items[i]
		key := l.Namespace + "/" + l.Name
		line, _ := lineOf(l, jobsOf[key], claimsOf[key])
		for n, w := range line {
			all[w.Owner] = place{fmt.Sprintf("%s/%d", strconv.Itoa(n+1), len(line)), holder(l)}
		}
	}
	return all, nil
}
