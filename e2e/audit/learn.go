package audit

import (
	"strings"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
)

// Where the objects that judge other objects are stored, under the prefix.
const (
	versionsPath = "storageversions/"
	statesPath   = "migration.k8s.io/storagestates/"
	crdsPath     = "apiextensions.k8s.io/customresourcedefinitions/"
	leasesPath   = "leases/" + storageversion.IdentityNamespace + "/"
)

// locate finds the resource in a key: custom resources, CRDs and APIServices carry their
// group in it, the others only in their envelope.
func locate(path string, encoding agree.Encoding) (schema.GroupResource, bool) {
	segments := strings.Split(path, "/")
	if len(segments) < 2 {
		return schema.GroupResource{}, false
	}
	gv, err := schema.ParseGroupVersion(string(encoding))
	if err != nil {
		return schema.GroupResource{}, false
	}
	if segments[0] == gv.Group && len(segments) > 2 {
		return schema.GroupResource{Group: gv.Group, Resource: segments[1]}, true
	}
	return schema.GroupResource{Group: gv.Group, Resource: segments[0]}, true
}

// learn takes in the information in a put about another resource, and checks that resource anew.
func (l *Ledger) learn(e Event, path string, c *content) {
	switch {
	case strings.HasPrefix(path, versionsPath):
		l.learnVersion(e, c)
	case strings.HasPrefix(path, statesPath):
		l.learnState(e, c)
	case strings.HasPrefix(path, leasesPath):
		lease := &coordinationv1.Lease{}
		if err := c.into(lease); err != nil {
			l.violate(e, "not a Lease: %v", err)
			return
		}
		if lease.Annotations[storageversion.APIAnnotation] == storageversion.APIOff {
			l.silent.Insert(agree.ServerID(lease.Name))
		}
	case strings.HasPrefix(path, crdsPath):
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := c.into(crd); err != nil {
			l.violate(e, "not a CustomResourceDefinition: %v", err)
			return
		}
		gr := schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}
		l.of(gr).crd = crd
		l.checkStored(e, gr)
	}
}

func (l *Ledger) learnVersion(e Event, c *content) {
	sv := &v1alpha1.StorageVersion{}
	if err := c.into(sv); err != nil {
		l.violate(e, "not a StorageVersion: %v", err)
		return
	}
	gr, err := storageversion.GroupResource(sv.Name)
	if err != nil {
		l.violate(e, "%v", err)
		return
	}
	history, err := storageversion.History(sv)
	if err != nil {
		l.violate(e, "%v", err)
		return
	}
	v := &version{uid: sv.UID, epoch: history.Epoch, revision: e.Revision, reports: storageversion.Reports(sv)}
	v.common, _ = storageversion.Agreement(sv)
	if common, _ := agree.Common(v.reports); common != v.common {
		l.violate(e, "commonEncodingVersion is %q with reports %v", v.common, v.reports)
	}
	r := l.of(gr)
	if old := r.version; old != nil && old.uid == v.uid && old.epoch > v.epoch {
		l.violate(e, "the epoch of %s goes back from %d to %d", gr, old.epoch, v.epoch)
	}
	r.version = v
	l.checkStored(e, gr)
}

func (l *Ledger) learnState(e Event, c *content) {
	state := &migrationv1alpha1.StorageState{}
	if err := c.into(state); err != nil {
		l.violate(e, "not a StorageState: %v", err)
		return
	}
	gr := schema.GroupResource{Group: state.Spec.Resource.Group, Resource: state.Spec.Resource.Resource}
	l.of(gr).state = state
	l.checkStored(e, gr)
}

// unlearn forgets a deleted object that judged others.
func (l *Ledger) unlearn(path string) {
	if name, ok := strings.CutPrefix(path, versionsPath); ok {
		if gr, err := storageversion.GroupResource(name); err == nil {
			l.of(gr).version = nil
		}
	}
	if name, ok := strings.CutPrefix(path, leasesPath); ok {
		l.silent.Delete(agree.ServerID(name))
	}
	if name, ok := strings.CutPrefix(path, statesPath); ok {
		l.of(schema.ParseGroupResource(name)).state = nil
	}
	if name, ok := strings.CutPrefix(path, crdsPath); ok {
		l.of(schema.ParseGroupResource(name)).crd = nil
	}
}
