package tally

import (
	coordinationv1 "k8s.io/api/coordination/v1"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
)

// tally holds the counts of one time, by resource or Lease.
type tally struct {
	states     map[string]state
	migrations map[string]migration
	leases     map[string]lease
}

type state struct{ agreed, encodings, keys int }

type migration struct {
	phases map[phase]int
	// newest is the progress of the migration that was made last, latest its name.
	newest migrationv1alpha1.MigrationProgress
	latest *migrationv1alpha1.StorageVersionMigration
}

type lease struct {
	renewed float64 // seconds since 1970
	reports bool
}

// phase is the phase of a migration, as shown to people.
type phase string

const (
	pending    phase = "Pending"
	waiting    phase = "WaitingForAgreement"
	running    phase = "Running"
	retrying   phase = "Retrying"
	paused     phase = "Paused"
	succeeded  phase = "Succeeded"
	failed     phase = "Failed"
	superseded phase = "Superseded"
)

var phases = []phase{pending, waiting, running, retrying, paused, succeeded, failed, superseded}

// count makes a tally of the objects.
func count(states []migrationv1alpha1.StorageState, migrations []migrationv1alpha1.StorageVersionMigration, leases []coordinationv1.Lease) *tally {
	counted := &tally{states: map[string]state{}, migrations: map[string]migration{}, leases: map[string]lease{}}
	for i := range states {
		counted.states[states[i].Name] = countState(&states[i])
	}
	for i := range migrations {
		m := &migrations[i]
		resource := migrationv1alpha1.StateName(migrationv1alpha1.Resource(m))
		of := counted.migrations[resource]
		if of.phases == nil {
			of.phases = map[phase]int{}
		}
		of.phases[phaseOf(m)]++
		if of.latest == nil || newer(m, of.latest) {
			of.latest, of.newest = m, migrationv1alpha1.MigrationProgress{}
			if m.Status.Progress != nil {
				of.newest = *m.Status.Progress
			}
		}
		counted.migrations[resource] = of
	}
	for i := range leases {
		if l := &leases[i]; l.Spec.RenewTime != nil {
			counted.leases[l.Name] = lease{
				renewed: float64(l.Spec.RenewTime.UnixMilli()) / 1000,
				reports: storageversion.SilenceOf(l) == "",
			}
		}
	}
	return counted
}

func countState(s *migrationv1alpha1.StorageState) state {
	view := migrationv1alpha1.ViewState(s)
	counted := state{encodings: len(view.Stored)}
	if view.Current != evolve.Unknown {
		counted.agreed = 1
	}
	if s.Status.Encryption != nil {
		counted.keys = len(s.Status.Encryption.StoredKeys)
	}
	return counted
}

func newer(a, b *migrationv1alpha1.StorageVersionMigration) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return b.CreationTimestamp.Before(&a.CreationTimestamp)
	}
	return a.Name > b.Name
}

func phaseOf(m *migrationv1alpha1.StorageVersionMigration) phase {
	view := migrationv1alpha1.ViewMigration(m)
	condition := migrationv1alpha1.True(m, migrationv1alpha1.MigrationRunning)
	switch {
	case view.Phase == evolve.Failed && migrationv1alpha1.Superseded(migrationv1alpha1.True(m, migrationv1alpha1.MigrationFailed).Reason):
		return superseded
	case view.Phase == evolve.Failed:
		return failed
	case view.Phase == evolve.Succeeded:
		return succeeded
	case m.Spec.Paused || condition != nil && condition.Reason == migrationv1alpha1.ReasonPaused:
		return paused
	case view.Phase == evolve.Pending && view.Waiting != "":
		return waiting
	case view.Phase == evolve.Pending:
		return pending
	case condition != nil && condition.Reason == migrationv1alpha1.ReasonRetrying:
		return retrying
	default:
		return running
	}
}
