package turns

import (
	"context"
	"sync"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	flowcontrolmetrics "k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	waited = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Namespace: "concord", Subsystem: "turns", Name: "wait_duration_seconds",
		Help:           "How long requests waited for their turn after priority and fairness had admitted them, by priority level; next to nothing for those that began at once since their flow had no turn. Requests that began before they were classified, since few others were under way or no goroutine waited for a CPU, are not counted, nor those that were refused. Metrics of priority and fairness about dispatched requests and their times count a request that waited twice.",
		Buckets:        []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10},
		StabilityLevel: metrics.ALPHA,
	}, []string{"priority_level"})
	register = sync.OnceFunc(func() { legacyregistry.MustRegister(waited) })
)

// Registerables are the package's metrics.
func Registerables() []metrics.Registerable { return []metrics.Registerable{waited} }

// fairness is priority and fairness whose admitted requests take turns.
type fairness struct {
	flowcontrol.Interface
	turns *Turns
}

// Wrap returns priority and fairness whose admitted requests take turns, except for watches and for requests of exempt
// priority levels. While a request waits for its turn it has no seat, so that the queues of priority and fairness stay
// short. As many requests of a flow may wait as would in those queues; one more is not served, even if there are seats,
// and neither is one whose time to wait is over: the handler answers 429.
func (t *Turns) Wrap(f flowcontrol.Interface) flowcontrol.Interface {
	register()
	return fairness{f, t}
}

// Handle implements flowcontrol.Interface. A request that cannot begin at once is handled twice: first to learn its
// priority level and flow, and once more when its turn has come.
func (f fairness) Handle(ctx context.Context, digest flowcontrol.RequestDigest, note classify,
	estimate func() flowcontrolrequest.WorkEstimate, queued fairqueuing.QueueNoteFn, execute func()) {
	if digest.RequestInfo.Verb == "watch" {
		f.Interface.Handle(ctx, digest, note, estimate, queued, execute)
		return
	}
	if end := f.turns.Begin(); end != nil {
		defer end()
		f.Interface.Handle(ctx, digest, func(schema *flowcontrolv1.FlowSchema, level *flowcontrolv1.PriorityLevelConfiguration, distinguisher string) {
			if exempt(level) {
				end() // such requests leave others their turns
			}
			note(schema, level, distinguisher)
		}, estimate, queued, execute)
		return
	}
	asked := time.Now()
	schema, level := f.classified(ctx, digest, note, estimate, queued, execute)
	if level == nil {
		return
	}
	end := f.wait(ctx, level, schema, digest, queued)
	if end == nil {
		return
	}
	defer end()
	// Kubernetes' objectives for latencies leave out the time in queues, and migrations take it as felt by clients.
	apirequest.TrackAPFQueueWaitLatency(ctx, time.Since(asked))
	f.Interface.Handle(ctx, digest, note, estimate, queued, execute)
}

// wait waits for the turn of a request, and returns what ends it; nil if the request is not to be served.
func (f fairness) wait(ctx context.Context, level *flowcontrolv1.PriorityLevelConfiguration, schema *flowcontrolv1.FlowSchema,
	digest flowcontrol.RequestDigest, queued fairqueuing.QueueNoteFn) (end func()) {
	asked := time.Now()
	queued(true)
	end = f.turns.Wait(ctx, level.Name, schema.Name+"/"+distinguisher(schema, digest), room(level))
	queued(false)
	switch {
	case end != nil:
		waited.WithContext(ctx).WithLabelValues(level.Name).Observe(time.Since(asked).Seconds())
	case ctx.Err() != nil:
		flowcontrolmetrics.AddReject(ctx, level.Name, schema.Name, "time-out")
	default:
		flowcontrolmetrics.AddReject(ctx, level.Name, schema.Name, "queue-full")
	}
	return end
}

// classify is told how a request is classified.
type classify = func(schema *flowcontrolv1.FlowSchema, level *flowcontrolv1.PriorityLevelConfiguration, distinguisher string)

// classified returns the flow schema and the priority level of a request that priority and fairness admits: nil if it
// does not, and for an exempt request, which is executed.
func (f fairness) classified(ctx context.Context, digest flowcontrol.RequestDigest, note classify, estimate func() flowcontrolrequest.WorkEstimate,
	queued fairqueuing.QueueNoteFn, execute func()) (*flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration) {
	var schema *flowcontrolv1.FlowSchema
	var level, admitted *flowcontrolv1.PriorityLevelConfiguration
	f.Interface.Handle(ctx, digest, func(s *flowcontrolv1.FlowSchema, l *flowcontrolv1.PriorityLevelConfiguration, distinguisher string) {
		schema, level = s, l
		note(s, l, distinguisher)
	}, func() flowcontrolrequest.WorkEstimate {
		if exempt(level) {
			return estimate()
		}
		return flowcontrolrequest.WorkEstimate{InitialSeats: 1, FinalSeats: 1} // it is not executed yet
	}, queued, func() {
		if exempt(level) {
			execute()
		} else {
			admitted = level
		}
	})
	return schema, admitted
}

func exempt(level *flowcontrolv1.PriorityLevelConfiguration) bool {
	return level.Spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
}

// distinguisher tells the flows of a flow schema apart, also where priority and fairness does not, in levels without queues.
func distinguisher(schema *flowcontrolv1.FlowSchema, digest flowcontrol.RequestDigest) string {
	switch method := schema.Spec.DistinguisherMethod; {
	case method == nil:
		return ""
	case method.Type == flowcontrolv1.FlowDistinguisherMethodByNamespaceType:
		return digest.RequestInfo.Namespace
	default:
		return digest.User.GetName()
	}
}

// room returns how many requests of a flow can wait in the queues of a priority level. A level without queues has room
// for as many as one queue of Kubernetes' default.
func room(level *flowcontrolv1.PriorityLevelConfiguration) int {
	if queuing := level.Spec.Limited.LimitResponse.Queuing; queuing != nil {
		return int(min(queuing.HandSize, queuing.Queues)) * int(queuing.QueueLengthLimit)
	}
	return 50
}
