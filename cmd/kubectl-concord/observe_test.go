package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/connect"
)

// TestFailedChecks: where no Lease is renewed, the /readyz of the server that answers says why.
func TestFailedChecks(t *testing.T) {
	const stale = `{"kind":"LeaseList","apiVersion":"coordination.k8s.io/v1","metadata":{},"items":[{
		"metadata":{"name":"apiserver-0a1b2c3d4e5f6071","namespace":"kube-system","annotations":{"concord.dev/binary-version":"1.37"}},
		"spec":{"leaseDurationSeconds":15,"renewTime":"2020-01-01T00:00:00.000000Z"}}]}`
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases":
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(stale))
		case "/readyz":
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte("[+]ping ok\n[-]etcd-space failed: reason withheld\n[-]other failed: reason withheld\nreadyz check failed\n"))
		default:
			http.NotFound(w, r)
		}
	}))
	defer api.Close()
	c := &cluster{config: &rest.Config{Host: api.URL}, clock: &connect.Clock{}}
	var err error
	if c.objects, err = connect.NewClient(c.config); err != nil {
		t.Fatal(err)
	}
	if c.served, err = discovery.NewDiscoveryClientForConfig(c.config); err != nil {
		t.Fatal(err)
	}
	o, err := c.observe(t.Context())
	if err != nil || !slices.Equal(o.FailedChecks, []string{"etcd-space", "other"}) {
		t.Errorf("the checks that fail are %q, %v", o.FailedChecks, err)
	}
}
