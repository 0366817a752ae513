package join

import (
	"context"
	"net/http"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/join/internal/filters"
	"github.com/concord-dev/concord/join/roles"
	"github.com/concord-dev/concord/member"
)

// Handlers puts the gate, the drain and the counting of versions out of allowance into the
// handler chain of a server with this configuration, the last one of the delegation chain,
// and adds the health of the KMS plugins.
func (j *Join) Handlers(c *genericapiserver.Config) {
	j.config.Keyring.Apply(c)
	build, longRunning := c.BuildHandlerChainFunc, c.LongRunningFunc
	if build == nil {
		build = genericapiserver.DefaultBuildHandlerChain
	}
	c.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		handler = filters.Again(handler, c.Serializer, func(gr schema.GroupResource) bool { return j.crds.get(gr) != nil })
		handler = j.gate(j.clientLoad.Wrap(handler), c.Serializer)
		handler = j.reporting.drain.Wrap(handler, c.Serializer)
		if j.hosting == nil { // an aggregated server has releases of its own
			handler = filters.WithSkew(filters.WithEmulation(handler, j.config.window(), c.EnableMetrics), j.config.window())
		}
		return build(handler, c)
	}
	c.LongRunningFunc = runsLong(longRunning)
}

// cohabitants share the store of another resource. Kubernetes has no others, in any release
// that can be emulated.
var cohabitants = map[schema.GroupResource]schema.GroupResource{
	{Group: "events.k8s.io", Resource: "events"}: {Resource: "events"},
}

// gate is the HTTP filter that answers 503 to writes of built-in resources that this
// server has not reported (KEP-2339, "Updating StorageVersion").
func (j *Join) gate(next http.Handler, serializer runtime.NegotiatedSerializer) http.Handler {
	return j.reporting.member.Gate(next, describe, func(w http.ResponseWriter, r *http.Request, err error) {
		refused.WithLabelValues(j.refusal()).Inc()
		filters.Answer(serializer, w, r, err)
	})
}

// refusal says, for a metric, why the gate refuses writes now.
func (j *Join) refusal() string {
	if j.etcd.unwritable() != nil {
		return refusedByEtcd
	}
	return refusedUnreported
}

// describe reads the properties that the gate decides on from a request's context.
func describe(r *http.Request) (member.Request, bool) {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	if !ok {
		return member.Request{}, false
	}
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	if stored, ok := cohabitants[resource]; ok {
		resource = stored
	}
	return member.Request{Resource: resource, Verb: info.Verb, IsResource: info.IsResourceRequest, Loopback: filters.FromLoopback(r)}, true
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
