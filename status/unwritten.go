package status

import (
	"fmt"
	"slices"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/status/servers"
)

const (
	// followedWithin is longer than the controllers take to write what follows from an agreement.
	followedWithin = time.Minute
	// begunWithin is the same time for a migration of a resource whose encodings are not all known: a server that did
	// not report may have stopped, and its last writes are waited for. The value of --migration-settle is not known
	// here.
	begunWithin = 10 * time.Minute
)

// unwritten is that servers agree, and the controllers have not written what follows from it: the
// StorageState, or a migration. The Kind is empty if they have, or need not yet.
func (x *index) unwritten(r *resource) Problem {
	since := r.agreedSince()
	if since.IsZero() || x.Now.Sub(since) < followedWithin || r.unreached() || len(x.Unread) > 0 || !slices.ContainsFunc(x.servers, servers.Server.Controls) {
		return Problem{}
	}
	why := "the controllers do not run, or what they write is refused"
	event, one, refused := "servers have agreed for %s", "its StorageState does not say so", migrationv1alpha1.StorageStates
	switch succeeded := r.succeeded(); {
	case !succeeded.IsZero():
		event, since, why = "its migration succeeded %s ago", succeeded, "the controllers do not run, what they write is refused, or they still count what is stored"
		if x.Now.Sub(since) < followedWithin {
			return Problem{}
		}
	case r.follows():
		one, refused = "no migration of it has begun", migrationv1alpha1.StorageVersionMigrations
		idle, of := r.unbegun()
		if of.After(since) {
			since = of
		}
		within := followedWithin
		if r.unknown() {
			within, why = begunWithin, "the controllers do not run, what they write is refused, or --migration-settle is longer than that"
		}
		starting := slices.ContainsFunc(x.servers, func(s servers.Server) bool { return s.State == servers.Starting })
		if !idle || starting || x.migrates || x.Now.Sub(since) < within {
			return Problem{}
		}
	}
	if x.unattended().Kind != "" {
		return Problem{} // it is why
	}
	return Problem{
		Kind: Unwritten, Resources: []string{r.String()}, alike: event + one + why,
		Text: fmt.Sprintf("%s: "+event+", and %s: %s", r, duration.HumanDuration(x.Now.Sub(since)), one, why),
		Do:   fmt.Sprintf("see the log of the server that holds the Lease of the controllers, and which admission policies and webhooks are for %s: they may refuse what the controllers write", refused),
		Run:  "kubectl get lease -n " + storageversion.IdentityNamespace + " concord-controllers",
	}
}

// agreedSince is since when servers agree; zero where they do not, or that is not known.
func (r *resource) agreedSince() (since time.Time) {
	if r.agreement == (evolve.Target{}) {
		return since
	}
	for _, c := range r.version.Status.Conditions {
		if c.Type == apiserverinternalv1alpha1.AllEncodingVersionsEqual && c.Status == apiserverinternalv1alpha1.ConditionTrue {
			since = c.LastTransitionTime.Time
		}
	}
	return since
}

// follows reports whether the StorageState shows what servers agree on.
func (r *resource) follows() bool {
	if r.state == nil {
		return false
	}
	state := migrationv1alpha1.ViewState(r.state)
	if state.Of.UID == r.agreement.UID && state.Of.Epoch > r.agreement.Epoch {
		return true // the StorageVersion was read before
	}
	return state.Of == r.agreement.Ref && state.Current == r.agreement.Encoding
}

// succeeded is when the first migration succeeded to what servers agree on, if the StorageState lists other encodings
// all the same; zero otherwise.
func (r *resource) succeeded() (at time.Time) {
	if r.state == nil || r.agreement == (evolve.Target{}) || r.settled() {
		return at
	}
	state := migrationv1alpha1.ViewState(r.state)
	if state.Of != r.agreement.Ref {
		return at
	}
	o := evolve.Observation{State: &state}
	for _, m := range r.migrations {
		o.Migrations = append(o.Migrations, migrationv1alpha1.ViewMigration(m))
	}
	for _, m := range o.Succeeded(r.agreement) {
		if at.IsZero() || m.Ended.Before(at) {
			at = m.Ended
		}
	}
	return at
}

// unbegun reports whether the resource needs a migration and has none that has begun, ended for what the StorageState
// says or waits for something, and since when that may be so.
func (r *resource) unbegun() (idle bool, since time.Time) {
	live := r.live()
	if len(live) == 0 {
		// Of a success succeeded says more, unless the StorageVersion was read before its StorageState.
		early := migrationv1alpha1.ViewState(r.state).Of != r.agreement.Ref
		ended := slices.ContainsFunc(r.migrations, func(m *migrationv1alpha1.StorageVersionMigration) bool {
			return migrationv1alpha1.TargetOf(m) == r.agreement && (early || migrationv1alpha1.True(m, migrationv1alpha1.MigrationFailed) != nil)
		})
		return !ended && !r.settled(), r.state.CreationTimestamp.Time
	}
	for _, m := range live {
		if moving := movingOf(r, m); moving.State != Pending || moving.By != "" {
			return false, since
		}
		if at := lastWritten(m); at.After(since) {
			since = at
		}
	}
	return true, since
}

// lastWritten returns when somebody last wrote the object, for example to resume a migration.
func lastWritten(m *migrationv1alpha1.StorageVersionMigration) time.Time {
	last := m.CreationTimestamp
	for _, entry := range m.ManagedFields {
		if entry.Time != nil && last.Before(entry.Time) {
			last = metav1.NewTime(entry.Time.Time)
		}
	}
	return last.Time
}
