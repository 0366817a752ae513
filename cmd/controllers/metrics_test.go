package controllers

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics/legacyregistry"
)

// TestClientMetrics: the metrics of clients and work queues are among those that the program shows, though
// controller-runtime, which is linked too, would have them in a registry of its own.
func TestClientMetrics(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = client.ServerVersion()
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.DefaultTypedControllerRateLimiter[string](), workqueue.TypedRateLimitingQueueConfig[string]{Name: "some"})
	defer queue.ShutDown()
	families, err := legacyregistry.DefaultGatherer.Gather()
	shown := map[string]bool{}
	for _, f := range families {
		shown[f.GetName()] = true
	}
	if err != nil || !shown["rest_client_requests_total"] || !shown["workqueue_depth"] {
		t.Errorf("requests %v, queues %v, error %v", shown["rest_client_requests_total"], shown["workqueue_depth"], err)
	}
}
