package migrating

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/rest"
)

// TestDiscover: a name may have a version, as kubectl takes it.
func TestDiscover(t *testing.T) {
	resources := func(version string) string {
		return `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"example.com/` + version + `","resources":[{"name":"widgets","singularName":"widget","kind":"Widget","verbs":["list"]}]}`
	}
	answers := map[string]string{
		"/api": `{"kind":"APIVersions","versions":[]}`,
		"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"example.com","versions":[{"groupVersion":"example.com/v1","version":"v1"},
			{"groupVersion":"example.com/v2","version":"v2"}],"preferredVersion":{"groupVersion":"example.com/v2","version":"v2"}}]}`,
		"/apis/example.com/v1": resources("v1"), "/apis/example.com/v2": resources("v2"),
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, found := answers[r.URL.Path]
		if !found {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(text))
	}))
	defer api.Close()
	for name, version := range map[string]string{"widgets.v1.example.com": "v1", "widgets.v3.example.com": "", "widgets.example.com": "v2", "widget": "v2"} {
		gvr, err := Discover(&rest.Config{Host: api.URL}, name)
		if (err == nil) != (version != "") || gvr.Version != version {
			t.Errorf("%s is %v, %v", name, gvr, err)
		}
	}
}
