// Package admit has the admission of the protocol's own objects: who may write them, and which of them
// no other admission keeps from being written.
package admit

import (
	"context"
	"errors"
	"maps"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/join/roles"
)

// protocol wraps the server's other admission, and keeps some of the protocol's own objects from it.
//
// Only the controllers may write the fields of StorageStates and migrations that decide something: if somebody
// shortened a stored set, or wrote a success, storedVersions would be pruned although nobody migrated the objects.
// Administrators may read, create, pause and delete these objects as usual.
//
// The other admission plugins do not see StorageVersions and the Leases that keep a server in the cluster: a webhook
// for all resources that does not answer, possibly served by this very cluster, must not keep servers from becoming
// ready.
type protocol struct {
	admission.Interface      // nil where the server has no other admission
	roles               bool // the controllers act as users of their own
}

var (
	_ admission.MutationInterface   = protocol{}
	_ admission.ValidationInterface = protocol{}
)

// Around returns the admission of a server that has another one, or nil. With acting the controllers act as
// users of their own (package roles).
func Around(inner admission.Interface, acting bool) admission.Interface {
	return protocol{Interface: inner, roles: acting}
}

var (
	errStateAuthor = errors.New("the status and the concord.dev annotations of a StorageState are written by Concord's controllers alone, who rely on them; " +
		"to have all objects of the resource migrated anew, delete the StorageState")
	errMigrationAuthor = errors.New("the status, the concord.dev annotations and the label " + migrationv1alpha1.MadeByLabel +
		" of a migration are written by Concord's servers alone, who rely on them; to stop a migration, set spec.paused or delete it")
)

// Handles implements admission.Interface.
func (p protocol) Handles(operation admission.Operation) bool {
	return operation == admission.Create || operation == admission.Update || p.Interface != nil && p.Interface.Handles(operation)
}

// Admit implements admission.MutationInterface.
func (p protocol) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if inner, ok := p.Interface.(admission.MutationInterface); ok && inner.Handles(a.GetOperation()) && !p.passes(a) {
		return inner.Admit(ctx, a, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (p protocol) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := p.judge(a); err != nil {
		return admission.NewForbidden(a, err)
	}
	if inner, ok := p.Interface.(admission.ValidationInterface); ok && inner.Handles(a.GetOperation()) && !p.passes(a) {
		return inner.Validate(ctx, a, o)
	}
	return nil
}

// passes says whether an object is the protocol's own.
func (p protocol) passes(a admission.Attributes) bool {
	switch a.GetResource().GroupResource() {
	case storageversion.Resource:
		return true
	case schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}:
		sender := a.GetUserInfo()
		return a.GetNamespace() == storageversion.IdentityNamespace &&
			(roles.Loopback(sender) || p.roles && (roles.Election.Is(sender) || roles.Collector.Is(sender)))
	}
	return false
}

func (p protocol) judge(a admission.Attributes) error {
	gr := a.GetResource().GroupResource()
	if gr.Group != migrationv1alpha1.GroupName || p.writes(a.GetUserInfo(), gr) || !touches(a.GetObject(), a.GetOldObject()) {
		return nil
	}
	if gr == migrationv1alpha1.StorageStates {
		return errStateAuthor
	}
	return errMigrationAuthor
}

// writes says whether a user is the server itself or a controller that writes the resource.
func (p protocol) writes(u user.Info, gr schema.GroupResource) bool {
	return roles.Loopback(u) || p.roles && roles.Writes(u, gr)
}

// touches says whether the new object, nil in a deletion, differs from the old one, nil in a
// creation, in a field that only the controllers write.
func touches(obj, old runtime.Object) bool {
	after, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return false // they are custom resources, and deleted as nil
	}
	before, ok := old.(*unstructured.Unstructured)
	if !ok {
		before = &unstructured.Unstructured{Object: map[string]any{}}
	}
	return !equality.Semantic.DeepEqual(after.Object["status"], before.Object["status"]) ||
		!maps.Equal(marks(after.GetAnnotations()), marks(before.GetAnnotations())) || !maps.Equal(marks(after.GetLabels()), marks(before.GetLabels()))
}

// marks returns the annotations, or labels, of concord.dev.
func marks(all map[string]string) map[string]string {
	found := map[string]string{}
	for key, value := range all {
		if strings.HasPrefix(key, "concord.dev/") {
			found[key] = value
		}
	}
	return found
}
