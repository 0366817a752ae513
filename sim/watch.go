package sim

import (
	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/registry"
	"github.com/concord-dev/concord/sim/script"
)

// streamKind is the kind of objects that a watch is of.
var streamKind = [script.Streams]registry.Kind{registry.Leases, registry.StorageVersions, registry.Definitions, registry.Definitions, registry.Migrations, registry.StorageVersions, registry.Leases, registry.StorageVersions}

// see delivers the next event of a watch.
func (w *World) see(p *Process, s script.Stream) bool {
	from := p.source(s)
	if p.paused || from == nil || p.cutFrom(from) {
		return false
	}
	if p.cursors[s] < 0 {
		w.relist(p, s)
		return true
	}
	events := from.api.Changes[streamKind[s]]
	if p.cursors[s] >= len(events) {
		return false
	}
	e := events[p.cursors[s]]
	p.cursors[s]++
	p.told(s, e)
	return true
}

func (w *World) relist(p *Process, s script.Stream) {
	p.relisted(s)
	p.cursors[s] = len(p.source(s).api.Changes[streamKind[s]])
}

// source is the world that a watch of the process is of, nil if there is no such watch.
func (p *Process) source(s script.Stream) *World {
	switch {
	case s < script.SeeHostLeases:
		return p.w
	case p.replica.reporting():
		return p.w.host
	}
	return nil
}

// told delivers one event of a watch.
func (p *Process) told(s script.Stream, e registry.Change) {
	if !p.watches(s) {
		return
	}
	p.idle = p.idle && s > script.SeeDefinitions
	deleted := e.Object == nil
	obj := e.Object
	if deleted {
		obj = e.Last
	}
	switch s {
	case script.SeeLeases:
		p.member.ObserveLease(obj.(*coordinationv1.Lease), deleted)
	case script.SeeVersions:
		p.member.ObserveStorageVersion(obj.(*v1alpha1.StorageVersion), deleted)
	case script.SeeDefinitions:
		crd := obj.(*apiextensionsv1.CustomResourceDefinition)
		if deleted {
			p.forget(crd)
			return
		}
		p.know(crd)
	case script.SeeHandler:
		p.handler = obj.(*apiextensionsv1.CustomResourceDefinition)
		if deleted {
			p.handler = nil
		}
	case script.SeeMigrations:
		p.migrate.ObserveMigration(obj.(*migrationv1alpha1.StorageVersionMigration), deleted)
	case script.SeeRewrites:
		p.migrate.ObserveStorageVersion(obj.(*v1alpha1.StorageVersion), deleted)
	case script.SeeHostLeases:
		p.replica.idle = false
		p.replica.member.ObserveLease(obj.(*coordinationv1.Lease), deleted)
	case script.SeeHostVersions:
		p.replica.idle = false
		p.replica.member.ObserveStorageVersion(obj.(*v1alpha1.StorageVersion), deleted)
	}
}

// watches reports whether the process has a watch: a server whose gate is off has only those of its Lease and of its
// handler, a stock server only that of its handler.
func (p *Process) watches(s script.Stream) bool {
	if s >= script.SeeHostLeases {
		return p.replica.reporting()
	}
	return s == script.SeeHandler || !p.Stock && (!p.Silent || s == script.SeeLeases)
}

// know passes a definition to the member and the migrator.
func (p *Process) know(crd *apiextensionsv1.CustomResourceDefinition) {
	if last := p.known[crd.Name]; last != nil && last.UID != crd.UID {
		p.ended = last.UID
	}
	p.known[crd.Name] = crd
	p.member.ObserveCRD(crd)
	p.migrate.ObserveDefinition(crd)
}

// forget passes the deletion of a definition to the member.
func (p *Process) forget(crd *apiextensionsv1.CustomResourceDefinition) {
	p.ended = crd.UID
	delete(p.known, crd.Name)
	p.member.ForgetCRD(crd)
}

// relisted delivers a list instead of the events up to now, as a watch does at its
// beginning and when it was broken for too long.
func (p *Process) relisted(s script.Stream) {
	if !p.watches(s) {
		return
	}
	p.idle = p.idle && s > script.SeeDefinitions
	w, who := p.source(s), p.member
	if s >= script.SeeHostLeases {
		who, p.replica.idle = p.replica.member, false
	}
	revision := w.store.Revision()
	switch s {
	case script.SeeLeases, script.SeeHostLeases:
		var list coordinationv1.LeaseList
		w.api.List(registry.Leases, &list, everything)
		who.ObserveLeases(list.Items, revision)
	case script.SeeVersions, script.SeeHostVersions:
		var list v1alpha1.StorageVersionList
		w.api.List(registry.StorageVersions, &list, everything)
		who.ObserveStorageVersions(list.Items, revision)
	case script.SeeDefinitions:
		crd := w.api.LookDefinition()
		if last := p.known[object.Widgets.Full]; crd == nil && last != nil {
			p.forget(last)
		}
		if crd != nil {
			p.know(crd)
		}
	case script.SeeHandler:
		p.handler = w.api.LookDefinition()
	case script.SeeMigrations, script.SeeRewrites:
		// The migrator looks only at what is interrupted: ends and changes.
		for _, e := range w.api.Changes[streamKind[s]][max(p.cursors[s], 0):] {
			p.told(s, e)
		}
	}
}
