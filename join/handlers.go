package join

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/concord-dev/concord/join/internal/filters"
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
	registerRefused()
	return j.reporting.member.Gate(next, describe, func(w http.ResponseWriter, r *http.Request, err error) {
		refused.WithLabelValues(j.refusal()).Inc()
		filters.Answer(serializer, w, r, err)
	})
}

// refusal says, for a metric, why the gate refuses writes now.
func (j *Join) refusal() string {
	if j.etcd.health.Unwritable() != nil {
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
