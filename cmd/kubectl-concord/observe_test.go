package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/api/census"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/status"
	"github.com/concord-dev/concord/status/servers"
)

// TestFailedChecks: the plugin reads from /readyz which checks of the server fail, also if the server refuses lists.
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

// TestUnserved: the plugin tells a cluster without reports from a server that serves no StorageVersions at all.
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

// TestElsewhere: if the server that was asked does not store a resource, the plugin says why the resource is not
// counted. It says that another server stores it only if such a server is known, and not if, for example, the CRD is
// deleted.
func TestElsewhere(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		refusal := census.NotStored(widgets).(apierrors.APIStatus).Status()
		refusal.Kind, refusal.APIVersion = "Status", "v1"
		_ = json.NewEncoder(w).Encode(refusal) // an error means that the client has gone
	}))
	defer api.Close()
	reported := status.Observed{StorageVersions: []apiserverinternalv1alpha1.StorageVersion{{ObjectMeta: metav1.ObjectMeta{Name: storageversion.Name(widgets)}}}}
	of := status.Observed{StorageVersions: []apiserverinternalv1alpha1.StorageVersion{*reported.StorageVersions[0].DeepCopy()}}
	of.StorageVersions[0].Status.StorageVersions = []apiserverinternalv1alpha1.ServerStorageVersion{{APIServerID: "other"}}
	aggregated := status.Observed{StorageVersions: []apiserverinternalv1alpha1.StorageVersion{{ObjectMeta: metav1.ObjectMeta{Name: storageversion.Name(widgets), Labels: map[string]string{storageversion.AggregatedLabel: "u"}}}}}
	left := status.Observed{States: []migrationv1alpha1.StorageState{{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{migrationv1alpha1.AggregatedAnnotation: "true"}}}}}
	left.States[0].Spec.Resource.Group, left.States[0].Spec.Resource.Resource = widgets.Group, widgets.Resource
	for i, test := range []struct {
		o    status.Observed
		want string
	}{
		{status.Observed{}, "it is stored by no server now"}, {reported, "it is stored by no server now"},
		{of, "it is not stored by the server that was asked, but by another one"},
		{aggregated, "it is stored elsewhere, by another API server"}, {left, "it is stored elsewhere, by another API server"},
	} {
		if counted := observer(t, api.URL).count(t.Context(), test.o, widgets); counted.Objects != nil || counted.Err != test.want {
			t.Errorf("%d: counted %+v, want %q", i, counted, test.want)
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

// TestGlance: the plugin reads only the metadata of CustomResourceDefinitions. It reads a whole definition if it is
// on hold: one by one, or all in one list if these are many.
func TestGlance(t *testing.T) {
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	held, all := 0, 12
	var asked []string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			http.NotFound(w, r)
			return
		}
		only := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		list := map[string]any{"kind": "CustomResourceDefinitionList", "apiVersion": "apiextensions.k8s.io/v1"}
		whole := !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList")
		if whole {
			asked = append(asked, only)
		} else {
			list["kind"], list["apiVersion"] = "PartialObjectMetadataList", "meta.k8s.io/v1"
		}
		items := []any{}
		for i := range all {
			plural := fmt.Sprintf("things%d", i)
			metadata := map[string]any{"name": plural + ".example.com"}
			if i < held {
				metadata["annotations"] = map[string]string{migrationv1alpha1.HoldAnnotation: "true"}
			}
			item := map[string]any{"metadata": metadata}
			if whole {
				item["spec"] = map[string]any{"group": "example.com", "names": map[string]any{"plural": plural}, "versions": []any{map[string]any{"name": "v2", "storage": true}}}
				item["status"] = map[string]any{"storedVersions": []string{"v1", "v2"}}
			}
			if only == "" || only == metadata["name"] {
				items = append(items, item)
			}
		}
		list["items"] = items
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list) // an error means that the client has gone
	}))
	defer api.Close()
	c := observer(t, api.URL)
	for _, test := range []struct {
		held int
		want []string
	}{
		{0, nil},
		{2, []string{"things0.example.com", "things1.example.com"}},
		{11, []string{""}},
	} {
		asked, held = nil, test.held
		o, err := c.glance(t.Context())
		if slices.Sort(asked); err != nil || !slices.Equal(asked, test.want) || len(o.CRDs) != all {
			t.Errorf("where %d are held, %q were read whole, want %q, and there are %d, %v", held, asked, test.want, len(o.CRDs), err)
		}
		told := 0
		for _, p := range status.Of(o).Problems {
			if p.Kind == status.Held {
				told++
			}
		}
		if told != held {
			t.Errorf("of %d that are held a status tells %d", held, told)
		}
	}
}

// TestWatchesLeases: if a server seems to be dead, the plugin waits until a live server has renewed its Lease and then
// reads the Leases once more. It does not wait if all servers look alive, or a second time for the same server.
func TestWatchesLeases(t *testing.T) {
	for _, test := range []struct {
		why     string
		seconds int
		old     time.Duration
		renews  bool
		reads   []int
	}{
		{"it lives", 3600, 0, true, []int{1, 1}},
		{"it lives and its clock is behind", 1, time.Hour, true, []int{2, 1}},
		{"it is dead", 1, time.Hour, false, []int{2, 1}},
	} {
		reads, renewed := 0, time.Now().Add(-test.old)
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/leases") {
				http.NotFound(w, r)
				return
			}
			if reads++; test.renews {
				renewed = renewed.Add(time.Second)
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"kind":"LeaseList","apiVersion":"coordination.k8s.io/v1","items":[{"metadata":{"name":"apiserver-a","labels":{%q:%q},"annotations":{%q:"1.37",%q:"true"}},"spec":{"leaseDurationSeconds":%d,"renewTime":%q}}]}`,
				storageversion.IdentityLabel, storageversion.IdentityLabelValue, storageversion.BinaryVersionAnnotation, storageversion.ReportedAnnotation, test.seconds, renewed.UTC().Format(metav1.RFC3339Micro))
		}))
		c := observer(t, api.URL)
		for _, want := range test.reads {
			reads = 0
			o, err := c.glance(t.Context())
			must(t, err)
			c.watchLeases(t.Context(), &o)
			seen := o.Renewals["apiserver-a"]
			if unrenewed := seen.For.Duration > time.Second && !seen.Renewed; unrenewed == test.renews || servers.Doubt(o.Leases, o.Now, o.Renewals) > 0 || reads != want {
				t.Errorf("%s: %+v, in doubt for %s after %d reads, want %d", test.why, seen, servers.Doubt(o.Leases, o.Now, o.Renewals), reads, want)
			}
		}
		api.Close()
	}
}
