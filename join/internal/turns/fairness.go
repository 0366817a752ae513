package turns

import (
	"context"
	"sync"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/server/httplog"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	waited = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Namespace: "concord", Subsystem: "turns", Name: "wait_duration_seconds",
		Help:           "How long requests waited for their turn after priority and fairness had admitted them, by priority level. Requests that began at once are not counted. apiserver_flowcontrol_request_execution_seconds counts one that waited twice, first with almost no time.",
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
// short, and as many requests of a flow may wait as would in those queues. A request that is one too many, or whose time
// to wait is over, is not served, as there: the handler answers 429.
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
	level, flow := f.classified(ctx, digest, note, queued, execute)
	if level == nil {
		return
	}
	asked := time.Now()
	end := f.turns.Wait(ctx, level.Name, flow, room(level))
	took := time.Since(asked)
	waited.WithContext(ctx).WithLabelValues(level.Name).Observe(took.Seconds())
	httplog.AddKeyValue(ctx, "turn_wait", took)
	if end != nil {
		defer end()
		f.Interface.Handle(ctx, digest, note, estimate, queued, execute)
	}
}

// classify is told how a request is classified.
type classify = func(schema *flowcontrolv1.FlowSchema, level *flowcontrolv1.PriorityLevelConfiguration, distinguisher string)

// classified returns the priority level and the flow of a request that priority and fairness admits: nil if it does
// not, and for an exempt request, which is executed.
func (f fairness) classified(ctx context.Context, digest flowcontrol.RequestDigest, note classify,
	queued fairqueuing.QueueNoteFn, execute func()) (admitted *flowcontrolv1.PriorityLevelConfiguration, flow string) {
	var level *flowcontrolv1.PriorityLevelConfiguration
	f.Interface.Handle(ctx, digest, func(schema *flowcontrolv1.FlowSchema, l *flowcontrolv1.PriorityLevelConfiguration, distinguisher string) {
		level, flow = l, schema.Name+"/"+distinguisher
		note(schema, l, distinguisher)
	}, oneSeat, queued, func() {
		if exempt(level) {
			execute()
		} else {
			admitted = level
		}
	})
	return admitted, flow
}

// oneSeat is the work of a request that is classified and not executed.
func oneSeat() flowcontrolrequest.WorkEstimate {
	return flowcontrolrequest.WorkEstimate{InitialSeats: 1, FinalSeats: 1}
}

func exempt(level *flowcontrolv1.PriorityLevelConfiguration) bool {
	return level.Spec.Type == flowcontrolv1.PriorityLevelEnablementExempt
}

// room returns how many requests of a flow can wait in the queues of a priority level. A level without queues has room
// for those of one queue of Kubernetes' default, since its requests would not wait if CPUs were no concern.
func room(level *flowcontrolv1.PriorityLevelConfiguration) int {
	if queuing := level.Spec.Limited.LimitResponse.Queuing; queuing != nil {
		return int(min(queuing.HandSize, queuing.Queues) * queuing.QueueLengthLimit)
	}
	return 50
}
