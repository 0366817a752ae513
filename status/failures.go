package status

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// unanswered matches the errors of clients about a webhook that they could not reach.
var unanswered = regexp.MustCompile(`(?i)connection refused|no such host|deadline exceeded|timeout|timed out|no endpoints|service ".*" not found|no route to host|EOF|connection reset|certificate`)

// failures are the problems of an ended migration: bad objects, a webhook that is down, or
// another failure that ended it.
func failures(r *resource, m *migrationv1alpha1.StorageVersionMigration) []Problem {
	failed := migrationv1alpha1.True(m, migrationv1alpha1.MigrationFailed)
	if failed == nil {
		return nil
	}
	switch failed.Reason {
	case migrationv1alpha1.ReasonObjectsFailed:
		return badObjects(r, m)
	case migrationv1alpha1.ReasonAgreementLost, migrationv1alpha1.ReasonStorageVersionChanged, migrationv1alpha1.ReasonCRDChanged:
		return nil // the change leads to another migration
	}
	return []Problem{{
		Kind: MigrationFailed, Resources: []string{r.String()},
		Text: fmt.Sprintf("%s: the migration %s failed, %s: %s", r, m.Name, failed.Reason, failed.Message),
		Do:   "try again", Run: "kubectl concord migrate " + r.String(),
	}}
}

// badObjects tells the objects that could not be migrated by the reason that kept them.
func badObjects(r *resource, m *migrationv1alpha1.StorageVersionMigration) []Problem {
	var total, done int64
	byReason := map[migrationv1alpha1.MigrationFailureReason]int64{}
	if p := m.Status.Progress; p != nil {
		total, done = p.Failed+p.Done, p.Done
		maps.Copy(byReason, p.FailedByReason)
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
		problems = append(problems, ofReason(r, m, reason, byReason[reason], total, named[reason]))
	}
	return problems
}

func ofReason(r *resource, m *migrationv1alpha1.StorageVersionMigration, reason migrationv1alpha1.MigrationFailureReason, n, total int64, named []migrationv1alpha1.MigrationFailure) Problem {
	p := Problem{Kind: BadObjects, Resources: []string{r.String()}, Failed: n}
	for _, f := range named {
		p.Objects = append(p.Objects, Object{strings.TrimPrefix(f.Namespace+"/"+f.Name, "/"), f.Message})
	}
	of := fmt.Sprintf("%s: %d of %d objects", r, n, total)
	to := "another version"
	if encoding := migrationv1alpha1.TargetOf(m).Encoding; encoding != "" {
		to = string(encoding.Plain())
	}
	p.Run = "kubectl concord migrate " + r.String()
	down := func(f migrationv1alpha1.MigrationFailure) bool { return unanswered.MatchString(f.Message) }
	switch reason {
	case migrationv1alpha1.FailureConversionWebhook:
		webhook := "the conversion webhook"
		if at := r.crd.converter(); at != "" {
			webhook += " (" + at + ")"
		}
		if slices.ContainsFunc(named, down) {
			p.Kind = WebhookDown
			p.Text = fmt.Sprintf("%s wait for %s, which does not answer", of, webhook)
			p.Do = "bring it up; the migration is tried again by itself, and at once by"
			return p
		}
		p.Text = fmt.Sprintf("%s cannot be migrated to %s: %s refuses them", of, to, webhook)
		p.Do = "mend these objects, or the webhook, then"
	case migrationv1alpha1.FailureDoesNotDecode:
		p.Text = fmt.Sprintf("%s cannot be migrated to %s: they cannot be read, and as long as they are there no list of %s can", of, to, r)
		p.Do = fmt.Sprintf("remove them unread, create them anew from a backup, and run kubectl concord migrate %s. Servers before 1.37 remove nothing unread: there take the keys, which a list names, out of etcd. The first", r)
		p.Run = r.removal(named)
	case migrationv1alpha1.FailureTooLarge:
		p.Text = fmt.Sprintf("%s cannot be migrated to %s: they are too large for etcd", of, to)
		p.Do = "make them smaller, then"
	case migrationv1alpha1.FailureRejected:
		p.Text = fmt.Sprintf("%s cannot be migrated to %s: they are not taken as they are", of, to)
		p.Do = fmt.Sprintf("mend them (kubectl edit %s NAME), then", r)
	default:
		p.Text = fmt.Sprintf("%s cannot be migrated to %s", of, to)
		if reason != "" {
			p.Text += ": " + string(reason)
		}
		p.Do = "try again"
	}
	return p
}

// removal is the command, for any shell, that deletes the first of these objects unread.
func (r *resource) removal(named []migrationv1alpha1.MigrationFailure) string {
	gv, err := schema.ParseGroupVersion(r.servedVersion())
	if err != nil || gv.Empty() || len(named) == 0 {
		return ""
	}
	path := "/apis/" + gv.String()
	if gv.Group == "" {
		path = "/api/" + gv.Version
	}
	if named[0].Namespace != "" {
		path += "/namespaces/" + url.PathEscape(named[0].Namespace)
	}
	path += "/" + r.Resource + "/" + url.PathEscape(named[0].Name)
	return "echo '{\"ignoreStoreReadErrorWithClusterBreakingPotential\":true}' | \\\n  kubectl delete -f - --raw \\\n  '" + path + "'"
}

// servedVersion is a group/version in which the resource is served: that in which it is stored, if
// that is one.
func (r *resource) servedVersion() string {
	target := string(r.target().Plain())
	var served []string
	for _, report := range r.reports {
		served = append(served, report.Served...)
	}
	if r.crd != nil {
		served = nil
		for _, v := range r.crd.Spec.Versions {
			if v.Served {
				served = append(served, schema.GroupVersion{Group: r.crd.Spec.Group, Version: v.Name}.String())
			}
		}
	}
	if len(served) == 0 || slices.Contains(served, target) {
		return target
	}
	return served[0]
}

// lastFailure is the newest ended migration if that failed and its work is still to be done; nil
// if there is none.
func (r *resource) lastFailure() *migrationv1alpha1.StorageVersionMigration {
	for _, m := range r.migrations {
		switch {
		case migrationv1alpha1.True(m, migrationv1alpha1.MigrationSucceeded) != nil:
			return nil
		case migrationv1alpha1.True(m, migrationv1alpha1.MigrationFailed) == nil:
			continue
		}
		if migrationv1alpha1.True(m, migrationv1alpha1.MigrationFailed).Reason == migrationv1alpha1.ReasonObjectsFailed && r.settled() {
			return m // of objects that no stored set counts: those that cannot be read
		}
		if target := migrationv1alpha1.TargetOf(m); r.settled() || target != (evolve.Target{}) && r.common != "" && target.Encoding != r.common {
			return nil
		}
		return m
	}
	return nil
}
