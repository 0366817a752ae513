package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/cmd/program"
	"github.com/concord-dev/concord/status"
)

func newHistoryCommand(p *plugin) *cobra.Command {
	var o outputOptions
	cmd := &cobra.Command{
		Use:   "history RESOURCE",
		Short: "Show the latest finished migrations of a resource",
		Long: fmt.Sprintf(`Show the latest finished migrations of a resource, the newest first: when each one ended, from
and to which encodings it migrated, the number of objects, the duration, who asked for it, and
what failed. The StorageState of a resource keeps the last %d.`, migrationv1alpha1.MaxHistory),
		Example: "  kubectl concord history widgets.example.com",
		Args:    exactly("RESOURCE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.history(cmd.Context(), cmd.OutOrStdout(), args[0], o.output)
		},
	}
	o.add(cmd)
	return cmd
}

func (p *plugin) history(ctx context.Context, out io.Writer, name, output string) error {
	_, o, gr, err := p.lookAt(ctx, name)
	if err != nil {
		return err
	}
	past := pastOf(o, gr)
	if output == "json" {
		return program.PrintJSON(out, past)
	}
	_, err = io.WriteString(out, historyTable(gr, past))
	return err
}

// pastOf returns the finished migrations of a resource: those in its StorageState's history, and those that still
// exist. Until the history has a migration, the stored set still has the encodings that objects might have had when
// that migration began.
func pastOf(o status.Observed, gr schema.GroupResource) []migrationv1alpha1.Past {
	past, stored := []migrationv1alpha1.Past{}, []agree.Encoding(nil)
	for i := range o.States {
		if s := &o.States[i]; s.Name == migrationv1alpha1.StateName(gr) {
			past = append(past, migrationv1alpha1.History(s.Annotations)...)
			stored = migrationv1alpha1.ViewState(s).Stored
		}
	}
	for i := range o.Migrations {
		m := &o.Migrations[i]
		if p, ended := migrationv1alpha1.PastOf(m, stored); ended && migrationv1alpha1.Resource(m) == gr {
			past = migrationv1alpha1.Merged(past, p)
		}
	}
	return past
}

// historyTable has a line for each migration, and under it the encodings that it was from and to,
// and what failed: encodings are too long to stand beside the rest.
func historyTable(gr schema.GroupResource, past []migrationv1alpha1.Past) string {
	if len(past) == 0 {
		return fmt.Sprintf("%s: no migration that has ended is remembered\n", gr)
	}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ENDED (UTC)\tRESULT\tOBJECTS\tFAILED\tTOOK\tASKED FOR BY")
	for _, p := range past {
		took := "<1s"
		if p.Took() >= time.Second {
			took = duration.HumanDuration(p.Took())
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\n", p.Ended.UTC().Format(time.DateTime), p.Result, p.Objects, p.Failed, took, cmp.Or(p.Made, "-"))
	}
	_ = w.Flush() // a strings.Builder takes everything
	lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	out := lines[0] + "\n"
	for i, p := range past {
		out += lines[i+1] + "\n"
		if p.To != "" {
			out += indented(fromTo(p))
		}
		if p.User != "" {
			out += indented("user " + p.User)
		}
		if p.Result != string(migrationv1alpha1.MigrationSucceeded) {
			reason := p.Reason
			if len(p.Failures) > 0 {
				reason += ": " + strings.Join(p.Failures, ", ")
			}
			out += indented(reason)
		}
	}
	return out
}

// fromTo names the encodings that a migration was from and to, with the keys that they are encrypted with only where
// a version stays the same.
func fromTo(p migrationv1alpha1.Past) string {
	to, keys := agree.Encoding(p.To), false
	for _, e := range p.From {
		keys = keys || agree.Encoding(e).Plain() == to.Plain()
	}
	name := func(e string) string {
		if keys {
			return e
		}
		return string(agree.Encoding(e).Plain())
	}
	var from []string
	for _, e := range p.From {
		from = append(from, name(e))
	}
	if len(from) == 0 {
		return "to " + name(p.To)
	}
	return "from " + strings.Join(from, ", ") + " to " + name(p.To)
}
