package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// shownEvents is how many of a lock's events are described, the latest.
const shownEvents = 15

type describeOptions struct {
	*plugin
	showEvents bool
}

func (p *plugin) describeCommand() *cobra.Command {
	o := &describeOptions{plugin: p}
	cmd := &cobra.Command{
		Use:   "describe NAME...",
		Short: "Show a lock's holders, its whole queue with places, and its recent events",
		Long: `Show a lock's holders, its whole queue with places, and its recent events.

The lock stores the first 32 that wait, in order. Behind them stand the Jobs and claims for which it has no room there, as
they came; of those that came in the same second the controller may have seen another one first.`,
		Example: examples(`
			kubectl distlock describe ledger
			kubectl distlock describe ledger --show-events=false`),
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: p.completeLocks(-1),
		RunE:              p.verb(o.run),
	}
	cmd.Flags().BoolVar(&o.showEvents, "show-events", true, "Show the recent events of the lock and of its Jobs.")
	return cmd
}

func (o *describeOptions) run(ctx context.Context, names []string) error {
	c, err := o.connect()
	if err != nil {
		return err
	}
	for i, name := range names {
		if i > 0 {
			_, _ = fmt.Fprintln(o.Out)
		}
		if err := o.describe(ctx, c, name); err != nil {
			return err
		}
	}
	return nil
}

func (o *describeOptions) describe(ctx context.Context, c *cluster, name string) error {
	l, err := c.lock(ctx, name)
	if err != nil {
		return err
	}
	jobs, err := c.gatedJobs(ctx, client.InNamespace(c.namespace))
	if err != nil {
		return err
	}
	claims, err := c.claims(ctx, client.InNamespace(c.namespace), client.MatchingFields{"spec.lockName": name})
	if err != nil {
		return err
	}
	now := time.Now()
	w := printers.GetNewTabWriter(o.Out)
	describeSpec(w, now, l)
	describeHolders(w, now, l)
	line, impossible := lineOf(l, jobs, claims)
	describeQueue(w, now, line, impossible)
	if o.showEvents {
		events, err := c.eventsOf(ctx, l)
		describeEvents(w, now, events, err)
	}
	return w.Flush()
}

func describeSpec(w io.Writer, now time.Time, l *v1alpha1.DistLock) {
	field := func(name string, value any) { _, _ = fmt.Fprintf(w, "%s:\t%v\n", name, value) }
	field("Name", l.Name)
	field("Namespace", l.Namespace)
	field("Age", ago(now, l.CreationTimestamp.Time))
	field("Fencing Token", l.Status.FencingToken)
	field("Permits", permits(l))
	field("Lease", seconds(cmp.Or(l.Spec.LeaseDurationSeconds, v1alpha1.DefaultLeaseSeconds)))
	if l.Spec.MinHoldSeconds > 0 {
		field("Min Hold", seconds(l.Spec.MinHoldSeconds))
	}
	if l.Spec.MaxHoldSeconds != nil {
		field("Max Hold", seconds(*l.Spec.MaxHoldSeconds))
	}
	if l.Spec.LockDelaySeconds > 0 {
		field("Lock Delay", seconds(l.Spec.LockDelaySeconds))
	}
	if l.Status.ClosedSeconds > 0 {
		field("Closed", "for up to "+seconds(l.Status.ClosedSeconds))
	}
	if l.DeletionTimestamp != nil {
		field("Deleted", "yes: nobody is granted it any more")
	}
}

func seconds(n int32) string { return (time.Duration(n) * time.Second).String() }

func describeHolders(w io.Writer, now time.Time, l *v1alpha1.DistLock) {
	if len(l.Status.Holders) == 0 {
		_, _ = fmt.Fprintf(w, "Holders:\t%s\n", none)
		return
	}
	rows := make([][]string, 0, len(l.Status.Holders))
	for _, h := range l.Status.Holders {
		rows = append(rows, []string{
			behind(h.Owner, h.Ref), mode(h.Mode, h.Permits), fmt.Sprint(h.FencingToken), ago(now, h.AcquireTime.Time),
			expiry(now, h), revoked(now, h), h.Owner,
		})
	}
	section(w, "Holders:", []string{"Holder", "Mode", "Token", "Age", "Expires", "Revoked", "Owner"}, rows)
}

func mode(m v1alpha1.Mode, permits int32) string {
	if m == v1alpha1.Shared && permits != 1 {
		return fmt.Sprintf("%s (%d permits)", m, permits)
	}
	return string(m)
}

func describeQueue(w io.Writer, now time.Time, line, impossible []waiter) {
	if len(line) == 0 && len(impossible) == 0 {
		_, _ = fmt.Fprintf(w, "Queue:\t%s\n", none)
		return
	}
	rows := make([][]string, 0, len(line)+len(impossible))
	add := func(place, note string, x waiter) {
		rows = append(rows, []string{place, behind(x.Owner, x.Ref), mode(x.Mode, x.Permits), ago(now, x.since), note})
	}
	for i, x := range line {
		add(fmt.Sprint(i+1), "", x)
	}
	for _, x := range impossible {
		add("-", "asks for more permits than the lock has", x)
	}
	section(w, fmt.Sprintf("Queue:\t%d waiting", len(line)), []string{"Place", "Waiter", "Mode", "Waits", ""}, rows)
}

// section writes a table under a title, as kubectl describe does.
func section(w io.Writer, title string, header []string, rows [][]string) {
	_, _ = fmt.Fprintln(w, title)
	under := make([]string, len(header))
	for i, h := range header {
		under[i] = strings.Repeat("-", len(h))
	}
	for _, r := range append([][]string{header, under}, rows...) {
		_, _ = fmt.Fprintln(w, strings.TrimRight("  "+strings.Join(r, "\t"), "\t"))
	}
}

// eventsOf are the events of a lock and those of its Jobs that are about it, the
// latest last.
func (c *cluster) eventsOf(ctx context.Context, l *v1alpha1.DistLock) ([]corev1.Event, error) {
	list := &corev1.EventList{}
	err := c.List(ctx, list, client.InNamespace(l.Namespace), client.MatchingFields{"source": v1alpha1.ControllerServiceAccount})
	if err != nil {
		return nil, err
	}
	about := slices.DeleteFunc(list.Items, func(e corev1.Event) bool {
		return e.InvolvedObject.UID != l.UID && (e.Related == nil || e.Related.UID != l.UID)
	})
	slices.SortStableFunc(about, func(a, b corev1.Event) int { return lastSeen(a).Compare(lastSeen(b)) })
	return about[max(len(about)-shownEvents, 0):], nil
}

// lastSeen is when an event happened last, in whichever of its fields that is.
func lastSeen(e corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	}
	return e.EventTime.Time
}

func describeEvents(w io.Writer, now time.Time, events []corev1.Event, err error) {
	if err != nil {
		_, _ = fmt.Fprintf(w, "Events:\tcannot be read: %v\n", err)
		return
	}
	if len(events) == 0 {
		_, _ = fmt.Fprintf(w, "Events:\t%s\n", none)
		return
	}
	rows := make([][]string, 0, len(events))
	for _, e := range events {
		on := e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name
		rows = append(rows, []string{e.Type, e.Reason, ago(now, lastSeen(e)), on, e.Message})
	}
	section(w, "Events:", []string{"Type", "Reason", "Age", "Object", "Message"}, rows)
}
