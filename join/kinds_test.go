package join

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// partlyStale is discovery as it is while the server of one aggregated API is away.
const partlyStale = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[
{"metadata":{"name":"here.example.com"},"versions":[{"version":"v1","freshness":"Current","resources":[
 {"resource":"things","responseKind":{"group":"here.example.com","version":"v1","kind":"Thing"},"scope":"Namespaced","singularResource":"thing","verbs":["list"]}]}]},
{"metadata":{"name":"away.example.com"},"versions":[{"version":"v1","freshness":"Stale"}]}]}`

// TestKindsOfAggregated asserts that a resource is not called missing while the server
// that may serve it is away.
func TestKindsOfAggregated(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		body := `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[]}`
		if r.URL.Path == "/apis" {
			body = partlyStale
		}
		_, _ = io.WriteString(w, body)
	}))
	defer server.Close()
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
	must(t, err)
	k := newKinds(nil, client)
	if kind, err := k.Kind(t.Context(), schema.GroupResource{Group: "here.example.com", Resource: "things"}); err != nil || kind != "Thing" {
		t.Errorf("things are of the kind %q, %v", kind, err)
	}
	for group, missing := range map[string]bool{"here.example.com": true, "nowhere.example.com": true, "away.example.com": false} {
		if _, err := k.Kind(t.Context(), schema.GroupResource{Group: group, Resource: "widgets"}); err == nil || meta.IsNoMatchError(err) != missing {
			t.Errorf("widgets of %s: %v, want that they are missing: %t", group, err, missing)
		}
	}
}
