package member

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
)

// wanted returns what a server that has seen this CRD is to report, and false if nothing
// (yet): while the names are not accepted the resource may belong to another CRD.
func wanted(crd *apiextensionsv1.CustomResourceDefinition) (Resource, bool) {
	if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) &&
		!apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		return Resource{}, false
	}
	r := Resource{GroupResource: resourceOf(crd), CRD: crd.Name}
	for _, v := range crd.Spec.Versions {
		gv := schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}.String()
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

func resourceOf(crd *apiextensionsv1.CustomResourceDefinition) schema.GroupResource {
	return schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}
}

func (r Resource) equal(o Resource) bool {
	return r.GroupResource == o.GroupResource && r.Encoding == o.Encoding && r.CRD == o.CRD &&
		slices.Equal(r.Decodable, o.Decodable) && slices.Equal(r.Served, o.Served)
}

// listable returns a group/version by which the resource can be listed, the stored one
// if possible.
func (r Resource) listable() (string, bool) {
	switch {
	case slices.Contains(r.Served, string(r.Encoding)):
		return string(r.Encoding), true
	case len(r.Served) > 0:
		return r.Served[0], true
	default:
		return "", false
	}
}

// see takes in a CRD. It returns true if what is to be reported changes.
func (s *state) see(crd *apiextensionsv1.CustomResourceDefinition, version int64) bool {
	r, ok := wanted(crd)
	t := s.target
	if version < t.version || version == t.version && t.known && !t.absent {
		return false // an event that is older than what was read
	}
	if !ok {
		if !t.known || t.absent {
			return false
		}
		t.absent, t.uid, t.version = true, crd.UID, version
		s.aim(t)
		return true
	}
	if t.known && !t.absent && t.uid == crd.UID && t.resource.equal(r) {
		s.target.version = version
		return false
	}
	if t.uid != crd.UID {
		s.checked = false // what was checked was another CRD
	}
	s.aim(target{resource: r, known: true, uid: crd.UID, version: version})
	return true
}

// forget takes in that a CRD is gone, as of a resourceVersion. It returns true if what
// is to be reported changes.
func (s *state) forget(uid types.UID, version int64) bool {
	if s.target.absent || s.target.known && s.target.uid != uid || version < s.target.version {
		return false
	}
	t := s.target
	t.absent, t.version = true, version
	s.aim(t)
	return true
}

// ObserveCRD takes in an event of a CRD: what is to be reported is noted and a worker
// woken (DESIGN 3.3). Events may come late, repeated or older than what was read. It
// never blocks.
func (m *Member) ObserveCRD(crd *apiextensionsv1.CustomResourceDefinition) {
	version, err := strconv.ParseInt(crd.ResourceVersion, 10, 64)
	if err != nil {
		m.cfg.Logger.Error(err, "Ignored a CustomResourceDefinition whose resourceVersion is no number", "crd", crd.Name)
		return
	}
	gr := resourceOf(crd)
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.resources[gr]
	if s == nil {
		if _, ok := wanted(crd); !ok || m.departed {
			return
		}
		s = newState(false)
		m.resources[gr] = s
	}
	if !s.builtin && s.see(crd, version) {
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
	s := m.resources[resourceOf(crd)]
	if s == nil || s.builtin {
		return
	}
	if s.forget(crd.UID, max(version, s.target.version)) {
		wake(m.wakeReports)
	}
}

// readCRD is a quorum read. It returns nil if there is no such CRD.
func (m *Member) readCRD(ctx context.Context, name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	err := m.cfg.Client.Get(ctx, client.ObjectKey{Name: name}, &crd)
	switch {
	case err == nil:
		return &crd, nil
	case isGone(err):
		return nil, nil
	default:
		return nil, fmt.Errorf("read CustomResourceDefinition %s: %w", name, err)
	}
}

// check reads the CRD after the report was made (DESIGN 3.1.3, necessary: what was
// reported may come from a late event, and the CRD's storedVersions be pruned of it).
// Only if it is the same CRD and names the encoding reported, the resource opens.
func (m *Member) check(ctx context.Context, c claim) error {
	enc := c.target.resource.Encoding
	m.mu.RLock()
	s := m.resources[c.gr]
	done := s.checked && s.reported == enc && m.registration.id == c.id
	m.mu.RUnlock()
	if done {
		return nil
	}
	crd, err := m.readCRD(ctx, c.target.resource.CRD)
	if err != nil {
		return err
	}
	if crd == nil {
		m.goneCRD(c)
		return errStale
	}
	m.ObserveCRD(crd)
	now, ok := wanted(crd)
	m.mu.Lock()
	defer m.mu.Unlock()
	if !ok || now.Encoding != enc || crd.UID != c.target.uid ||
		m.registration.id != c.id || s.reported != enc || s.target.uid != crd.UID {
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

// recheck reads the CRD before a report, for it may be gone or have changed without an
// event yet, and returns the claim with what is to be reported now.
func (m *Member) recheck(ctx context.Context, c claim) (claim, error) {
	crd, err := m.readCRD(ctx, c.target.resource.CRD)
	if err != nil {
		return c, err
	}
	if crd == nil {
		m.goneCRD(c)
	} else {
		m.ObserveCRD(crd)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.resources[c.gr]
	s.verify, s.verified = false, true
	c.target, c.seq, c.verify = s.target, s.seq, false
	return c, nil
}
