// Package admit has the admission of the protocol's own objects: who may write them, and which of them
// no other admission keeps from being written.
package admit

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/join/roles"
)

// Around returns the admission of a server that has another one, or nil. With acting the controllers act as
// users of their own (package roles).
func Around(inner admission.Interface, acting bool) admission.Interface {
	if inner != nil {
		inner = unhindered{Interface: inner, roles: acting}
	}
	return authors{Interface: inner, roles: acting}
}

// unhindered is the admission of a server without the Leases that keep it in the cluster, and
// without StorageVersions: a webhook for all resources that does not answer, as it may be
// served by this very server's cluster, is not to keep servers from becoming ready.
type unhindered struct {
	admission.Interface
	roles bool // the controllers act as users of their own
}

var (
	_ admission.MutationInterface   = unhindered{}
	_ admission.ValidationInterface = unhindered{}
)

// passes says whether an object is the protocol's own.
func (u unhindered) passes(a admission.Attributes) bool {
	switch a.GetResource().GroupResource() {
	case storageversion.Resource:
		return true
	case schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}:
		sender := a.GetUserInfo()
		return a.GetNamespace() == storageversion.IdentityNamespace && sender != nil &&
			(roles.Loopback(sender) || u.roles && (roles.Election.Is(sender) || roles.Collector.Is(sender)))
	}
	return false
}

// Admit implements admission.MutationInterface.
func (u unhindered) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if inner, ok := u.Interface.(admission.MutationInterface); ok && !u.passes(a) {
		return inner.Admit(ctx, a, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (u unhindered) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if inner, ok := u.Interface.(admission.ValidationInterface); ok && !u.passes(a) {
		return inner.Validate(ctx, a, o)
	}
	return nil
}
