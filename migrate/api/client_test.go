package api

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// A patch that changes nothing is no write, and the resourceVersion that it returns is that of another one.
func TestTelling(t *testing.T) {
	now := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, fmt.Sprintf(`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":%q}}`, now))
	}))
	defer server.Close()
	client, err := NewClient(&rest.Config{Host: server.URL})
	must(t, err)
	var told []string
	client = client.Telling(func(resourceVersion string) { told = append(told, resourceVersion) })
	for _, now = range []string{"7", "9", "7"} {
		if err := client.Patch(t.Context(), schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"},
			types.NamespacedName{Name: "x"}, []byte(`{"metadata":{"uid":"u","resourceVersion":"7"}}`)); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(told, []string{"9"}) {
		t.Errorf("told are the writes %v", told)
	}
}
