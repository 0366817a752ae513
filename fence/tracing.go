package fence

import (
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/stats"
	componenttracing "k8s.io/component-base/tracing"
)

// tracing makes spans of etcd requests, children of the API request's span.
func tracing(provider trace.TracerProvider) stats.Handler {
	return otelgrpc.NewClientHandler(
		otelgrpc.WithMessageEvents(otelgrpc.ReceivedEvents, otelgrpc.SentEvents),
		otelgrpc.WithPropagators(componenttracing.Propagators()),
		otelgrpc.WithTracerProvider(provider),
	)
}
