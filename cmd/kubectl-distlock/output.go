package main

import (
	"io"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

const (
	formatWide = "wide"
	formatName = "name"
	none       = "<none>"
)

// output prints objects: as a table where -o names no format or wide, else by
// kubectl's own printers.
type output struct {
	flags     *genericclioptions.PrintFlags
	noHeaders bool
}

func newOutput() *output {
	return &output{flags: genericclioptions.NewPrintFlags("").WithTypeSetter(scheme)}
}

func (o *output) addFlags(cmd *cobra.Command) {
	o.flags.AddFlags(cmd)
	flag := cmd.Flag("output")
	flag.Usage += " Or wide."
	cmd.Flags().BoolVar(&o.noHeaders, "no-headers", false, "Print the table without its header.")
	formats := append(o.flags.AllowedFormats(), formatWide)
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

// format is what -o says; empty for the table.
func (o *output) format() string { return *o.flags.OutputFormat }

func (o *output) isTable() bool { return o.format() == "" || o.format() == formatWide }

// table is a printer of metav1.Tables. One printer prints its header once.
func (o *output) table(withNamespace bool) printers.ResourcePrinter {
	return printers.NewTablePrinter(printers.PrintOptions{
		WithNamespace: withNamespace, Wide: o.format() == formatWide, NoHeaders: o.noHeaders,
	})
}

// printer prints objects as -o says, where that is no table.
func (o *output) printer() (printers.ResourcePrinter, error) {
	p, err := o.flags.ToPrinter()
	if err != nil {
		return nil, usageError("-o: %w", err)
	}
	return p, nil
}

// printList prints a list as one object, or for -o name the names in it.
func (o *output) printList(list client.ObjectList, items []client.Object, w io.Writer) error {
	p, err := o.printer()
	if err != nil {
		return err
	}
	if o.format() != formatName {
		for _, item := range items {
			if err := setKind(item); err != nil {
				return err
			}
		}
		return p.PrintObj(list, w)
	}
	for _, item := range items {
		if err := p.PrintObj(item, w); err != nil {
			return err
		}
	}
	return nil
}

// setKind writes into an object what it is, which is lost when it is read.
func setKind(o runtime.Object) error {
	gvk, err := apiutil.GVKForObject(o, scheme)
	if err != nil {
		return err
	}
	o.GetObjectKind().SetGroupVersionKind(gvk)
	return nil
}

// column is one of a table's; a wide one shows with -o wide only.
func column(name, kind string, wide bool) metav1.TableColumnDefinition {
	c := metav1.TableColumnDefinition{Name: name, Type: kind}
	if name == "Name" {
		c.Format = "name"
	}
	if wide {
		c.Priority = 1
	}
	return c
}

func row(o runtime.Object, cells ...any) metav1.TableRow {
	return metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Object: o}}
}

// ago is how long since, as kubectl says it; by this machine's clock.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return none
	}
	return duration.HumanDuration(now.Sub(t))
}

// inOrAgo is when something was or will be.
func inOrAgo(now, t time.Time) string {
	if left := t.Sub(now); left > 0 {
		return "in " + duration.HumanDuration(left)
	}
	return duration.HumanDuration(now.Sub(t)) + " ago"
}

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}
