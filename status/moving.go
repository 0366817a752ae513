package status

import (
	"fmt"
	"slices"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
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
	// Unrated says that its rate, whatever it was, tells nothing: etcd takes no writes for lack of space, the
	// resource's definition is being deleted, its server is gone or dead, or it was told long ago.
	Unrated bool `json:"unrated,omitempty"`
	// By is the server that migrates; empty while none does, for example because the one that began is gone.
	By string `json:"by,omitempty"`
	// Behind lists the resources whose migrations run now, if this one waits until one of them has finished.
	Behind []string `json:"behind,omitempty"`
	// LeftBy is the server that began it and is gone, while no other one has taken it over. Then it is Pending.
	LeftBy string `json:"leftBy,omitempty"`

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

const (
	// stalledAfter is how long a migration may write nothing: a running migration writes its condition every few seconds.
	stalledAfter = 2 * time.Minute
	// goneAfter is for processes of concord controllers, twice as long as one waits at most between two tries (15 s); at
	// work it writes every few seconds.
	goneAfter = 30 * time.Second
)

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
	server, _ := x.server(agree.ServerID(moving.By))
	silent := moving.State == Running && (server.State == servers.Dead || x.Now.Sub(toldAt(m)) > stalledAfter)
	if x.interrupted(m) {
		moving.State, moving.By, moving.LeftBy = Pending, "", moving.By
	}
	moving.Behind, moving.atATime = x.behind(r, m)
	if silent || moving.LeftBy != "" || r.isDeleted() || slices.Contains(x.FailedChecks, "etcd-space") {
		moving.ObjectsPerSecond, moving.LeftSeconds, moving.Unrated = 0, 0, true
	}
	return moving
}

// interrupted reports whether the server that has claimed a migration is gone, so that another one takes it over. A
// server is gone if it has no Lease, while others of Concord have one. Processes of concord controllers have no such
// Lease. Only the elected one migrates: if another process has written that it migrates more than goneAfter after this
// one last did, this one has ended.
func (x *index) interrupted(m *migrationv1alpha1.StorageVersionMigration) bool {
	by := m.Annotations[migrationv1alpha1.ClaimedByAnnotation]
	if by == "" || m.Spec.Paused || migrationv1alpha1.Final(m) || migrationv1alpha1.Waiting(m) != "" {
		return false
	}
	if _, here := x.server(agree.ServerID(by)); here {
		return false
	}
	if slices.ContainsFunc(x.servers, func(s servers.Server) bool { return s.Silence == "" && !s.Aggregated }) {
		return true
	}
	if len(x.servers) == 0 && slices.ContainsFunc(x.StorageVersions, func(v apiserverinternalv1alpha1.StorageVersion) bool { return len(v.Status.StorageVersions) > 0 }) {
		return false // servers report, and their Leases may not be listed
	}
	last := x.told[by]
	for _, at := range x.told {
		if !last.IsZero() && at.Sub(last) > goneAfter && x.Now.Sub(last) > goneAfter {
			return true
		}
	}
	return false
}

// toldLast is when each server that has claimed migrations wrote last that one of them runs: other conditions are written
// by others, too, whose clocks may differ.
func toldLast(migrations []migrationv1alpha1.StorageVersionMigration) map[string]time.Time {
	last := map[string]time.Time{}
	for i := range migrations {
		by := migrations[i].Annotations[migrationv1alpha1.ClaimedByAnnotation]
		if c := migrationv1alpha1.True(&migrations[i], migrationv1alpha1.MigrationRunning); by != "" && c != nil && c.LastUpdateTime.After(last[by]) {
			last[by] = c.LastUpdateTime.Time
		}
	}
	return last
}

// toldAt is when the server at work on a migration wrote last that it runs, or when the migration was written last,
// which is when a server claimed it that has written nothing since.
func toldAt(m *migrationv1alpha1.StorageVersionMigration) time.Time {
	if running := migrationv1alpha1.True(m, migrationv1alpha1.MigrationRunning); running != nil {
		return running.LastUpdateTime.Time
	}
	return lastWritten(m)
}

// perServer is how many migrations a server does at a time, or concord controllers in place of all.
const perServer = 2

// behind are the resources whose migrations keep this one from its turn, and how many are done at a time; none where
// a server is at work on it, it is kept by something else, or it could be claimed.
func (x *index) behind(r *resource, m *migrationv1alpha1.StorageVersionMigration) (resources []string, atATime int) {
	target := migrationv1alpha1.TargetOf(m).Encoding
	waits := m.Annotations[migrationv1alpha1.ClaimedByAnnotation] == "" && movingOf(r, m).State == Pending || x.interrupted(m)
	if !waits || target == "" || target != r.common || x.unattended().Kind != "" {
		return nil, 0
	}
	for _, s := range x.servers {
		if s.Controls() {
			atATime += perServer
		}
	}
	atATime = max(atATime, perServer) // of servers that do not report, concord controllers migrate
	done := 0
	for _, other := range x.claimed {
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

// turn says when a migration begins, or goes on, that waits for others.
func (m Moving) turn() string {
	begins := "it is migrated"
	if m.LeftBy != "" {
		begins = "its migration, which " + m.LeftBy + " began, goes on"
	}
	return fmt.Sprintf("%s when its turn comes: no more than %d migrations run at a time here, and those of %s do; where these are stuck, kubectl concord pause %s makes room",
		begins, m.atATime, prose.Some(m.Behind), m.Behind[0])
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
	case m.State == Retrying:
		return retried(r, running.Message)
	case m.LeftBy != "":
		return x.untaken(r, m, x.Now.Sub(toldAt(of)))
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

// untaken is the problem that a migration's server is gone and no other one has taken the migration over for long; the
// Kind is empty if that may still happen, or if something else prevents it.
func (x *index) untaken(r *resource, m Moving, silence time.Duration) Problem {
	if silence <= stalledAfter || len(m.Behind) > 0 || m.To != string(r.common) || x.unattended().Kind != "" {
		return Problem{}
	}
	p := Problem{Kind: Stalled, Resources: []string{m.Resource}}
	p.Text = fmt.Sprintf("%s: its migration was begun by %s, which is gone, and no other one has gone on with it for %s", m.Resource, m.LeftBy, duration.HumanDuration(silence))
	p.Do = "the servers that serve could take it over: their logs say why none does"
	if r.version == nil { // no server reports: concord controllers migrate
		p.Do = "the elected process of concord controllers could take it over: its log says why it does not"
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
