package v1alpha1

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/evolve"
)

// HistoryAnnotation, on a StorageState, lists the latest finished migrations of the resource: a JSON list of Past,
// newest first. It is for people; no decision depends on it.
const HistoryAnnotation = "concord.dev/history"

// MaxHistory bounds the history of a resource.
const MaxHistory = 10

// Past is a migration that has ended.
type Past struct {
	Migration string    `json:"migration"`
	UID       types.UID `json:"uid"`
	// From are the encodings that objects might be in beside To; unknown where it is empty.
	From []string `json:"from,omitempty"`
	To   string   `json:"to,omitempty"`
	// Objects counts the objects that are in To, Failed those that could not be migrated. Failures names the first of
	// the latter.
	Objects  int64    `json:"objects"`
	Failed   int64    `json:"failed,omitempty"`
	Failures []string `json:"failures,omitempty"`
	// Why is the beginning of why the first of them could not, or of why the migration failed.
	Why string `json:"why,omitempty"`
	// FailureReason is the reason of the first of them; empty where Failures names none.
	FailureReason MigrationFailureReason `json:"failureReason,omitempty"`
	// Result is Succeeded, Failed, or PastSuperseded in place of a Failed whose reason is one of Superseded; Reason is the
	// condition's.
	Result string `json:"result"`
	Reason string `json:"reason,omitempty"`
	// Made says who asked for it: the trigger, or the program that created it.
	Made string `json:"made,omitempty"`
	// User is the user who asked for the migration, if the program that created it said so.
	User string `json:"user,omitempty"`
	// By is the server that migrated.
	By    string      `json:"by,omitempty"`
	Began metav1.Time `json:"began"`
	Ended metav1.Time `json:"ended"`
}

// PastSuperseded is the Past.Result of a migration that ended because servers no longer agree, agree on another version,
// or its CRD changed.
const PastSuperseded = "Superseded"

const (
	// pastFailures is how many objects of a past migration are named.
	pastFailures = 3
	// maxWhy bounds Past.Why, in bytes.
	maxWhy = 300
)

// PastOf returns the Past of a finished migration, and false for an unfinished one. stored lists the encodings that
// objects might have had when it began.
func PastOf(m *StorageVersionMigration, stored []agree.Encoding) (Past, bool) {
	ended := True(m, MigrationSucceeded)
	if ended == nil {
		ended = True(m, MigrationFailed)
	}
	if ended == nil {
		return Past{}, false
	}
	p := Past{
		Migration: m.Name, UID: m.UID, Result: string(ended.Type), Reason: ended.Reason, Made: m.Labels[MadeByLabel], User: userOf(m.Annotations[AskedByUserAnnotation]),
		By: m.Annotations[ClaimedByAnnotation], Began: m.CreationTimestamp, Ended: ended.LastUpdateTime,
	}
	if m.Annotations[AttemptAnnotation] != "" { // the label is gone where it was paused, and its target changed
		p.Made = MadeByTrigger
	}
	p.Made = cmp.Or(p.Made, m.Labels[AskedByLabel], creator(m.ManagedFields))
	if target := TargetOf(m); target != (evolve.Target{}) {
		p.To = string(target.Encoding)
	}
	for _, e := range stored {
		if string(e) != p.To {
			p.From = append(p.From, string(e))
		}
	}
	if progress := m.Status.Progress; progress != nil {
		p.Objects, p.Failed = progress.Done, progress.Failed
	}
	for _, f := range m.Status.Failures[:min(len(m.Status.Failures), pastFailures)] {
		p.Failures = append(p.Failures, f.Object())
	}
	switch {
	case ended.Type != MigrationFailed:
	case Superseded(ended.Reason):
		p.Result = PastSuperseded
	case len(m.Status.Failures) > 0:
		p.Why, p.FailureReason = beginning(m.Status.Failures[0].Message), m.Status.Failures[0].Reason
	default:
		p.Why = beginning(ended.Message)
	}
	return p, true
}

// beginning cuts a text.
func beginning(text string) string {
	if len(text) <= maxWhy {
		return text
	}
	return strings.ToValidUTF8(text[:maxWhy], "") + "…"
}

// creator returns the program that created a migration: the one that set spec.resource, which cannot be changed. The
// order of the entries does not show it, since their times have whole seconds.
func creator(entries []metav1.ManagedFieldsEntry) string {
	var other string
	for _, e := range entries {
		var fields struct {
			Spec struct {
				Resource json.RawMessage `json:"f:resource"`
			} `json:"f:spec"`
		}
		if e.Subresource != "" {
			continue
		}
		if e.FieldsV1 != nil && json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields) == nil && fields.Spec.Resource != nil {
			return e.Manager
		}
		if own := e.Manager == "concord" || strings.HasPrefix(e.Manager, "concord-"); other == "" && !own {
			other = e.Manager
		}
	}
	return other
}

// Object is the name of the object, behind its namespace if it has one.
func (f MigrationFailure) Object() string {
	if f.Namespace == "" {
		return f.Name
	}
	return f.Namespace + "/" + f.Name
}

// maxUser bounds, in characters, the name of a user.
const maxUser = 100

// userOf is the printable name of a user, from an annotation that any client may set to anything.
func userOf(annotation string) string {
	var user []rune
	for _, r := range annotation {
		if len(user) == maxUser {
			return string(user) + "…"
		}
		if !unicode.IsPrint(r) {
			r = '?'
		}
		user = append(user, r)
	}
	return string(user)
}

// Took is how long the migration took, from when it was asked for.
func (p Past) Took() time.Duration { return max(0, p.Ended.Sub(p.Began.Time)) }

// History reads the annotation. An annotation that cannot be parsed counts as empty. Older controllers recorded those
// that were superseded as failed.
func History(annotations map[string]string) []Past {
	var all []Past
	if json.Unmarshal([]byte(annotations[HistoryAnnotation]), &all) != nil {
		return nil
	}
	for i := range all {
		if p := &all[i]; p.Result == string(MigrationFailed) && Superseded(p.Reason) {
			p.Result = PastSuperseded
		}
	}
	return all
}

// Recorded returns the annotation's value with more past migrations added; the entries that it has stay unchanged.
func Recorded(annotations map[string]string, more ...Past) string {
	text, err := json.Marshal(Merged(History(annotations), more...))
	if err != nil {
		// A struct of strings and numbers always marshals.
		panic(err)
	}
	return string(text)
}

// Merged returns a history with more migrations in it, the newest first and at most
// MaxHistory.
func Merged(history []Past, more ...Past) []Past {
	all := slices.Clone(history)
	for _, p := range more {
		if !slices.ContainsFunc(all, func(old Past) bool { return old.UID == p.UID }) {
			all = append(all, p)
		}
	}
	slices.SortStableFunc(all, func(a, b Past) int { return b.Ended.Compare(a.Ended.Time) })
	return all[:min(len(all), MaxHistory)]
}
