package demo

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/demo/workload"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/testbed/ledger"
)

// snapshot is the content of the live view at one moment.
type snapshot struct {
	elapsed time.Duration
	step    int
	title   string
	servers []serverLine
	rows    []resourceLine
	others  othersLine

	loaded, objects int64
	acknowledged    int64
	errors          int
	longest         time.Duration
}

type serverLine struct {
	name      string
	condition condition
	release   string
	id        agree.ServerID
}

// resourceLine describes one of the resources whose objects the demo writes.
type resourceLine struct {
	resource string
	// writes is the version that each server writes, "-" for none.
	writes    []string
	agreement string // "no" or a version
	stored    string
	inEtcd    string // how many objects are stored in each version
	migration string // the newest migration, in words
	running   bool
	// done and total are the objects in the version agreed on, and all.
	done, total int64
}

// othersLine sums up all other resources.
type othersLine struct {
	total, agreed, exact int
	reported             []int // by server
}

func (r *run) snapshot() snapshot {
	acknowledged, failures, longest := r.work.Counts()
	r.mu.Lock()
	s := snapshot{step: r.step.number, title: r.step.title}
	r.mu.Unlock()
	s.elapsed, s.loaded, s.objects = time.Since(r.began), r.loaded.Load(), int64(r.cfg.Objects)
	s.acknowledged, s.errors, s.longest = acknowledged, failures, longest
	r.cluster.watch.With(func(w *world) { s.see(w, r.cluster.servers) })
	return s
}

// see adds to the snapshot what etcd holds.
func (s *snapshot) see(w *world, processes []*serverProcess) {
	var servers []agree.ServerID
	for _, p := range processes {
		id, _ := w.registered(p.Name)
		line := serverLine{name: p.Name, condition: p.get(), id: id}
		if server := w.Servers[id]; server != nil {
			line.release = server.Release
		}
		servers, s.servers = append(servers, id), append(s.servers, line)
	}
	for _, gr := range workload.Shown {
		s.rows = append(s.rows, lineOf(w, gr, servers))
	}
	s.others = sumOthers(w, servers)
}

func lineOf(w *world, gr schema.GroupResource, servers []agree.ServerID) resourceLine {
	r := w.Of(gr)
	line := resourceLine{resource: gr.Resource, agreement: "no"}
	for _, id := range servers {
		report := r.Report(id)
		if report == nil {
			line.writes = append(line.writes, "-")
			continue
		}
		line.writes = append(line.writes, encodingVersion(report.Encoding.Plain()))
	}
	if r.Common() != "" {
		line.agreement = encodingVersion(r.Common())
	}
	var versions []string
	for _, encoding := range r.Stored() {
		versions = append(versions, encodingVersion(agree.Encoding(encoding)))
	}
	line.stored = cmp.Or(strings.Join(versions, " "), "-")
	line.inEtcd, line.done, line.total = countsOf(r.Counts, r.Common())
	if m := w.latest(gr); m != nil {
		line.running = m.Phase == evolve.Running || m.Phase == evolve.Pending
		line.migration = describe(m)
	}
	return line
}

// countsOf describes how many objects are stored in each version, and counts those in the
// encoding that is agreed on, and all.
func countsOf(counts map[agree.Encoding]int, common agree.Encoding) (text string, done, total int64) {
	var parts []string
	for _, encoding := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, encodingVersion(encoding)+" "+humanize.Comma(int64(counts[encoding])))
		total += int64(counts[encoding])
	}
	return cmp.Or(strings.Join(parts, " "), "-"), int64(counts[common]), total
}

func describe(m *ledger.Migration) string {
	switch m.Phase {
	case evolve.Succeeded:
		return fmt.Sprintf("done, %s objects", humanize.Comma(m.Progress.Done))
	case evolve.Failed:
		return "failed: " + m.Reason
	case evolve.Running:
		return "running"
	}
	return "pending"
}

func sumOthers(w *world, servers []agree.ServerID) othersLine {
	o := othersLine{reported: make([]int, len(servers))}
	for _, gr := range w.sorted() {
		r := w.Resources[gr]
		if _, isShown := workload.Expected[gr]; isShown {
			continue
		}
		o.total++
		for i, id := range servers {
			if r.Report(id) != nil {
				o.reported[i]++
			}
		}
		if r.Common() != "" {
			o.agreed++
		}
		if r.Exact() {
			o.exact++
		}
	}
	return o
}

const barWidth = 16

// bar draws how much of a total is done.
func bar(done, total int64) string {
	filled := int64(0)
	if total > 0 {
		filled = min(done, total) * barWidth / total
	}
	return "[" + strings.Repeat("#", int(filled)) + strings.Repeat(".", barWidth-int(filled)) + "]"
}

// progress is a resource's migration, in steps of a percentage.
func (l resourceLine) progress(step int64) string {
	if !l.running || l.total == 0 {
		return l.migration
	}
	percent := l.done * 100 / l.total / step * step
	return fmt.Sprintf("%s %d%%", bar(percent, 100), percent)
}

// render draws the whole view, in lines of at most 80 characters.
func render(s snapshot) []string {
	lines := []string{fmt.Sprintf("concord demo  %s  step %d of %d", elapsed(s.elapsed), s.step, lastStep), s.title, ""}
	cells := [][]string{{"SERVER", "STATE", "RELEASE", "ID"}}
	for _, p := range s.servers {
		cells = append(cells, []string{p.name, string(p.condition), cmp.Or(p.release, "-"), cmp.Or(string(p.id), "-")})
	}
	lines = append(append(lines, columns(cells)...), "")

	head := []string{"RESOURCE"}
	for _, p := range s.servers {
		head = append(head, p.name)
	}
	cells = [][]string{append(head, "AGREEMENT", "STORED")}
	for _, l := range s.rows {
		row := append([]string{l.resource}, l.writes...)
		cells = append(cells, append(row, l.agreement, l.stored))
	}
	others := []string{fmt.Sprintf("%d others", s.others.total)}
	for _, n := range s.others.reported {
		others = append(others, fmt.Sprint(n))
	}
	cells = append(cells, append(others, fmt.Sprint(s.others.agreed), fmt.Sprintf("%d exact", s.others.exact)))
	lines = append(append(lines, columns(cells)...), "")

	cells = [][]string{{"RESOURCE", "IN ETCD", "MIGRATION"}}
	for _, l := range s.rows {
		cells = append(cells, []string{l.resource, l.inEtcd, cmp.Or(l.progress(1), "-")})
	}
	lines = append(append(lines, columns(cells)...), "")
	if s.loaded < s.objects {
		return append(lines, fmt.Sprintf("loading %s %s of %s", bar(s.loaded, s.objects), humanize.Comma(s.loaded), humanize.Comma(s.objects)))
	}
	return append(lines, fmt.Sprintf("writes: %s acknowledged, %s errors, longest %s", humanize.Comma(s.acknowledged), humanize.Comma(int64(s.errors)), hundredths(s.longest.Seconds())))
}

// columns aligns cells.
func columns(rows [][]string) []string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 1, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // of a strings.Builder
	return strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
}

// changes returns one line for everything that differs from the snapshot before.
func changes(old, s snapshot) []string {
	var lines []string
	say := func(format string, args ...any) {
		lines = append(lines, elapsed(s.elapsed)+"  "+fmt.Sprintf(format, args...))
	}
	if old.step != s.step || old.title != s.title {
		say("step %d of %d: %s", s.step, lastStep, s.title)
	}
	before := map[string]serverLine{}
	for _, p := range old.servers {
		before[p.name] = p
	}
	for _, p := range s.servers {
		if before[p.name] != p && p.condition != planned {
			say("%s is %s%s", p.name, p.condition, identified(p))
		}
	}
	if s.loaded == s.objects && old.loaded < s.objects {
		say("%s objects are loaded", humanize.Comma(s.objects))
	}
	known := map[string]string{}
	for _, l := range old.rows {
		known[l.resource] = l.words(old.servers)
	}
	for _, l := range s.rows {
		if words := l.words(s.servers); words != known[l.resource] && (len(old.rows) > 0 || l.agreement != "no") {
			say("%s", words)
		}
	}
	if s.others.agreed != old.others.agreed || s.others.exact != old.others.exact || s.others.total != old.others.total {
		say("%d other resources: %d agreed, %d with an exact stored set", s.others.total, s.others.agreed, s.others.exact)
	}
	return lines
}

func identified(p serverLine) string {
	if p.id == "" {
		return ""
	}
	return fmt.Sprintf(", release %s, ID %s", p.release, p.id)
}

// words describes a resource's line, with its progress in steps of ten percent.
func (l resourceLine) words(servers []serverLine) string {
	var writes []string
	for i, version := range l.writes {
		if version != "-" {
			writes = append(writes, servers[i].name+" "+version)
		}
	}
	text := l.resource + ": " + cmp.Or(strings.Join(writes, ", "), "no reports")
	if l.agreement == "no" {
		text += "; no agreement"
	} else {
		text += "; agreement on " + l.agreement
	}
	text += "; stored set [" + strings.ReplaceAll(l.stored, "-", "") + "]"
	if migration := l.progress(10); migration != "" {
		text += "; migration " + migration
	}
	return text
}
