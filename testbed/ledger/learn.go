package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
)

// kinds maps the folders, under the prefix, of objects that describe other objects to the functions that read them.
// name is the object's name.
var kinds = map[string]func(c *Change, name string) error{
	"storageversions/": (*Change).learnVersion,
	"leases/" + storageversion.IdentityNamespace + "/":         (*Change).learnLease,
	"apiextensions.k8s.io/customresourcedefinitions/":          (*Change).learnCRD,
	migrationv1alpha1.GroupName + "/storagestates/":            (*Change).learnState,
	migrationv1alpha1.GroupName + "/storageversionmigrations/": (*Change).learnMigration,
}

// locate finds the resource in a key: keys of custom resources, CRDs and APIServices contain the group, for the
// others the group comes from the value's apiVersion.
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

// Decode reads a stored value, protobuf or JSON, into the type that it is of.
func Decode(value []byte, into any) error {
	raw, isProtobuf := bytes.CutPrefix(value, []byte("k8s\x00"))
	if !isProtobuf {
		return json.Unmarshal(value, into)
	}
	typed, ok := into.(interface{ Unmarshal(raw []byte) error })
	if !ok {
		return fmt.Errorf("a %T is not stored as protobuf", into)
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(raw); err != nil {
		return err
	}
	return typed.Unmarshal(envelope.Raw)
}

// learn reads a StorageVersion, identity Lease, CRD, StorageState or migration for what it says about other objects.
func (c *Change) learn(path string) error {
	for folder, learn := range kinds {
		if name, ok := strings.CutPrefix(path, folder); ok {
			return learn(c, name)
		}
	}
	return nil
}

// decoded returns the object, nil if it is deleted.
func decoded[T any](c *Change) (*T, error) {
	if c.Value == nil {
		return nil, nil
	}
	into := new(T)
	if err := Decode(c.Value, into); err != nil {
		return nil, fmt.Errorf("not a %T: %w", into, err)
	}
	return into, nil
}

func (c *Change) learnVersion(name string) (err error) {
	if c.About, err = storageversion.GroupResource(name); err != nil {
		return err
	}
	sv, err := decoded[v1alpha1.StorageVersion](c)
	if err != nil {
		return err
	}
	var v *Version
	if sv != nil {
		history, err := storageversion.History(sv)
		if err != nil {
			return err
		}
		v = &Version{Ref: evolve.Ref{UID: string(sv.UID), Epoch: history.Epoch}, Revision: c.Revision, Reports: storageversion.Reports(sv)}
		v.Common, _ = storageversion.Agreement(sv)
	}
	c.apply = func(l *Ledger) {
		r := l.Of(c.About)
		r.Version = v
		for _, report := range r.Reports() {
			if _, ok := r.Joined[report.Server]; !ok {
				r.Joined[report.Server] = c.Revision
			}
		}
	}
	return nil
}

func (c *Change) learnState(name string) error {
	state, err := decoded[migrationv1alpha1.StorageState](c)
	c.About = schema.ParseGroupResource(name)
	c.apply = func(l *Ledger) { l.Of(c.About).State = state }
	return err
}

func (c *Change) learnCRD(name string) error {
	crd, err := decoded[apiextensionsv1.CustomResourceDefinition](c)
	c.About = schema.ParseGroupResource(name)
	c.apply = func(l *Ledger) { l.Of(c.About).CRD = crd }
	return err
}

func (c *Change) learnLease(name string) error {
	id := agree.ServerID(name)
	lease, err := decoded[coordinationv1.Lease](c)
	if lease != nil && (lease.Labels[storageversion.IdentityLabel] != storageversion.IdentityLabelValue || !storageversion.IsServer(name)) {
		return nil
	}
	c.apply = func(l *Ledger) {
		s := l.Servers[id]
		alive := s != nil && s.Gone == 0
		switch {
		case lease == nil && alive:
			s.Gone = c.Revision
		case lease != nil && !alive:
			s = &Server{Release: lease.Annotations[storageversion.EmulationVersionAnnotation]}
			l.Servers[id], c.Registered = s, id
		}
		if lease != nil && lease.Annotations[storageversion.APIAnnotation] == storageversion.APIOff {
			s.Silent = true
		}
	}
	return err
}

func (c *Change) learnMigration(string) error {
	svm, err := decoded[migrationv1alpha1.StorageVersionMigration](c)
	if svm == nil {
		return err // deleted migrations stay in the ledger
	}
	c.apply = func(l *Ledger) {
		m := l.Migrations[svm.UID]
		if m == nil {
			gr := schema.GroupResource{Group: svm.Spec.Resource.Group, Resource: svm.Spec.Resource.Resource}
			m = &Migration{Resource: gr, Order: len(l.Migrations)}
			l.Migrations[svm.UID] = m
		}
		m.Phase, m.Reason = phase(svm.Status.Conditions)
		if m.Phase == evolve.Running && m.Running.IsZero() {
			m.Running = c.At
		}
		if svm.Status.Progress != nil {
			m.Progress = *svm.Status.Progress
		}
	}
	return nil
}

// phase reads a migration's conditions.
func phase(conditions []migrationv1alpha1.MigrationCondition) (evolve.Phase, string) {
	phases := map[migrationv1alpha1.MigrationConditionType]evolve.Phase{
		migrationv1alpha1.MigrationRunning:   evolve.Running,
		migrationv1alpha1.MigrationSucceeded: evolve.Succeeded,
		migrationv1alpha1.MigrationFailed:    evolve.Failed,
	}
	for _, c := range conditions {
		if c.Status == corev1.ConditionTrue {
			return phases[c.Type], strings.TrimSpace(c.Reason + " " + c.Message)
		}
	}
	return evolve.Pending, ""
}
