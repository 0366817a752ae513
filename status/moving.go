package status

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/status/prose"
	"github.com/concord-dev/concord/status/servers"
)

// Moving is a migration that has not ended.
type Moving struct {
	Resource  string `json:"resource"`
	Migration string `json:"migration"`
	// State is running, proving, retrying, paused, waiting or pending.
	State string `json:"state"`
	// From are the encodings that objects may be in beside To.
	From []string `json:"from,omitempty"`
	To   string   `json:"to,omitempty"`
	// Done, Total and Failed count objects; they are 0 before it begins.
	Done             int64 `json:"done"`
	Total            int64 `json:"total"`
	Failed           int64 `json:"failed"`
	ObjectsPerSecond int64 `json:"objectsPerSecond"`
	// LeftSeconds is how long it will take at this rate. Both are 0 where they are not known.
	LeftSeconds int64 `json:"leftSeconds,omitempty"`
	// Unrated says that its rate, whatever it was, tells nothing: etcd takes no writes for lack of space, or the
	// resource's definition is being deleted.
	Unrated bool `json:"unrated,omitempty"`
	// By is the server that migrates.
	By string `json:"by,omitempty"`
	// Behind lists the resources whose migrations run now, if this one waits until one of them has finished.
	Behind []string `json:"behind,omitempty"`

	// atATime is how many migrations are done at a time.
	atATime int
}

// The states of a migration that has not ended.
const (
	Running  = "running"
	Proving  = "proving"
	Retrying = "retrying"
	IsPaused = "paused"
	IsWaits  = "waiting"
	Pending  = "pending"
)

// stalledAfter is how long a migration may write nothing: a running migration writes its condition every few seconds.
const stalledAfter = 2 * time.Minute

func movingOf(r *resource, m *migrationv1alpha1.StorageVersionMigration) Moving {
	moving := Moving{Resource: r.String(), Migration: m.Name, State: Pending, By: m.Annotations[migrationv1alpha1.ClaimedByAnnotation]}
	if target := migrationv1alpha1.TargetOf(m); target != (evolve.Target{}) {
		moving.To = string(target.Encoding)
		for _, e := range r.stored {
			if e != target.Encoding {
				moving.From = append(moving.From, string(e))
			}
		}
	}
	running := migrationv1alpha1.True(m, migrationv1alpha1.MigrationRunning)
	switch {
	case m.Spec.Paused:
		moving.State = IsPaused
	case migrationv1alpha1.Waiting(m) != "":
		moving.State = IsWaits
	case running != nil && running.Reason == migrationv1alpha1.ReasonRetrying:
		moving.State = Retrying
	case running != nil && running.Reason == migrationv1alpha1.ReasonProving:
		moving.State = Proving
	case running != nil:
		moving.State = Running
	}
	if p := m.Status.Progress; p != nil {
		moving.Done, moving.Total, moving.Failed, moving.ObjectsPerSecond = p.Done, p.Total, p.Failed, p.ObjectsPerSecond
		if left := p.Total - p.Done - p.Failed; left > 0 && p.ObjectsPerSecond > 0 && moving.State == Running {
			moving.LeftSeconds = left/p.ObjectsPerSecond + 1
		}
	}
	return moving
}

// moving returns the migration for display: its rate is 0 where it tells nothing.
func (x *index) moving(r *resource, m *migrationv1alpha1.StorageVersionMigration) Moving {
	moving := movingOf(r, m)
	moving.Behind, moving.atATime = x.behind(r, m)
	if r.isDeleted() || slices.Contains(x.FailedChecks, "etcd-space") {
		moving.ObjectsPerSecond, moving.LeftSeconds, moving.Unrated = 0, 0, true
	}
	return moving
}

// perServer is how many migrations a server does at a time, or concord controllers in place of all.
const perServer = 2

// behind are the resources whose migrations keep this one from its turn, and how many are done at a time; none where
// it has been claimed, is kept by something else, or could be claimed.
func (x *index) behind(r *resource, m *migrationv1alpha1.StorageVersionMigration) (resources []string, atATime int) {
	target := migrationv1alpha1.TargetOf(m).Encoding
	claimed := m.Annotations[migrationv1alpha1.ClaimedByAnnotation] != ""
	if claimed || movingOf(r, m).State != Pending || target == "" || target != r.common || x.unattended().Kind != "" {
		return nil, 0
	}
	for _, s := range x.servers {
		if s.Controls() {
			atATime += perServer
		}
	}
	atATime = max(atATime, perServer) // of servers that do not report, concord controllers migrate
	done := 0
	for i := range x.Migrations {
		other := &x.Migrations[i]
		if migrationv1alpha1.Final(other) || other.Annotations[migrationv1alpha1.ClaimedByAnnotation] == "" {
			continue
		}
		of := x.get(migrationv1alpha1.Resource(other))
		if !slices.Contains([]string{Running, Proving}, movingOf(of, other).State) {
			continue
		}
		done++
		if !slices.Contains(resources, of.String()) {
			resources = append(resources, of.String())
		}
	}
	if done < atATime {
		return nil, 0
	}
	slices.Sort(resources)
	return resources, atATime
}

// turn says when a migration begins that waits for others.
func (m Moving) turn() string {
	return fmt.Sprintf("it is migrated when its turn comes: no more than %d migrations run at a time here, and those of %s do; where these are stuck, kubectl concord pause %s makes room",
		m.atATime, prose.Some(m.Behind), m.Behind[0])
}

// share is how much of it is done, from 0 to 1.
func (m Moving) share() float64 { return Fraction(m.Done, m.Total) }

// Fraction is how much of a migration is done, from 0 to 1: objects that failed are not.
func Fraction(done, total int64) float64 {
	if total <= 0 {
		return 0
	}
	return min(1, float64(done)/float64(total))
}

// problem returns what keeps the migration from going on; the Kind is empty if nothing does.
func (m Moving) problem(x *index, r *resource, of *migrationv1alpha1.StorageVersionMigration) Problem {
	p := Problem{Resources: []string{m.Resource}}
	switch running := migrationv1alpha1.True(of, migrationv1alpha1.MigrationRunning); {
	case m.State == IsPaused:
		p.Kind = Paused
		p.Text = fmt.Sprintf("%s: its migration is paused", m.Resource)
		if m.Total > 0 {
			p.Text = fmt.Sprintf("%s: its migration is paused at %d %%", m.Resource, int(100*m.share()))
		}
		p.Do, p.Run = "let it go on", "kubectl concord resume "+m.Resource
	case m.State == IsWaits:
		why := migrationv1alpha1.Waiting(of)
		p.Kind, p.alike = Waiting, why
		p.Text = fmt.Sprintf("%s: its migration waits: %s", m.Resource, why)
		p.merged = func(resources []string) string {
			return fmt.Sprintf("migrations of %d resources wait, %s: %s", len(resources), prose.Some(resources), why)
		}
	case m.State == Retrying:
		return retried(r, running.Message)
	case running != nil && x.Now.Sub(running.LastUpdateTime.Time) > stalledAfter:
		p.Kind = Stalled
		p.Text = fmt.Sprintf("%s: its migration has told nothing for %s", m.Resource, duration.HumanDuration(x.Now.Sub(running.LastUpdateTime.Time)))
		p.Do = "another server takes it over when the Lease of " + m.By + " is gone; if that one serves, its log says more"
		if server, here := x.server(agree.ServerID(m.By)); here && server.State == servers.Dead {
			p.Do = "another server takes it over when the Lease of " + m.By + ", which is dead, is gone"
		}
		if r.version == nil { // no server reports: concord controllers migrate
			p.Do = "another process of concord controllers takes it over when " + m.By + " has ended; their log says more"
		}
	}
	return p
}

// live are the resource's migrations that have not ended.
func (r *resource) live() (all []*migrationv1alpha1.StorageVersionMigration) {
	for _, m := range r.migrations {
		if !migrationv1alpha1.Final(m) {
			all = append(all, m)
		}
	}
	return all
}
