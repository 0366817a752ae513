package connect

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// TestRefusals: a write that a server refuses for long ends in what the server says, and one that
// it refuses for a moment is made.
func TestRefusals(t *testing.T) {
	const refusal = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"ServiceUnavailable","code":503,"message":"etcd is out of space","details":{"retryAfterSeconds":1}}`
	for name, refused := range map[string]int{"for a moment": 1, "for long": 1000} {
		asked := 0
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if asked++; asked <= refused {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = w.Write([]byte(refusal))
				return
			}
			_, _ = w.Write([]byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}`))
		}))
		defer api.Close()
		config := WithTimeout(&rest.Config{Host: api.URL})
		TellRefusals(config)
		objects, err := NewClient(config)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		object := &corev1.ConfigMap{}
		object.Namespace, object.Name = "default", "a"
		err = objects.Create(t.Context(), object)
		if refused == 1 && err != nil || refused > 1 && (err == nil || !strings.Contains(err.Error(), "etcd is out of space")) {
			t.Errorf("refused %s: %v, after %s and %d requests", name, err, time.Since(began), asked)
		}
	}
}
