package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/status/cause"
	"github.com/concord-dev/concord/status/prose"
)

// retried is the problem that a running migration makes no progress, and why.
func retried(r *resource, why string) Problem {
	p := Problem{Kind: Stalled, Resources: []string{r.String()}, Text: fmt.Sprintf("%s: its migration is tried again after an error: %s", r, why)}
	switch {
	case strings.Contains(why, "conversion webhook for "):
		fails, do := cause.Unreached(why)
		_, answer, _ := strings.Cut(why, " failed: ")
		p.Text = fmt.Sprintf("%s: its migration waits for %s, %s: %s", r, converter(r.crd), cmp.Or(fails, "whose calls fail"), answer)
		p.Do = cmp.Or(do, "mend it") + "; the migration goes on by itself"
	case cause.TimedOut(why) && converts(r.crd):
		p.Do = "see that " + converter(r.crd) + " answers; the migration goes on by itself"
	default:
		if do := r.readAgain(cause.UnreadBy(why)); do != "" {
			p.Do = do + "; the migration goes on by itself"
		}
	}
	return p
}

// retrying is the error after which a running migration tries again; empty where it does not.
func retrying(m *migrationv1alpha1.StorageVersionMigration) string {
	if running := migrationv1alpha1.True(m, migrationv1alpha1.MigrationRunning); running != nil && running.Reason == migrationv1alpha1.ReasonRetrying && !m.Spec.Paused {
		return running.Message
	}
	return ""
}

// retriesFor reports whether a migration tries again because of the conversion webhook that its failed objects wait for.
func retriesFor(r *resource, m *migrationv1alpha1.StorageVersionMigration, bad []Problem) bool {
	why := retrying(m)
	return (strings.Contains(why, "conversion webhook for ") || cause.TimedOut(why) && converts(r.crd)) &&
		slices.ContainsFunc(bad, func(p Problem) bool { return p.Kind == WebhookDown && strings.Contains(p.Text, converter(r.crd)) })
}

// repeated is the failure that a running migration repeats, until it reports one of its own: the migration that failed
// was deleted to make room for it.
func repeated(r *resource, m *migrationv1alpha1.StorageVersionMigration, moving Moving) Problem {
	if p := m.Status.Progress; r.state == nil || p != nil && p.Done+p.Failed > 0 {
		return Problem{}
	}
	history := migrationv1alpha1.History(r.state.Annotations)
	if len(history) == 0 || history[0].Result != string(migrationv1alpha1.MigrationFailed) || history[0].To != string(migrationv1alpha1.TargetOf(m).Encoding) {
		return Problem{}
	}
	last, again := history[0], "is tried again now"
	if moving.State == Pending && moving.By == "" {
		again = "waits to be tried again"
	}
	p := Problem{
		Kind: Stalled, Resources: []string{r.String()}, Failed: last.Failed,
		Text: fmt.Sprintf("%s: its last migration failed, %s, and %s", r, last.Reason, again),
	}
	if last.Reason == migrationv1alpha1.ReasonObjectsFailed && len(last.Failures) > 0 {
		p.Text = fmt.Sprintf("%s: its last migration could not migrate %s, such as %s, and %s", r, prose.Objects(last.Failed), strings.Join(last.Failures, ", "), again)
	}
	if last.Why != "" {
		p.Text += ": " + last.Why
	}
	p.Do, p.Run = advised(r, m, last)
	return p
}

// advised returns the advice about the failure of a past migration that m repeats, as it was given when that migration
// had ended.
func advised(r *resource, m *migrationv1alpha1.StorageVersionMigration, last migrationv1alpha1.Past) (do, run string) {
	switch {
	case last.Reason == migrationv1alpha1.ReasonChangedByAdmission:
		return excluded, ""
	case last.FailureReason == "" || len(last.Failures) == 0:
		_, do = cause.Unreached(last.Why)
		return do, ""
	}
	failed := m.DeepCopy()
	metav1.SetMetaDataAnnotation(&failed.ObjectMeta, migrationv1alpha1.ClaimedByAnnotation, last.By)
	f := migrationv1alpha1.MigrationFailure{Name: last.Failures[0], Reason: last.FailureReason, Message: last.Why}
	if namespace, name, namespaced := strings.Cut(f.Name, "/"); namespaced {
		f.Namespace, f.Name = namespace, name
	}
	failed.Status.Progress = &migrationv1alpha1.MigrationProgress{Done: last.Objects, Failed: last.Failed}
	failed.Status.Failures = []migrationv1alpha1.MigrationFailure{f}
	p := badObjects(r, failed)[0]
	if do, follows := strings.CutSuffix(p.Do, followed); follows {
		return do + "; the migration is tried again by itself", p.Run
	}
	return p.Do, p.Run
}

// excluded is the advice if admission changes objects at every write.
const excluded = "exclude the user of the controllers, system:serviceaccount:concord-system:concord-controllers in their manifests, from that mutating webhook or policy (matchConditions), or suspend it"

// failures are the problems of an ended migration: bad objects, a webhook that is down, or
// another failure that ended it.
func failures(r *resource, m *migrationv1alpha1.StorageVersionMigration) []Problem {
	failed := migrationv1alpha1.True(m, migrationv1alpha1.MigrationFailed)
	if failed == nil || migrationv1alpha1.Superseded(failed.Reason) {
		return nil
	}
	p := Problem{
		Kind: MigrationFailed, Resources: []string{r.String()},
		Text: fmt.Sprintf("%s: the migration %s failed, %s: %s", r, m.Name, failed.Reason, failed.Message),
		Do:   "try again", Run: "kubectl concord migrate " + r.String(),
	}
	remove := "kubectl delete storageversionmigrations.migration.k8s.io " + m.Name
	switch failed.Reason {
	case migrationv1alpha1.ReasonObjectsFailed:
		return badObjects(r, m)
	case migrationv1alpha1.ReasonChangedByAdmission:
		p.Do = excluded + ", then"
	case migrationv1alpha1.ReasonResourceNotFound, migrationv1alpha1.ReasonNotManaged:
		p.Do, p.Run = "no other try helps while that is so; take it away", remove
	case migrationv1alpha1.ReasonVersionNotServed:
		p.Do, p.Run = "objects are migrated without it; take it away", remove
	default:
		if do := cause.Lacks(failed.Message); do != "" {
			p.Do, p.Run = do+"; the migration is tried again by itself", ""
		}
	}
	return []Problem{p}
}

// badObjects returns the problems of the objects that a migration could not migrate, by reason. The migration may still
// run.
func badObjects(r *resource, m *migrationv1alpha1.StorageVersionMigration) []Problem {
	var total, done int64
	byReason := map[migrationv1alpha1.MigrationFailureReason]int64{}
	if p := m.Status.Progress; p != nil {
		total, done = p.Failed+p.Done, p.Done
		if !migrationv1alpha1.Final(m) {
			total = max(total, p.Total)
		}
		maps.Copy(byReason, p.FailedByReason)
		if len(byReason) == 0 && len(m.Status.Failures) == 0 && p.Failed > 0 {
			byReason[""] = p.Failed
		}
	}
	named := map[migrationv1alpha1.MigrationFailureReason][]migrationv1alpha1.MigrationFailure{}
	for _, f := range m.Status.Failures {
		named[f.Reason] = append(named[f.Reason], f)
	}
	for reason, list := range named {
		byReason[reason] = max(byReason[reason], int64(len(list)))
	}
	if total == 0 {
		for _, n := range byReason {
			total += n
		}
		total += done
	}
	var problems []Problem
	for _, reason := range slices.SortedFunc(maps.Keys(byReason), func(a, b migrationv1alpha1.MigrationFailureReason) int {
		return cmp.Or(cmp.Compare(byReason[b], byReason[a]), cmp.Compare(a, b))
	}) {
		n := byReason[reason]
		left, named := r.byScope(named[reason])
		if len(left) > 0 {
			of := int64(len(left))
			if len(named) == 0 {
				of = n // as those that are named
			}
			problems = append(problems, leftOver(r, m, of, total, left))
			if n -= of; n == 0 {
				continue
			}
		}
		if reason == migrationv1alpha1.FailureDoesNotDecode {
			problems = append(problems, unread(r, m, n, total, named)...)
			continue
		}
		problems = append(problems, ofReason(r, m, reason, n, total, named))
	}
	return problems
}

// followed ends the advice about objects that a migration under way has met: it does not come to them again.
const followed = "; the migration that is under way is followed by another try"

// ofObjects is the problem that n of a migration's objects have, with what to do about all of them: once it is
// done, the migration is tried again.
func ofObjects(r *resource, m *migrationv1alpha1.StorageVersionMigration, n int64, named []migrationv1alpha1.MigrationFailure, text, do string) Problem {
	p := Problem{Kind: BadObjects, Resources: []string{r.String()}, Failed: n, Text: text}
	for _, f := range named {
		p.Objects = append(p.Objects, Object{f.Object(), cause.Alike(f.Message)})
	}
	if !migrationv1alpha1.Final(m) {
		p.Do = do + followed
		return p
	}
	p.Do, p.Run = do+", then", "kubectl concord migrate "+r.String()
	return p
}

// inLog says where all objects are named that a migration cannot migrate.
func inLog(m *migrationv1alpha1.StorageVersionMigration) string {
	return "see the log of " + cmp.Or(m.Annotations[migrationv1alpha1.ClaimedByAnnotation], "the server that migrates") + ", which names them"
}

// toEncoding returns the encoding that a migration of the resource writes, for people: with its key if that is what
// changes.
func toEncoding(r *resource, m *migrationv1alpha1.StorageVersionMigration) string {
	encoding := migrationv1alpha1.TargetOf(m).Encoding
	if encoding == "" {
		return "another version"
	}
	rekeyed := slices.ContainsFunc(r.stored, func(e agree.Encoding) bool { return e != encoding && e.Plain() == encoding.Plain() })
	switch seal := encoding.Seal(); {
	case !rekeyed:
		return string(encoding.Plain())
	case seal == "":
		return string(encoding) + " without encryption"
	default:
		return string(encoding.Plain()) + " encrypted with " + seal.Key()
	}
}

func ofReason(r *resource, m *migrationv1alpha1.StorageVersionMigration, reason migrationv1alpha1.MigrationFailureReason, n, total int64, named []migrationv1alpha1.MigrationFailure) Problem {
	of := fmt.Sprintf("%s: %d of %d objects", r, n, total)
	kept := fmt.Sprintf("%s cannot be migrated to %s", of, toEncoding(r, m))
	switch reason {
	case migrationv1alpha1.FailureConversionWebhook:
		webhook := converter(r.crd)
		messages := []string{}
		for _, f := range named {
			messages = append(messages, f.Message)
		}
		if message := retrying(m); strings.Contains(message, "conversion webhook") {
			messages = append(messages, message)
		}
		for _, message := range messages {
			why, do := cause.Unreached(message)
			if why == "" {
				continue
			}
			p := ofObjects(r, m, n, named, fmt.Sprintf("%s wait for %s, %s", of, webhook, why), do)
			p.Kind = WebhookDown
			if migrationv1alpha1.Final(m) {
				p.Do = do + "; the migration is tried again by itself, and at once by"
			}
			return p
		}
		if len(named) == 0 { // a migration under way names objects later than it counts them
			return ofObjects(r, m, n, named, fmt.Sprintf("%s wait for %s, which does not answer, or refuses them", of, webhook), "see that it answers")
		}
		return ofObjects(r, m, n, named, fmt.Sprintf("%s: %s refuses them", kept, webhook), "mend these objects, or the webhook")
	case migrationv1alpha1.FailureTooLarge:
		do := "make them smaller"
		if converts(r.crd) {
			do += ", or see what " + converter(r.crd) + " adds to them"
		}
		return ofObjects(r, m, n, named, kept+": they are too large for etcd", do)
	case migrationv1alpha1.FailureRejected:
		return rejected(r, m, of, kept, n, named)
	}
	if reason != "" {
		kept += ": " + string(reason)
	}
	p := ofObjects(r, m, n, named, kept, inLog(m))
	if migrationv1alpha1.Final(m) {
		p.Do = "try again"
	}
	return p
}

// lastFailure returns the newest failed migration whose work is still to be done; nil if there is none. A migration
// that failed before it had a target is used only if there is no other.
func (r *resource) lastFailure() *migrationv1alpha1.StorageVersionMigration {
	var untargeted *migrationv1alpha1.StorageVersionMigration
	for _, m := range r.migrations {
		failed := migrationv1alpha1.True(m, migrationv1alpha1.MigrationFailed)
		target := migrationv1alpha1.TargetOf(m)
		switch {
		case migrationv1alpha1.True(m, migrationv1alpha1.MigrationSucceeded) != nil:
			return untargeted
		case failed == nil:
		case target == (evolve.Target{}):
			if untargeted == nil && !r.settled() && !r.overtaken(failed) {
				untargeted = m
			}
		case failed.Reason == migrationv1alpha1.ReasonObjectsFailed && r.settled() && meetsUnreadable(m):
			return m // no stored set counts objects that cannot be read
		case r.settled() || r.common != "" && target.Encoding != r.common:
			return untargeted
		default:
			return m
		}
	}
	return untargeted
}

// overtaken reports whether the failure of a migration without a target no longer matters: another migration does what
// it was asked for, or has done it, or servers have agreed again since.
func (r *resource) overtaken(failed *migrationv1alpha1.MigrationCondition) bool {
	if r.version != nil {
		for _, c := range r.version.Status.Conditions {
			if c.Type == apiserverinternalv1alpha1.AllEncodingVersionsEqual && failed.LastUpdateTime.Before(&c.LastTransitionTime) {
				return true
			}
		}
	}
	return slices.ContainsFunc(r.migrations, func(m *migrationv1alpha1.StorageVersionMigration) bool {
		succeeded := migrationv1alpha1.True(m, migrationv1alpha1.MigrationSucceeded)
		return !migrationv1alpha1.Final(m) || succeeded != nil && !succeeded.LastUpdateTime.Before(&failed.LastUpdateTime)
	})
}

// meetsUnreadable says whether a migration met objects that cannot be read.
func meetsUnreadable(m *migrationv1alpha1.StorageVersionMigration) bool {
	return m.Status.Progress != nil && m.Status.Progress.FailedByReason[migrationv1alpha1.FailureDoesNotDecode] > 0 ||
		slices.ContainsFunc(m.Status.Failures, func(f migrationv1alpha1.MigrationFailure) bool {
			return f.Reason == migrationv1alpha1.FailureDoesNotDecode
		})
}
