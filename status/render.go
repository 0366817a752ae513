package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mitchellh/go-wordwrap"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/concord-dev/concord/status/prose"
	"github.com/concord-dev/concord/status/servers"
)

// Style is how text is shown.
type Style struct {
	// Width is how many columns there are.
	Width int
	// Color paints problems, headings and the progress of migrations.
	Color bool
}

const (
	red    = "31"
	yellow = "33"
	green  = "32"
	bold   = "1"

	// namedObjects is how many bad objects of one kind a status names; a why names more.
	namedObjects   = 3
	explainObjects = 10
	barWidth       = 30
	// longestMessage is how many characters a status shows of what kept an object.
	longestMessage = 200
)

func (s Style) paint(color, text string) string {
	if !s.Color || color == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// wrapped breaks text into lines of the style's width: the first with one indent, the others
// with another. A word that is longer than a line stays whole, so that it can be copied.
func (s Style) wrapped(first, rest, text string) string {
	room := max(20, s.Width-max(len(first), len(rest)))
	lines := strings.Split(wordwrap.WrapString(text, uint(room)), "\n")
	return first + strings.Join(lines, "\n"+rest) + "\n"
}

// Text is the cluster on one screen, with the problems first.
func (c Cluster) Text(s Style) string {
	var text strings.Builder
	text.WriteString(s.paint(bold, s.wrapped("", "", c.Headline())))
	if c.Do != "" {
		text.WriteString(s.wrapped("  do: ", "      ", c.Do))
	}
	for _, u := range c.Unread {
		text.WriteString(s.wrapped("? ", "  ", u))
	}
	if n := len(c.Settling); n > 0 {
		line := c.Settling[0]
		if n > 1 {
			line = fmt.Sprintf("%d resources settle, for one %s", n, line)
		}
		text.WriteString(s.wrapped("", "  ", line))
	}
	if len(c.Unsettled) > 0 {
		text.WriteString(s.wrapped("", "  ", fmt.Sprintf("not known to be in one version: %s; kubectl concord why %s says what comes next", prose.Some(c.Unsettled), c.Unsettled[0])))
	}
	if n := len(c.Unserved); n > 0 {
		text.WriteString(s.wrapped("", "  ", fmt.Sprintf("%s %s served by no server now, %s: what is stored of %s stays as it is",
			prose.Count(n, "resource"), prose.Is(n), prose.Some(c.Unserved), prose.Plural(n, "it", "them"))))
	}
	if n := len(c.NothingKnown); n > 0 {
		text.WriteString(s.wrapped("", "  ", fmt.Sprintf("%s %s served by no server now, %s, and nothing is known to be stored of %s: delete the %s if there never was such a resource",
			prose.Count(n, "resource"), prose.Is(n), prose.Some(c.NothingKnown), prose.Plural(n, "it", "them"), prose.Plural(n, "StorageState", "StorageStates"))))
	}
	if n := len(c.Unseen); n > 0 && c.Counts.Stored > 0 && len(c.Unread) == 0 { // else nobody looks at any, or it is not known
		text.WriteString(s.wrapped("", "  ", fmt.Sprintf("nobody has looked yet at what is stored of %s, %s: servers report %s, or concord controllers look at %s",
			prose.Count(n, "resource"), prose.Some(c.Unseen), prose.Plural(n, "it", "them"), prose.Plural(n, "it", "them"))))
	}
	if len(c.Problems) > 0 {
		text.WriteString("\n" + s.paint(bold, "NOT WELL") + "\n")
		shown := c.Problems[:min(len(c.Problems), shownProblems)]
		for _, p := range shown {
			text.WriteString(p.text(s, namedObjects))
		}
		if more := c.Problems[len(shown):]; len(more) > 0 {
			text.WriteString(s.wrapped("", "  ", alsoNotWell(more)))
		}
	}
	if len(c.Moving) > 0 {
		text.WriteString("\n" + s.paint(bold, "MIGRATIONS") + "\n")
		shown := c.Moving[:min(len(c.Moving), shownMoving)]
		for _, m := range shown {
			text.WriteString(m.text(s))
		}
		if more := len(c.Moving) - len(shown); more > 0 {
			fmt.Fprintf(&text, "and %d more: kubectl concord status -o json\n", more)
		}
	}
	if len(c.Servers) > 0 {
		text.WriteString("\n" + serverTable(s, c.Servers) + builds(s, c.Servers))
	}
	return text.String()
}

// shownProblems and shownMoving are how many problems and migrations fit on a screen.
const (
	shownProblems = 4
	shownMoving   = 4
)

// alsoNotWell names the resources and servers that have the problems that do not fit.
func alsoNotWell(problems []Problem) string {
	var names []string
	for _, p := range problems {
		names = append(names, p.Resources...)
		if len(p.Resources) == 0 && p.Server != "" {
			names = append(names, p.Server)
		}
	}
	slices.Sort(names)
	text := fmt.Sprintf("and %d more", len(problems))
	if names = slices.Compact(names); len(names) > 0 {
		text += ", of " + prose.Some(names)
	}
	return text + ": kubectl concord why RESOURCE, or kubectl concord status -o json"
}

// Headline is the cluster in one sentence.
func (c Cluster) Headline() string {
	if len(c.Servers) == 0 && c.Counts.Stored == 0 && len(c.Unread) > 0 {
		return "Nothing is known of this cluster's servers and resources."
	}
	if len(c.Servers) == 0 && c.Counts.Stored == 0 {
		return "No API server of this cluster has an identity Lease, and no resource a StorageState: Concord does not work here."
	}
	serving := 0
	for _, s := range c.Servers {
		if s.State == servers.Serving {
			serving++
		}
	}
	serve := fmt.Sprintf("%s %s", prose.Count(serving, "server"), prose.Plural(serving, "serves", "serve"))
	if servers.NoneRenews(c.Servers) {
		serve = "no server renews its Lease"
	} else if serving != len(c.Servers) {
		serve = fmt.Sprintf("%d of %s %s", serving, prose.Count(len(c.Servers), "server"), prose.Plural(len(c.Servers), "serves", "serve"))
	}
	n := c.Counts
	if c.bare() {
		return serve + ", without Concord, and no StorageState tells of concord controllers: nothing is migrated here"
	}
	if n.Stored == n.Settled {
		return fmt.Sprintf("%s; of %s, all are agreed on and in one version", serve, prose.Count(n.Stored, "resource"))
	}
	return fmt.Sprintf("%s; of %s, %d %s agreed on and %d in one version", serve, prose.Count(n.Stored, "resource"), n.Agreed, prose.Is(n.Agreed), n.Settled)
}

// text shows a problem with the first objects and what to do.
func (p Problem) text(s Style, objects int) string {
	color := red
	if slices.Contains(halts, p.Kind) {
		color = yellow
	}
	var text strings.Builder
	text.WriteString(s.paint(color, "!") + strings.TrimPrefix(s.wrapped("! ", "  ", p.Text), "!"))
	shown := p.Objects[:min(len(p.Objects), objects)]
	longest := 0
	if objects == namedObjects {
		longest = longestMessage
	}
	for _, line := range byMessage(shown, longest) {
		text.WriteString(s.wrapped("    ", "      ", line))
	}
	if more := p.Failed - int64(len(shown)); more > 0 && len(shown) > 0 {
		fmt.Fprintf(&text, "    and %d more\n", more)
	}
	if p.Do != "" {
		text.WriteString(s.wrapped("  do: ", "      ", p.Do+strings.Repeat(":", min(1, len(p.Run)))))
	}
	if p.Run != "" {
		text.WriteString("      " + strings.ReplaceAll(p.Run, "\n", "\n      ") + "\n") // not wrapped, so that it can be copied
	}
	return text.String()
}

// byMessage returns a line for each message, with its objects. A message is cut to longest characters, unless that is
// 0.
func byMessage(objects []Object, longest int) (lines []string) {
	names := map[string][]string{}
	var messages []string
	for _, o := range objects {
		if names[o.Message] == nil {
			messages = append(messages, o.Message)
		}
		names[o.Message] = append(names[o.Message], o.Name)
	}
	for _, m := range messages {
		lines = append(lines, strings.Join(names[m], ", ")+": "+shortened(m, longest))
	}
	return lines
}

// shortened returns a text in one line, cut to longest characters, unless that is 0.
func shortened(text string, longest int) string {
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); longest > 0 && len(runes) > longest {
		return string(runes[:longest-1]) + "…"
	}
	return text
}

// text shows a migration, and its bar where it has begun.
func (m Moving) text(s Style) string {
	title := m.Resource
	if m.To != "" {
		title += " to " + m.To
	}
	title += ": " + m.State
	if m.State == Proving {
		title += " that none is stored in another way"
	}
	if m.LeftBy != "" {
		title += " (" + m.LeftBy + ", which began it, is gone)"
	}
	if len(m.Behind) > 0 {
		title += ", waits for its turn behind " + prose.Some(m.Behind)
	}
	if m.Total == 0 {
		return s.wrapped("", "  ", title)
	}
	color := green
	if m.State != Running && m.State != Proving {
		color = yellow
	}
	full := int(m.share() * barWidth)
	bar := "[" + s.paint(color, strings.Repeat("#", full)) + strings.Repeat(".", barWidth-full) + "]"
	line := fmt.Sprintf("  %s %3d %%  %d of %d", bar, int(100*m.share()), m.Done, m.Total)
	if m.Failed > 0 {
		line += fmt.Sprintf(", %d failed", m.Failed)
	}
	if m.State == Running && !m.Unrated {
		line += PerSecond(m.ObjectsPerSecond, m.Done)
	}
	if m.LeftSeconds > 0 {
		line += fmt.Sprintf(", %s left", time.Duration(m.LeftSeconds)*time.Second)
	}
	return s.wrapped("", "  ", title) + line + "\n"
}

// PerSecond formats the rate of a running migration that has done this many objects, with a comma before it: nothing
// if none are done.
func PerSecond(rate, done int64) string {
	switch {
	case rate == 0 && done == 0:
		return ""
	case rate == 0:
		return ", less than 1/s"
	}
	return fmt.Sprintf(", %d/s", rate)
}

// serverTable lists the servers.
func serverTable(s Style, all []servers.Server) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SERVER\tRELEASE\tEMULATES\tMIN\tSTATE")
	for _, server := range all {
		state := server.State
		if server.State == servers.Dead || server.State == servers.Unrenewed {
			state += " for " + duration.HumanDuration(server.Renewed)
		}
		if server.Aggregated {
			state += ", aggregated"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", server.ID, cmp.Or(server.Release, "-"), cmp.Or(server.Emulates, "-"), cmp.Or(server.ReadableFrom, "-"), state)
	}
	_ = w.Flush() // a strings.Builder takes everything
	lines := strings.SplitAfterN(text.String(), "\n", 2)
	return s.paint(bold, strings.TrimSuffix(lines[0], "\n")) + "\n" + lines[1]
}

// builds says which servers are of which build of Concord, if not all are of the same. Those of aggregated APIs are programs
// of their own.
func builds(s Style, all []servers.Server) string {
	of := map[string][]string{}
	for _, server := range all {
		if server.Release != "" && !server.Aggregated {
			build := cmp.Or(server.Build, "unknown")
			of[build] = append(of[build], server.ID)
		}
	}
	if len(of) < 2 {
		return ""
	}
	var told []string
	for _, build := range slices.Sorted(maps.Keys(of)) {
		told = append(told, build+" on "+prose.Some(of[build]))
	}
	return s.wrapped("", "  ", "Builds of Concord: "+strings.Join(told, "; "))
}
