package migrating

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/status"
)

const (
	// followEvery is the time between two looks at the migrations.
	followEvery = 500 * time.Millisecond
	// patience is how long a cluster may give no answer while migrations are followed.
	patience = time.Minute
)

// follow looks at the migrations until all have ended, and shows them.
func follow(ctx context.Context, cluster client.Client, all []*asked, view *migrateView) error {
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	answered := time.Now()
	for {
		switch err := look(ctx, cluster, all); {
		case ctx.Err() != nil:
			return butGoesOn(errors.New("interrupted"), all)
		case err == nil:
			answered = time.Now()
		case time.Since(answered) > patience:
			return butGoesOn(fmt.Errorf("the cluster gives no answer: %w", err), all)
		}
		view.show(all)
		done := true
		for _, a := range all {
			done = done && a.ended()
		}
		if done {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// look reads those migrations again that have not ended.
func look(ctx context.Context, cluster client.Client, all []*asked) error {
	for _, a := range all {
		if a.ended() {
			continue
		}
		m := &migrationv1alpha1.StorageVersionMigration{}
		err := cluster.Get(ctx, client.ObjectKeyFromObject(a.migration), m)
		switch {
		case storageversion.IsGone(err):
			a.deleted = true
			continue
		case err != nil:
			return err
		case m.UID != a.migration.UID:
			a.deleted = true
			continue
		}
		a.migration, a.waiting = m, ""
		if why := migrationv1alpha1.Waiting(m); why != "" {
			a.waiting = "waiting: " + why
		}
		if len(m.Status.Conditions) > 0 {
			continue
		}
		state := &migrationv1alpha1.StorageState{}
		if err := cluster.Get(ctx, client.ObjectKey{Name: migrationv1alpha1.StateName(a.resource)}, state); err == nil && state.Status.CurrentEncoding == migrationv1alpha1.Unknown {
			a.waiting = "waiting until all servers agree on an encoding"
		}
	}
	return nil
}

// line says how far a migration is.
func (a *asked) line(bar int) string {
	if a.deleted {
		return fmt.Sprintf("%s: cancelled: the migration %s was deleted", a.resource, a.migration.Name)
	}
	m := a.migration
	for _, t := range []migrationv1alpha1.MigrationConditionType{migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.MigrationFailed} {
		if c := migrationv1alpha1.True(m, t); c != nil {
			result := strings.ToLower(string(t))
			if t == migrationv1alpha1.MigrationFailed && migrationv1alpha1.Superseded(c.Reason) {
				result = "superseded"
			}
			return fmt.Sprintf("%s: %s: %s", a.resource, result, c.Message)
		}
	}
	running := migrationv1alpha1.True(m, migrationv1alpha1.MigrationRunning)
	switch {
	case running == nil && m.Spec.Paused:
		return fmt.Sprintf("%s: paused", a.resource)
	case running == nil && a.waiting != "":
		return fmt.Sprintf("%s: %s", a.resource, a.waiting)
	case running == nil:
		return fmt.Sprintf("%s: waiting for a server", a.resource)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s: ", a.resource)
	rewrites := running.Reason == migrationv1alpha1.ReasonRewriting
	if !rewrites {
		fmt.Fprintf(&text, "%s: ", strings.ToLower(running.Reason))
	}
	p := m.Status.Progress
	if p == nil {
		p = &migrationv1alpha1.MigrationProgress{}
	}
	share := status.Fraction(p.Done, p.Total)
	if bar > 0 {
		full := int(share * float64(bar))
		fmt.Fprintf(&text, "[%s%s] ", strings.Repeat("#", full), strings.Repeat(".", bar-full))
	}
	fmt.Fprintf(&text, "%d of %d objects (%.0f %%)", p.Done, p.Total, 100*share)
	if running.Reason == migrationv1alpha1.ReasonRetrying {
		return text.String() + ", " + running.Message
	}
	if rewrites {
		text.WriteString(status.PerSecond(p.ObjectsPerSecond, p.Done))
	}
	if p.Failed > 0 {
		fmt.Fprintf(&text, ", %d cannot be migrated", p.Failed)
	}
	if left := p.Total - p.Done - p.Failed; left > 0 && p.ObjectsPerSecond > 0 && rewrites {
		fmt.Fprintf(&text, ", about %s left", time.Duration(left/p.ObjectsPerSecond+1)*time.Second)
	}
	return text.String()
}

// migrateView shows migrations: redrawn in a terminal, else one line for each change.
type migrateView struct {
	out io.Writer
	// size returns a terminal's, in columns and rows; nil if out is none.
	size  func() (width, height int)
	drawn int // lines on the terminal
	last  map[*asked]string
}

func newMigrateView(out io.Writer) *migrateView {
	v := &migrateView{out: out, last: map[*asked]string{}}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		v.size = func() (int, int) {
			if width, height, err := term.GetSize(int(file.Fd())); err == nil && width > 0 && height > 0 {
				return width, height
			}
			return 80, 24
		}
	}
	return v
}

// namedInTable is how many objects the table names; JSON names more.
const namedInTable = 10

// barWidth is the length of a progress bar in a terminal.
const barWidth = 30

// show shows the migrations as they are. Lines that will not change again stay above.
func (v *migrateView) show(all []*asked) {
	var text strings.Builder
	if v.size != nil && v.drawn > 0 {
		fmt.Fprintf(&text, "\x1b[%dA\r\x1b[J", v.drawn)
	}
	v.drawn = 0
	for _, a := range all {
		if v.size != nil && !a.ended() {
			continue
		}
		if line := a.line(0); line != v.last[a] {
			v.last[a] = line
			fmt.Fprintln(&text, line)
			text.WriteString(a.failures())
		}
	}
	if v.size != nil {
		width, height := v.size()
		lines := block(all, width, height)
		for _, line := range lines {
			fmt.Fprintln(&text, line)
		}
		v.drawn = len(lines)
	}
	// A line that cannot be shown does not hold up the migrations.
	_, _ = io.WriteString(v.out, text.String())
}

// block returns the lines for a terminal that show the unfinished migrations: fewer than the terminal has rows, since
// a line that has scrolled off cannot be drawn again. If there is not room for all, waiting migrations come last.
func block(all []*asked, width, height int) []string {
	room := max(height-1, 1)
	left := slices.DeleteFunc(slices.Clone(all), (*asked).ended)
	more := 0
	if len(left) > room {
		slices.SortStableFunc(left, func(a, b *asked) int { return cmp.Compare(a.waits(), b.waits()) })
		more = len(left) - (room - 1)
	}
	var lines []string
	for _, a := range left[:len(left)-more] {
		lines = append(lines, a.line(barWidth))
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("… and %d more", more))
	}
	for i, line := range lines {
		if runes := []rune(line); len(runes) > width {
			lines[i] = string(runes[:width])
		}
	}
	return lines
}

// waits is 1 for a migration that no server has begun, and else 0.
func (a *asked) waits() int {
	if migrationv1alpha1.True(a.migration, migrationv1alpha1.MigrationRunning) == nil {
		return 1
	}
	return 0
}

// failures names the first objects that could not be migrated, once the migration has ended.
func (a *asked) failures() string {
	if a.deleted || !a.ended() {
		return ""
	}
	var text strings.Builder
	named := a.migration.Status.Failures
	for _, f := range named[:min(len(named), namedInTable)] {
		fmt.Fprintf(&text, "  %s: %s: %s\n", f.Object(), cmp.Or(string(f.Reason), "not migrated"), f.Message)
	}
	if p := a.migration.Status.Progress; p != nil && p.Failed > namedInTable {
		fmt.Fprintf(&text, "  and %d more: kubectl get storageversionmigrations.migration.k8s.io %s -o yaml names the first %d\n",
			p.Failed-namedInTable, a.migration.Name, migrationv1alpha1.MaxFailures)
	}
	return text.String()
}

// migrated is how a migration ended.
type migrated struct {
	Resource  string                               `json:"resource"`
	Migration string                               `json:"migration"`
	Succeeded bool                                 `json:"succeeded"`
	Reason    string                               `json:"reason"`
	Message   string                               `json:"message"`
	Done      int64                                `json:"done"`
	Total     int64                                `json:"total"`
	Failed    int64                                `json:"failed"`
	Failures  []migrationv1alpha1.MigrationFailure `json:"failures"`
}

func results(all []*asked) []migrated {
	results := []migrated{}
	for _, a := range all {
		r := migrated{Resource: a.resource.String(), Migration: a.migration.Name, Succeeded: a.succeeded(), Failures: []migrationv1alpha1.MigrationFailure{}}
		if a.deleted {
			r.Reason, r.Message = "Deleted", "the migration was deleted"
		}
		for _, t := range []migrationv1alpha1.MigrationConditionType{migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.MigrationFailed} {
			if c := migrationv1alpha1.True(a.migration, t); c != nil {
				r.Reason, r.Message = c.Reason, c.Message
			}
		}
		if p := a.migration.Status.Progress; p != nil {
			r.Done, r.Total, r.Failed = p.Done, p.Total, p.Failed
		}
		r.Failures = append(r.Failures, a.migration.Status.Failures...)
		results = append(results, r)
	}
	return results
}
