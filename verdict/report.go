package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/mitchellh/go-wordwrap"

	"github.com/concord-dev/concord/compat"
)

// Report is the verdict on everything that is stored.
type Report struct {
	// Target names the change that is judged: the server to be started, or the definition to be applied.
	Target  string        `json:"target"`
	Verdict compat.Safety `json:"verdict"`
	// Resources lists unsafe resources first, then unknown ones by reason, each sorted.
	Resources []compat.Finding `json:"resources"`
	// Remembered is how many of them something is remembered of whose raw values were not all
	// read: values that cannot be read may be among these.
	Remembered int `json:"remembered,omitempty"`
	// Unseen is the number of other resources about which nothing is recorded and whose raw values were not read,
	// without those that the counting server has no store of.
	Unseen int `json:"unseen,omitempty"`
	// Warnings list objects that stay readable but do not follow the target's rules for new writes. They do not change
	// the verdict.
	Warnings []Warning `json:"warnings,omitempty"`
	// Covers names, for people, the scope of the verdict.
	Covers string `json:"covers"`
	// Do tells people the next step if the verdict is not safe.
	Do string `json:"do,omitempty"`

	// warns is the line above the warnings; empty for that of servers.
	warns string
	// unsought are new definitions of which nobody has looked for objects that an earlier one has left.
	unsought []string
}

// named is how many resources and objects are named; the rest is counted.
const named = 10

// Warning names an object that the target would refuse when it is written again.
type Warning struct {
	Resource string `json:"resource"`
	// Object is its name, behind that of its namespace.
	Object string `json:"object"`
	// About tells people what the target would refuse.
	About string `json:"about"`
}

// coversServers is the scope of the verdict on a server.
const (
	coversServers = "whether every stored object can be decoded"
	warnsNothing  = coversServers + ". Not looked at: rules that differ between releases for objects that are written anew, such as functions of CEL expressions and names of Services"
	warnsOfRules  = coversServers + ", and warns of CEL functions and of names of Services that the target does not take. Not looked at: other validation of objects that are written anew"
)

// OfServer judges whether a server may start on the objects that may be stored.
func OfServer(target *compat.Target, stored []compat.Stored) Report {
	r := Report{Target: target.Name, Covers: warnsNothing}
	var ways ways
	var untold untold
	for _, s := range stored {
		f := target.Judge(s)
		ways.add(target, f, s)
		untold.add(f, s)
		r.count(f, s)
		r.Resources = append(r.Resources, f)
	}
	return r.settled(ways.do(target.Name),
		untold.do("wait until migrations are done (kubectl concord status tells), or let raw values be read: concord preflight --etcd-servers or --data-dir",
			"wait until migrations are done (kubectl concord status tells)"))
}

// ways collects what makes a server safe to start.
type ways struct {
	// definitions lack encodings that are stored, and lacked are those of the first one.
	definitions []string
	lacked      []string
	// avoidable says that servers of this binary need not store some encodings, and other that there are more.
	avoidable, other bool
	// stranded are those that no release migrates to what the target reads.
	stranded []string
}

func (w *ways) add(target *compat.Target, f compat.Finding, s compat.Stored) {
	switch {
	case f.Verdict != compat.Unsafe:
	case s.CRD != nil:
		if w.definitions = append(w.definitions, f.Resource); len(w.definitions) == 1 {
			w.lacked = f.Undecodable
		}
	default:
		for _, e := range f.Undecodable {
			switch {
			case target.Avoidable(s.Resource, e):
				w.avoidable = true
			case !target.Stranded(s.Resource, e):
				w.other = true
			case !slices.Contains(w.stranded, e):
				w.stranded = append(w.stranded, e)
			}
		}
	}
}

// do returns the advice for each of them.
func (w ways) do(release string) string {
	var all []string
	if w.avoidable {
		all = append(all, fmt.Sprintf("run the servers with --min-compatibility-version=%[1]s, so that they store what %[1]s reads, and wait until the migrations are done", release))
	}
	if w.other {
		all = append(all, "choose versions whose storage it reads (concord apis tells) and wait until the migrations are done")
	}
	if len(w.stranded) > 0 {
		all = append(all, compat.Removal(w.stranded, release+" reads"))
	}
	switch len(w.definitions) {
	case 0:
	case 1:
		all = append(all, fmt.Sprintf("put %s back into spec.versions of the CustomResourceDefinition %s (served: false and storage: false will do)", strings.Join(w.lacked, " and "), w.definitions[0]))
	default:
		all = append(all, fmt.Sprintf("put what they lack back into spec.versions of the CustomResourceDefinitions %s (served: false and storage: false will do)", firstOf(w.definitions, int64(len(w.definitions)))))
	}
	return strings.Join(all, "; ")
}

// count counts a resource whose raw values were not all read.
func (r *Report) count(f compat.Finding, s compat.Stored) {
	switch {
	case s.Census != nil && s.Census.Partial == "":
	case len(f.Stored) > 0:
		r.Remembered++
	case !s.Storeless:
		r.Unseen++
	}
}

// unread says for how many resources not all raw values were read, and where objects were not looked for; "" if there are
// none.
func (r Report) unread() string {
	var all []string
	if r.Remembered > 0 {
		all = append(all, fmt.Sprintf("Of %d of %d resources the raw values were not all read: their verdict goes by what is remembered.", r.Remembered, len(r.Resources)))
	}
	if r.Unseen > 0 {
		all = append(all, fmt.Sprintf("Of %d of %d resources nothing is remembered, and nobody has looked at raw values.", r.Unseen, len(r.Resources)))
	}
	if len(r.unsought) > 0 {
		all = append(all, fmt.Sprintf("Objects that an earlier definition of %s may have left in etcd were not looked for: concord preflight --etcd-servers looks for them.", firstOf(r.unsought, int64(len(r.unsought)))))
	}
	return strings.Join(all, " ")
}

// untold explains why some resources are unknown.
type untold struct {
	// damaged is the first that has values which cannot be read.
	damaged string
	// unreported says that no server reports some of them, noConcord that the server that answered shows no
	// reports, silent that one of several servers reports nothing, and encrypted that values are encrypted. In these
	// cases waiting does not help.
	unreported, noConcord, silent, encrypted bool
	// uncounted are resources whose raw values were not read, and counted those whose raw values were.
	uncounted, counted bool
}

func (u *untold) add(f compat.Finding, s compat.Stored) {
	switch {
	case f.Verdict != compat.CouldNotTell:
	case s.Undecodable.Objects > 0 || s.Census != nil && s.Census.Unreadable > 0:
		u.damaged = cmp.Or(u.damaged, f.Resource)
	case s.Silent():
		u.silent = true
	case s.Why == noReports:
		u.unreported = true
	case s.Why == noConcord:
		u.noConcord = true
	case s.Census != nil && s.Census.Encrypted > 0:
		u.encrypted = true
	case s.Census == nil || s.Census.Partial != "":
		u.uncounted = true
	default:
		u.counted = true
	}
}

// do returns the advice for each reason: uncounted for resources whose raw values were not read, counted for the
// others.
func (u untold) do(uncounted, counted string) string {
	var all []string
	if u.damaged != "" {
		all = append(all, "have the objects that cannot be read saved, or removed: kubectl concord why "+u.damaged+" tells how")
	}
	for _, advice := range []struct {
		is   bool
		text string
	}{
		{u.silent, "replace the kube-apiserver that reports nothing or, if it is gone for good, delete its Lease (kubectl concord status names it)"},
		{u.noConcord, "ask a kube-apiserver of Concord, which kubectl concord status names: kubectl concord preflight --server URL"},
		{u.unreported, "let raw values be read, for which no server has to report: concord preflight --etcd-servers"},
		{u.encrypted, "have a server of Concord, which has the keys, count the values that are encrypted: kubectl concord preflight"},
		{u.uncounted, uncounted},
		{u.counted && !u.uncounted, counted},
	} {
		if advice.is {
			all = append(all, advice.text)
		}
	}
	return strings.Join(all, "; ")
}

// safeOf counts the resources that are safe.
func safeOf(safe, all int) string {
	if all == 1 {
		return "The resource is safe."
	}
	return fmt.Sprintf("%d of %d resources are safe.", safe, all)
}

// Warned returns the report with warnings about objects; unread names the objects that could not be checked, and why,
// nil if all were.
func (r Report) Warned(warnings []Warning, unread error) Report {
	slices.SortFunc(warnings, func(a, b Warning) int {
		return cmp.Or(strings.Compare(a.Resource, b.Resource), strings.Compare(a.Object, b.Object), strings.Compare(a.About, b.About))
	})
	r.Warnings, r.Covers = warnings, warnsOfRules
	if unread != nil {
		r.Covers += ", nor " + strings.ReplaceAll(unread.Error(), "\n", "; ")
	}
	return r
}

// settled sorts the findings and adds the conclusions.
func (r Report) settled(unsafe, untold string) Report {
	if r.Resources == nil {
		r.Resources = []compat.Finding{}
	}
	slices.SortStableFunc(r.Resources, func(a, b compat.Finding) int {
		return cmp.Or(cmp.Compare(urgency(a), urgency(b)), strings.Compare(reasonOf(a), reasonOf(b)), strings.Compare(a.Resource, b.Resource))
	})
	switch r.Verdict = compat.Overall(r.Resources); r.Verdict {
	case compat.Unsafe:
		r.Do = unsafe
	case compat.CouldNotTell:
		r.Do = untold
	case compat.Safe:
	}
	return r
}

// reasonOf returns why a finding is unknown. Findings are sorted by it, so that one line can describe all with the
// same reason.
func reasonOf(f compat.Finding) string {
	if f.Verdict == compat.CouldNotTell {
		return f.Reason
	}
	return ""
}

func urgency(f compat.Finding) int {
	return slices.Index([]compat.Safety{compat.Unsafe, compat.CouldNotTell, compat.Safe}, f.Verdict)
}

// Word is the verdict for people.
func Word(s compat.Safety) string {
	if s == compat.CouldNotTell {
		return "could not tell"
	}
	return s.String()
}

// Text returns the verdict in lines of 80 columns: the findings that are not safe, those of one reason
// together, then the number of safe ones. With all the safe ones are listed, too.
func (r Report) Text(all bool) string {
	var text strings.Builder
	text.WriteString(wrapped("", fmt.Sprintf("%s: %s", r.Target, Word(r.Verdict))))
	safe := 0
	for rest := r.Resources; len(rest) > 0; {
		f, n := rest[0], 1
		if f.Verdict == compat.Safe {
			safe++
		} else {
			n = alike(rest)
		}
		switch {
		case f.Verdict == compat.Safe && !all:
		case n > 1:
			text.WriteString("\n" + together(rest[:n]))
		default:
			text.WriteString("\n" + alone(f))
		}
		rest = rest[n:]
	}
	if safe > 0 && !all {
		text.WriteString("\n" + safeOf(safe, len(r.Resources)) + "\n")
	}
	if line := r.unread(); line != "" {
		text.WriteString("\n" + wrapped("", line))
	}
	if r.Do != "" {
		text.WriteString("\n" + wrapped("", "What to do: "+r.Do+"."))
	}
	text.WriteString(r.warned())
	text.WriteString("\n" + wrapped("", "This covers "+r.Covers+"."))
	return text.String()
}

// alike is how many findings from the first on have its verdict and reason, and name no object.
func alike(all []compat.Finding) int {
	n := slices.IndexFunc(all, func(f compat.Finding) bool {
		return f.Verdict != all[0].Verdict || f.Reason != all[0].Reason || len(f.First) > 0
	})
	if n < 0 {
		return len(all)
	}
	return max(n, 1)
}

// together describes findings that are alike.
func together(all []compat.Finding) string {
	var names []string
	for _, f := range all {
		names = append(names, f.Resource)
	}
	return wrapped("", fmt.Sprintf("%d resources: %s", len(all), Word(all[0].Verdict))) + wrapped("  ", all[0].Reason) +
		wrapped("  ", firstOf(names, int64(len(names))))
}

func alone(f compat.Finding) string {
	text := wrapped("", fmt.Sprintf("%s: %s", f.Resource, Word(f.Verdict)))
	if len(f.Stored) > 0 {
		text += wrapped("  ", "stored as "+strings.Join(f.Stored, ", "))
	}
	text += wrapped("  ", f.Reason)
	if line := whichOf(f); line != "" {
		text += wrapped("  ", line)
	}
	return text
}

// warned names the objects of warnings.
func (r Report) warned() string {
	if len(r.Warnings) == 0 {
		return ""
	}
	var text strings.Builder
	text.WriteString("\n" + wrapped("", cmp.Or(r.warns, "Readable, and not taken when they are written anew:")))
	for _, w := range r.Warnings[:min(len(r.Warnings), named)] {
		text.WriteString(wrapped("  ", fmt.Sprintf("%s %s: %s", w.Resource, w.Object, w.About)))
	}
	if more := len(r.Warnings) - named; more > 0 {
		fmt.Fprintf(&text, "  and %d more\n", more)
	}
	return text.String()
}

// whichOf names the objects that a finding concerns.
func whichOf(f compat.Finding) string {
	if len(f.First) == 0 {
		return ""
	}
	return "objects: " + firstOf(f.First, f.Objects)
}

// firstOf names the first of a number of objects.
func firstOf(names []string, all int64) string {
	shown := names[:min(len(names), named)]
	text := strings.Join(shown, ", ")
	if more := all - int64(len(shown)); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

const columns = 80

func wrapped(indent, text string) string {
	lines := strings.Split(wordwrap.WrapString(text, uint(columns-len(indent))), "\n")
	return indent + strings.Join(lines, "\n"+indent) + "\n"
}

// Err returns an error of one line that says why the verdict is not safe, and the next step; nil if it is safe.
func (r Report) Err() error {
	if r.Verdict == compat.Safe {
		return nil
	}
	var names []string
	for _, f := range r.Resources {
		if f.Verdict == r.Verdict {
			names = append(names, f.Resource)
		}
	}
	which := fmt.Sprintf("%s of %d resources", firstOf(names[:min(1, len(names))], int64(len(names))), len(r.Resources)) // the report lists more
	if r.Verdict == compat.Unsafe {
		return fmt.Errorf("unsafe: %s, for %s: %s", which, r.Target, r.Do)
	}
	return fmt.Errorf("could not tell about %s: %s", which, r.Do)
}
