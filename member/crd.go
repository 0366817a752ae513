package member

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
)

// wanted returns the Resource that a server that has seen this CRD is to report, and false if none
// (yet): while the names are not accepted the resource may belong to another CRD.
func wanted(crd *apiextensionsv1.CustomResourceDefinition) (Resource, bool) {
	if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) &&
		!apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		return Resource{}, false
	}
	r := Resource{GroupResource: migrationv1alpha1.ResourceOf(crd), CRD: crd.Name}
	for _, v := range crd.Spec.Versions {
		gv := string(migrationv1alpha1.EncodingOf(crd, v.Name))
		r.Decodable = append(r.Decodable, gv)
		if v.Served {
			r.Served = append(r.Served, gv)
		}
		if v.Storage {
			r.Encoding = agree.Encoding(gv)
		}
	}
	return r, r.Encoding != ""
}

func (r Resource) equal(o Resource) bool {
	return r.GroupResource == o.GroupResource && r.Encoding == o.Encoding && r.CRD == o.CRD &&
		slices.Equal(r.Decodable, o.Decodable) && slices.Equal(r.Served, o.Served)
}

// listable returns a group/version by which the resource can be listed, the stored one
// if possible; empty if there is none.
func (r Resource) listable() string {
	switch stored := string(r.Encoding.Plain()); {
	case len(r.Served) == 0:
		return ""
	case slices.Contains(r.Served, stored):
		return stored
	}
	return r.Served[0]
}

// definition is the part of a CRD that matters: its schemas may be large.
type definition struct {
	gr      schema.GroupResource
	uid     types.UID
	version int64
	// wanted is the Resource to be reported, if accepted, before it is known what it is
	// encrypted with.
	wanted   Resource
	accepted bool
}

func define(crd *apiextensionsv1.CustomResourceDefinition) (*definition, error) {
	version, err := strconv.ParseInt(crd.ResourceVersion, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("CustomResourceDefinition %s: resourceVersion %q is not an etcd revision", crd.Name, crd.ResourceVersion)
	}
	d := &definition{gr: migrationv1alpha1.ResourceOf(crd), uid: crd.UID, version: version}
	d.wanted, d.accepted = wanted(crd)
	return d, nil
}

// see records a CRD. It reports whether the report has to change.
func (s *state) see(d *definition) bool {
	t := s.target
	if d.version < t.version || d.version == t.version && t.known && !t.absent {
		return false // an event that is older than the CRD that was read
	}
	if !d.accepted {
		if !t.known || t.absent {
			return false
		}
		t.absent, t.uid, t.version = true, d.uid, d.version
		s.aim(t)
		return true
	}
	if t.known && !t.absent && t.uid == d.uid && t.resource.equal(d.wanted) {
		s.target.version = d.version
		return false
	}
	if t.uid != d.uid {
		s.checked = false // the CRD that was checked was another one
	}
	s.aim(target{resource: d.wanted, known: true, uid: d.uid, version: d.version})
	return true
}

// forget records that a CRD was deleted, as of a resourceVersion. It reports whether the report has to change.
func (s *state) forget(uid types.UID, version int64) bool {
	if s.target.absent || s.target.known && s.target.uid != uid || version < s.target.version {
		return false
	}
	t := s.target
	t.absent, t.version = true, version
	s.aim(t)
	return true
}

// gatherTime is how long CRDs are gathered after the first one, before all that existed
// at the start are known: they come in quick succession.
const gatherTime = 10 * time.Millisecond

// ObserveCRD handles an event of a CRD: it records what has to be reported and wakes a worker. Events may
// be late, repeated, or older than a CRD that was already read. It never blocks.
func (m *Member) ObserveCRD(crd *apiextensionsv1.CustomResourceDefinition) {
	d, err := define(crd)
	if err != nil {
		m.cfg.Logger.Error(err, "Ignored a CustomResourceDefinition")
		return
	}
	starting := m.cfg.CustomResourcesKnown != nil && !m.cfg.CustomResourcesKnown()
	m.mu.Lock()
	defer m.mu.Unlock()
	switch s := m.see(d); {
	case s == nil:
	case starting:
		m.gather(s)
	default:
		wake(m.wakeReports)
	}
}

// gather makes a worker report the resource together with others that become due at the same time. The worker is woken
// for each resource, because it does not wait for the first one if a store has already asked for that. The caller
// holds m.mu.
func (m *Member) gather(s *state) {
	if now := m.cfg.Clock.Now(); !now.Before(m.gathered) {
		m.gathered = now.Add(gatherTime)
	}
	s.notBefore = m.gathered
	wake(m.wakeReports)
}

// see records a CRD, and returns the resource's state if its report has to change. The caller holds m.mu.
func (m *Member) see(d *definition) *state {
	s := m.resources[d.gr]
	if s == nil {
		if !d.accepted || m.departed {
			return nil
		}
		s = newState(false)
		m.resources[d.gr] = s
	}
	sealed := *d
	sealed.wanted.Encoding = d.wanted.Encoding.Sealed(m.seal(d.gr))
	if s.builtin || !s.see(&sealed) {
		return nil
	}
	return s
}

// look takes in a CRD that was read, nil if there is none.
func (m *Member) look(c claim, d *definition) {
	if d == nil {
		m.goneCRD(c)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.see(d) != nil {
		wake(m.wakeReports)
	}
}

// ForgetCRD takes in that a CRD was deleted. The permission to write its resource is
// withdrawn at once, the report dropped by a worker after a read has confirmed it.
func (m *Member) ForgetCRD(crd *apiextensionsv1.CustomResourceDefinition) {
	version, err := strconv.ParseInt(crd.ResourceVersion, 10, 64)
	if err != nil {
		version = 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.resources[migrationv1alpha1.ResourceOf(crd)]
	if s == nil || s.builtin {
		return
	}
	if s.forget(crd.UID, max(version, s.target.version)) {
		wake(m.wakeReports)
	}
}

// readCRD is a quorum read. It returns nil if there is no such CRD.
func (m *Member) readCRD(ctx context.Context, name string) (*definition, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	err := m.cfg.Client.Get(ctx, client.ObjectKey{Name: name}, &crd)
	switch {
	case err == nil:
		return define(&crd)
	case storageversion.IsGone(err):
		return nil, nil
	default:
		return nil, fmt.Errorf("read CustomResourceDefinition %s: %w", name, err)
	}
}

// listCRDs is a quorum read of all CRDs, by name: without a resourceVersion a list is
// consistent, and so is its first page, at whose revision the others are.
func (m *Member) listCRDs(ctx context.Context) (map[string]*definition, error) {
	const page = 500 // bounds how many of their schemas are in memory
	crds := map[string]*definition{}
	for next := ""; ; {
		var list apiextensionsv1.CustomResourceDefinitionList
		if err := m.cfg.Client.List(ctx, &list, client.Limit(page), client.Continue(next)); err != nil {
			return nil, fmt.Errorf("list CustomResourceDefinitions: %w", err)
		}
		for i := range list.Items {
			d, err := define(&list.Items[i])
			if err != nil {
				return nil, err
			}
			crds[list.Items[i].Name] = d
		}
		if next = list.Continue; next == "" {
			return crds, nil
		}
	}
}

// check reads the CRD after the report was made (necessary: the
// reported encoding may come from a late event, and the CRD's storedVersions be pruned of it).
func (m *Member) check(ctx context.Context, c claim) error {
	if m.isChecked(c) {
		return nil
	}
	d, err := m.readCRD(ctx, c.target.resource.CRD)
	if err != nil {
		return err
	}
	return m.checkWith(c, d)
}

func (m *Member) isChecked(c claim) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	s := m.resources[c.gr]
	return s.checked && s.reported == c.target.resource.Encoding && m.registration.id == c.id
}

// checkWith opens the resource if the CRD, read after the report, is the same one and
// names the encoding reported.
func (m *Member) checkWith(c claim, d *definition) error {
	if m.isChecked(c) {
		return nil
	}
	m.look(c, d)
	if d == nil {
		return errStale
	}
	enc := c.target.resource.Encoding
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.resources[c.gr]
	if !d.accepted || d.wanted.Encoding != enc.Plain() || d.uid != c.target.uid ||
		m.registration.id != c.id || s.reported != enc || s.target.uid != d.uid {
		return errStale
	}
	s.checked = true
	s.notify()
	return nil
}

// goneCRD records that a read found no CRD, unless a later event says otherwise.
func (m *Member) goneCRD(c claim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.resources[c.gr]
	if s.seq == c.seq && !s.target.absent {
		t := s.target
		t.absent = true
		s.aim(t)
	}
}

// recheck reads the CRD before a report, because it may have been deleted or changed without an event yet. It returns
// the claim with what is to be reported now.
func (m *Member) recheck(ctx context.Context, c claim) (claim, error) {
	d, err := m.readCRD(ctx, c.target.resource.CRD)
	if err != nil {
		return c, err
	}
	return m.recheckWith(c, d), nil
}

func (m *Member) recheckWith(c claim, d *definition) claim {
	m.look(c, d)
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.resources[c.gr]
	s.verify, s.verified = false, true
	c.target, c.seq, c.verify, c.gone = s.target, s.seq, false, d == nil
	return c
}
