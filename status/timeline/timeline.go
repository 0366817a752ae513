// Package timeline tells what happened to a cluster, from the objects that were read for its status.
package timeline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
	"github.com/concord-dev/concord/status"
	"github.com/concord-dev/concord/status/prose"
	"github.com/concord-dev/concord/status/servers"
)

// Moment is something that happened to the cluster.
type Moment struct {
	At   time.Time `json:"at"`
	Kind Kind      `json:"kind"`
	Text string    `json:"text"`
}

// Kind is the kind of a Moment.
type Kind string

// The kinds of moments.
const (
	// ServerJoined and ServerLeft: a server got its identity Lease, and lost it.
	ServerJoined Kind = "joined"
	ServerLeft   Kind = "left"
	// Agreed and Disagreed: servers began to store resources in one encoding, or in several.
	Agreed    Kind = "agreed"
	Disagreed Kind = "disagreed"
	// Versions: the servers' releases came to differ, or to be the same.
	Versions Kind = "versions"
	// Began, Migrated and NotMigrated: a migration.
	Began       Kind = "began"
	Migrated    Kind = "migrated"
	NotMigrated Kind = "failed"
	// Told: another Event of Concord's, or a migration that ended because servers no longer agree, agree
	// on another version, or its CRD changed.
	Told Kind = "told"
)

const (
	// keptMoments bounds a timeline.
	keptMoments = 200
	// together is the longest time within which similar occurrences are shown as one: the start of a server changes
	// the agreement on all resources within a moment.
	together = 5 * time.Second
)

// occurrence is a moment before similar ones are merged.
type occurrence struct {
	Moment
	// alike is empty for an occurrence that is shown separately.
	alike    string
	resource string
	objects  int64
}

// Of returns what happened since the start of the oldest server that has a Lease, newest first.
func Of(o status.Observed) []Moment {
	var since time.Time
	for _, lease := range storageversion.Servers(slices.Clone(o.Leases)) {
		if at := lease.CreationTimestamp.Time; since.IsZero() || at.Before(since) {
			since = at
		}
	}
	all := slices.Concat(joinedAndLeft(o), agreements(o.StorageVersions), migrations(o), told(o))
	all = slices.DeleteFunc(all, func(m occurrence) bool { return m.At.IsZero() || m.At.Before(since) })
	slices.SortStableFunc(all, func(a, b occurrence) int {
		return cmp.Or(a.At.Compare(b.At), strings.Compare(a.resource, b.resource), strings.Compare(a.Text, b.Text))
	})
	moments := asOne(all)
	slices.Reverse(moments)
	return moments[:min(len(moments), keptMoments)]
}

// asOne merges similar occurrences that happen together into one moment.
func asOne(all []occurrence) []Moment {
	moments := []Moment{}
	type open struct {
		at        int // in moments
		resources []string
		objects   int64
	}
	under := map[string]*open{}
	for _, m := range all {
		group := under[m.alike]
		if m.alike == "" || group == nil || m.At.Sub(moments[group.at].At) > together {
			group = &open{at: len(moments)}
			under[m.alike] = group
			moments = append(moments, m.Moment)
		}
		if m.alike == "" {
			continue
		}
		group.resources = append(group.resources, m.resource)
		group.objects += m.objects
		if n := len(group.resources); n > 1 {
			moments[group.at].Text = fmt.Sprintf("%d resources, %s: %s", n, prose.Some(group.resources), m.alike)
			if m.Kind == Migrated {
				moments[group.at].Text += fmt.Sprintf(" (%s)", prose.Objects(group.objects))
			}
		}
	}
	return moments
}

func joinedAndLeft(o status.Observed) (all []occurrence) {
	for _, lease := range storageversion.Servers(slices.Clone(o.Leases)) {
		s := servers.One(&lease, o.Now, servers.Renewal{})
		all = append(all, occurrence{Moment: Moment{lease.CreationTimestamp.Time, ServerJoined, fmt.Sprintf("%s (%s) was started", s.ID, s.Versions())}})
	}
	for _, gone := range o.Left {
		s := servers.One(&gone.Lease, o.Now, servers.Renewal{})
		all = append(all, occurrence{Moment: Moment{gone.At, ServerLeft, fmt.Sprintf("%s (%s) left", s.ID, s.Versions())}})
	}
	return all
}

// agreements are the last changes of agreement, by resource.
func agreements(versions []apiserverinternalv1alpha1.StorageVersion) (all []occurrence) {
	for i := range versions {
		sv := &versions[i]
		gr, err := storageversion.GroupResource(sv.Name)
		if err != nil {
			continue
		}
		for _, c := range sv.Status.Conditions {
			if c.Type != apiserverinternalv1alpha1.AllEncodingVersionsEqual {
				continue
			}
			m := occurrence{Moment: Moment{At: c.LastTransitionTime.Time, Kind: Disagreed}, alike: "servers write different versions", resource: gr.String()}
			m.Text = gr.String() + ": " + m.alike
			if common, agreed := storageversion.Agreement(sv); agreed {
				m.Kind, m.alike = Agreed, "all servers agree"
				m.Text = fmt.Sprintf("%s: all servers agree on %s", gr, common)
			}
			all = append(all, m)
		}
	}
	return all
}

// migrations returns the finished migrations, the latest of which StorageStates remember, and those that have begun.
func migrations(o status.Observed) (all []occurrence) {
	for i := range o.States {
		s := &o.States[i]
		for _, p := range migrationv1alpha1.History(s.Annotations) {
			all = append(all, ended(s.Spec.Resource, p))
		}
	}
	for i := range o.Migrations {
		m := &o.Migrations[i]
		if migrationv1alpha1.Final(m) {
			continue
		}
		text := migrationv1alpha1.Resource(m).String() + ": a migration was asked for"
		if to := migrationv1alpha1.TargetOf(m).Encoding; to != "" {
			text = fmt.Sprintf("%s: a migration to %s was made", migrationv1alpha1.Resource(m), to)
		}
		all = append(all, occurrence{Moment: Moment{m.CreationTimestamp.Time, Began, text}, resource: migrationv1alpha1.Resource(m).String()})
	}
	return all
}

func ended(of migrationv1alpha1.GroupResource, p migrationv1alpha1.Past) occurrence {
	name := strings.TrimSuffix(of.Resource+"."+of.Group, ".")
	m := occurrence{Moment: Moment{At: p.Ended.Time, Kind: Migrated}, resource: name, objects: p.Objects}
	if p.Result == string(migrationv1alpha1.MigrationSucceeded) {
		m.alike = "every object is in one version"
		m.Text = fmt.Sprintf("%s: %s in %s", name, prose.Objects(p.Objects)+" "+prose.Is(int(p.Objects)), p.To)
		return m
	}
	if p.Result == migrationv1alpha1.PastSuperseded {
		m.Kind, m.Text = Told, fmt.Sprintf("%s: the migration was superseded, %s", name, p.Reason)
		return m
	}
	m.Kind = NotMigrated
	m.Text = fmt.Sprintf("%s: the migration failed, %s", name, p.Reason)
	if p.Failed > 0 {
		m.Text += fmt.Sprintf(": %s, such as %s", prose.Objects(p.Failed), strings.Join(p.Failures, ", "))
	}
	return m
}

// told returns Concord's Events, without those that repeat migrations and histories.
func told(o status.Observed) (all []occurrence) {
	for i := range o.Events {
		e := &o.Events[i]
		m := occurrence{Moment: Moment{At: e.LastTimestamp.Time, Kind: Told}}
		switch {
		case e.InvolvedObject.Kind == "ClusterVersion":
			m.Kind, m.Text = Versions, e.Message
		case e.InvolvedObject.APIVersion != migrationv1alpha1.SchemeGroupVersion.String():
			continue // a copy, for a migration of another API
		default:
			if !slices.Contains([]string{migrationv1alpha1.ReasonPaused, migrationv1alpha1.EventResumed, migrationv1alpha1.EventAborted, migrationv1alpha1.ReasonWaitingForAgreement}, e.Reason) {
				continue
			}
			m.Text = fmt.Sprintf("migration %s: %s: %s", e.InvolvedObject.Name, e.Reason, e.Message)
		}
		if m.At.IsZero() {
			m.At = e.CreationTimestamp.Time
		}
		all = append(all, m)
	}
	for _, v := range o.Versions {
		for _, c := range v.Status.Conditions {
			if c.Type == versionv1alpha1.ConditionVersionsAgree && !slices.ContainsFunc(all, func(m occurrence) bool {
				return m.Kind == Versions && m.At.Sub(c.LastTransitionTime.Time).Abs() < together
			}) {
				all = append(all, occurrence{Moment: Moment{c.LastTransitionTime.Time, Versions, c.Message}})
			}
		}
	}
	return all
}
