package join

import (
	"errors"
	"net/http"
	goruntime "runtime"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/concord-dev/concord/join/internal/filters"
	"github.com/concord-dev/concord/join/internal/turns"
	"github.com/concord-dev/concord/member"
	"github.com/concord-dev/concord/member/hosting"
)

// startedCheck passes when Start has been called: without that all writes are refused, for ever.
const startedCheck = "concord-started"

var errNotStarted = errors.New("this program has not called Start of package join, so that it reports nothing and refuses all writes")

// Handlers adds the gate, the drain and the metrics of version skew to the handler chain of a server with this
// configuration, which has to be the last one of the delegation chain, and has its requests take turns. It also adds the
// health checks of the KMS plugins and a readiness check for Start.
func (j *Join) Handlers(c *genericapiserver.Config) {
	if c.FlowControl != nil && j.config.RequestsPerCPU > 0 {
		c.FlowControl = turns.New(j.config.RequestsPerCPU * goruntime.GOMAXPROCS(0)).Wrap(c.FlowControl)
	}
	j.config.Keyring.Apply(c)
	c.AddReadyzChecks(healthz.NamedCheck(startedCheck, func(*http.Request) error {
		if !j.started.Load() {
			return errNotStarted
		}
		return nil
	}))
	build, longRunning := c.BuildHandlerChainFunc, c.LongRunningFunc
	if build == nil {
		build = genericapiserver.DefaultBuildHandlerChain
	}
	c.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		handler = filters.Again(handler, c.Serializer, func(gr schema.GroupResource) bool { return j.crds.get(gr) != nil })
		handler = j.reporting.gate(j.clientLoad.Wrap(handler), c.Serializer)
		handler = j.reporting.drain.Wrap(handler, c.Serializer, c.LongRunningFunc)
		handler = filters.Stopping(handler, c.ShutdownInitiatedNotify())
		if j.hosting == nil { // an aggregated server has releases of its own
			handler = filters.WithSkew(filters.WithEmulation(handler, j.config.Emulation), j.config.window())
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
func (r *reporting) gate(next http.Handler, serializer runtime.NegotiatedSerializer) http.Handler {
	registerRefused()
	reject := func(w http.ResponseWriter, request *http.Request, err error) {
		refused.WithLabelValues(refusalOf(r.health.WentBack(), r.health.Unwritable())).Inc()
		filters.Answer(serializer, w, request, err)
	}
	if r.host != nil {
		next = hostGate(r.host, next, reject)
	}
	return r.member.Gate(next, describe, reject)
}

// hostGate is the gate of an aggregated server for resources that it has not reported to its host cluster yet.
func hostGate(host *hosting.Host, next http.Handler, reject func(http.ResponseWriter, *http.Request, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if request, ok := describe(r); ok && request.Writes() {
			if err := host.Admit(r.Context(), request.Resource); err != nil {
				reject(w, r, err)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// refusalOf says, for a metric, why the gate refuses writes now.
func refusalOf(wentBack, unwritable error) string {
	switch {
	case wentBack != nil:
		return refusedRestored
	case unwritable != nil:
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
	return member.Request{
		Resource: resource, Verb: info.Verb, IsResource: info.IsResourceRequest, Loopback: filters.FromLoopback(r),
		StoresNothing: unstored[info.Resource+"/"+info.Subresource] && info.APIGroup == "" || r.URL.Query().Get("dryRun") != "",
	}, true
}

// unstored lists the subresources, all of the core group, that store nothing.
var unstored = map[string]bool{
	"serviceaccounts/token": true,
	"pods/exec":             true, "pods/attach": true, "pods/portforward": true,
	"pods/proxy": true, "services/proxy": true, "nodes/proxy": true,
}
