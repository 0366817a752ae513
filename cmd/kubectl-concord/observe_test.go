package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/connect"
)

// TestFailedChecks: the /readyz of the server that answers says which of its checks fail, also where the
// server refuses to list.
func TestFailedChecks(t *testing.T) {
	refuses := false
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/readyz":
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte("[+]ping ok\n[-]etcd-space failed: reason withheld\n[-]other failed: reason withheld\nreadyz check failed\n"))
		case refuses:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"not now","reason":"ServiceUnavailable","code":503}`))
		default:
			http.NotFound(w, r)
		}
	}))
	defer api.Close()
	c := observer(t, api.URL)
	o, err := c.observe(t.Context())
	if err != nil || !slices.Equal(o.FailedChecks, []string{"etcd-space", "other"}) {
		t.Errorf("the checks that fail are %q, %v", o.FailedChecks, err)
	}
	refuses = true
	if _, err := c.observe(t.Context()); err == nil || !strings.Contains(err.Error(), "not now; its /readyz fails: etcd-space, other") {
		t.Errorf("of a server that refuses it is told %v", err)
	}
}

// TestUnserved: that nothing is reported yet is told from that the server which answers serves no StorageVersions.
func TestUnserved(t *testing.T) {
	serves := false
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !serves || r.URL.Path != "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"StorageVersionList","apiVersion":"internal.apiserver.k8s.io/v1alpha1","metadata":{},"items":[]}`))
	}))
	defer api.Close()
	c := observer(t, api.URL)
	for _, serves = range []bool{false, true} {
		if o, err := c.observe(t.Context()); err != nil || o.StorageVersionsUnserved == serves {
			t.Errorf("where StorageVersions are served, %t: %v, %v", serves, o.StorageVersionsUnserved, err)
		}
	}
}

func observer(t *testing.T, url string) *cluster {
	t.Helper()
	c := &cluster{config: &rest.Config{Host: url}, clock: &connect.Clock{}}
	var err error
	if c.objects, err = connect.NewClient(c.config); err != nil {
		t.Fatal(err)
	}
	if c.served, err = discovery.NewDiscoveryClientForConfig(c.config); err != nil {
		t.Fatal(err)
	}
	return c
}
