package demo

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
)

// Report is the result of the demo. All times are in seconds.
type Report struct {
	// Pass says that everything was as expected; otherwise Reasons lists what was not.
	Pass    bool     `json:"pass"`
	Reasons []string `json:"reasons"`

	// Objects is how many objects were loaded; the writers wrote more.
	Objects int `json:"objects"`
	// Census counts the objects that raw etcd holds at the end.
	Census []Count `json:"census"`
	// Storage is the known state of each resource's storage at the end.
	Storage []Storage `json:"storage"`
	// StoredVersions are the CustomResourceDefinitions' status.storedVersions at the end.
	StoredVersions map[string][]string `json:"storedVersions"`

	AcknowledgedWrites int64 `json:"acknowledgedWrites"`
	// AcknowledgedLost is how many objects lack an acknowledged write at the end.
	AcknowledgedLost int64 `json:"acknowledgedLost"`
	// WriteErrors is how many attempts to write failed, WriteErrorsByKind why.
	WriteErrors       int64            `json:"writeErrors"`
	WriteErrorsByKind map[string]int64 `json:"writeErrorsByKind"`
	// Unconnected is how often a writer got no connection to a server that was being
	// restarted in the roll, and went on to the next one. Nothing was sent then.
	Unconnected int64 `json:"unconnected"`
	// LongestWriteStallSeconds is the longest time from a writer's first attempt at a write
	// until it was acknowledged, through all servers it tried; ...ByStep the longest of
	// the writes begun in each step.
	LongestWriteStallSeconds float64 `json:"longestWriteStallSeconds"`
	LongestWriteStallByStep  []Stall `json:"longestWriteStallByStep"`

	// DeadConnectionSeconds is how long a connection may be silent until a writer gives up the connection and the
	// server. A write to a server that is paused may stall for that long.
	DeadConnectionSeconds float64 `json:"deadConnectionSeconds"`

	// WritesAfterDeclaredGone is how many writes of the paused server were committed
	// between the deletion of its identity Lease and its next report.
	WritesAfterDeclaredGone int64 `json:"writesAfterDeclaredGone"`
	// WritesHeldByPause is how many requests were in flight in the paused server when it was resumed,
	// HeldWritesByAnswer how many of them got each answer then.
	WritesHeldByPause  int64            `json:"writesHeldByPause"`
	HeldWritesByAnswer map[string]int64 `json:"heldWritesByAnswer"`
	// AgreementAfterKillSeconds is the time from SIGKILL until no report of the killed
	// server was left and all others agreed; AgreementAfterResumeSeconds that from SIGCONT
	// until the paused server had reported everything again and all agreed. Negative: never.
	AgreementAfterKillSeconds   float64 `json:"agreementAfterKillSeconds"`
	AgreementAfterResumeSeconds float64 `json:"agreementAfterResumeSeconds"`
	// Agreements are the times to the reports and to agreement after other changes.
	Agreements []Agreement `json:"agreements"`

	// RewrittenObjects is how many stored values were rewritten, RewriteObjectsPerSecond
	// how many per second while migrations with objects to rewrite ran.
	RewrittenObjects        int64   `json:"rewrittenObjects"`
	RewriteObjectsPerSecond float64 `json:"rewriteObjectsPerSecond"`

	// Seconds is how long the demo ran.
	Seconds float64 `json:"seconds"`
}

// Count is the number of stored objects of a resource in one encoding.
type Count struct {
	Resource string `json:"resource"`
	Encoding string `json:"encoding"`
	Objects  int64  `json:"objects"`
}

// Storage is the state of a resource's storage according to the API.
type Storage struct {
	Resource string `json:"resource"`
	// Agreement is the encoding that all servers write, empty if they differ.
	Agreement string `json:"agreement"`
	// StoredSet has the encodings that stored objects may be in; Hashes are the hashes of these encodings, as the API
	// has them.
	StoredSet []string `json:"storedSet"`
	Hashes    []string `json:"persistedStorageVersionHashes"`
}

// Stall is the longest write of a step.
type Stall struct {
	Step    string  `json:"step"`
	Seconds float64 `json:"seconds"`
}

// Agreement is how long servers took to report after a change, and to agree. A negative AgreementSeconds says that no
// agreement was expected yet.
type Agreement struct {
	After            string  `json:"after"`
	ReportsSeconds   float64 `json:"reportsSeconds"`
	AgreementSeconds float64 `json:"agreementSeconds"`
}

// ErrFailed is the error of a report that is not a pass. Its text has the first reason.
type ErrFailed struct{ Reasons []string }

func (e ErrFailed) Error() string {
	text := "the demo FAILED"
	if len(e.Reasons) > 0 {
		text += ": " + e.Reasons[0]
	}
	if more := len(e.Reasons) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more reasons)", more)
	}
	return text
}

// Err returns ErrFailed unless the report is a pass.
func (r Report) Err() error {
	if r.Pass {
		return nil
	}
	return ErrFailed{Reasons: r.Reasons}
}

// Print writes the report as tables for people.
func (r Report) Print(out io.Writer) error {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "RESOURCE\tENCODING IN ETCD\tOBJECTS\tSTORED SET")
	sets := map[string]string{}
	for _, s := range r.Storage {
		sets[s.Resource] = strings.Join(s.StoredSet, " ")
	}
	for _, c := range r.Census {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", c.Resource, c.Encoding, humanize.Comma(c.Objects), cmp.Or(sets[c.Resource], "-"))
	}
	fmt.Fprintln(w)
	r.printFigures(w)
	if err := w.Flush(); err != nil {
		return err
	}
	if r.Pass {
		fmt.Fprintf(&text, "\nPASS in %s\n", tenths(r.Seconds))
	} else {
		fmt.Fprintf(&text, "\nFAIL in %s\n", tenths(r.Seconds))
		for _, reason := range r.Reasons {
			fmt.Fprintf(&text, "  - %s\n", reason)
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func (r Report) printFigures(w io.Writer) {
	fmt.Fprintf(w, "acknowledged writes\t%s, lost %s\n", humanize.Comma(r.AcknowledgedWrites), humanize.Comma(r.AcknowledgedLost))
	fmt.Fprintf(w, "write errors\t%s%s\n", humanize.Comma(r.WriteErrors), kinds(r.WriteErrorsByKind))
	fmt.Fprintf(w, "no connection\t%s times to a server being restarted in the roll; nothing was sent\n", humanize.Comma(r.Unconnected))
	fmt.Fprintf(w, "longest write stall\t%s%s; writers give up on a connection silent for %gs\n", hundredths(r.LongestWriteStallSeconds), stalls(r.LongestWriteStallByStep), r.DeadConnectionSeconds)
	fmt.Fprintf(w, "rewritten\t%s objects at %s objects/s\n", humanize.Comma(r.RewrittenObjects), humanize.Comma(int64(r.RewriteObjectsPerSecond)))
	for _, a := range r.Agreements {
		fmt.Fprintf(w, "after %s\t%s\n", a.After, a.times())
	}
	fmt.Fprintf(w, "after SIGKILL\t%s\n", since("agreement without the dead server", r.AgreementAfterKillSeconds))
	fmt.Fprintf(w, "after SIGCONT\t%s\n", since("new registration, agreement", r.AgreementAfterResumeSeconds))
	fmt.Fprintf(w, "the paused server\t%s writes after it was declared gone; %s requests in flight when it was resumed%s\n",
		humanize.Comma(r.WritesAfterDeclaredGone), humanize.Comma(r.WritesHeldByPause), kinds(r.HeldWritesByAnswer))
}

func (a Agreement) times() string {
	if a.AgreementSeconds < 0 {
		return since("all reports", a.ReportsSeconds) + ", agreement waits for the other servers"
	}
	return since("all reports", a.ReportsSeconds) + ", " + since("agreement", a.AgreementSeconds)
}

func since(what string, s float64) string {
	if s < 0 {
		return what + ": never"
	}
	return what + " after " + hundredths(s)
}

func kinds(counts map[string]int64) string {
	var parts []string
	for _, kind := range sortedKeys(counts) {
		parts = append(parts, fmt.Sprintf("%s %s", humanize.Comma(counts[kind]), kind))
	}
	return parenthesised(parts)
}

func stalls(all []Stall) string {
	var parts []string
	for _, s := range all {
		parts = append(parts, fmt.Sprintf("%s %s", s.Step, hundredths(s.Seconds)))
	}
	return parenthesised(parts)
}

func parenthesised(parts []string) string {
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func tenths(s float64) string { return fmt.Sprintf("%.1fs", s) }

func hundredths(s float64) string { return fmt.Sprintf("%.2fs", s) }

// elapsed prints minutes and seconds.
func elapsed(d time.Duration) string {
	return fmt.Sprintf("%02d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}
