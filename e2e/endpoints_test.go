package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/e2e/cluster"
)

const (
	hookName = "poststarthook/built-in-resources-storage-version-updater"

	aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
)

// discoveryPaths are the paths that every authenticated user may read, by the ClusterRole system:discovery.
var discoveryPaths = []string{"/api", "/apis", "/openapi/v2"}

// Nobody but the administrators may see more than health and version.
func testAccess(t *testing.T, s *cluster.Server) {
	anonymous := rest.AnonymousClientConfig(s.Config())
	other := rest.AnonymousClientConfig(s.Config())
	other.CertData, other.KeyData = cluster.LoadAuthority(t, filepath.Dir(s.Kubeconfig())).Issue("somebody", "staff")
	forger := rest.AnonymousClientConfig(s.Config())
	forger.CertData, forger.KeyData = cluster.NewAuthority(t, "concord-ca").Issue("admin", "system:masters")
	for name, config := range map[string]*rest.Config{"anonymous": anonymous, "another user": other, "a forger": forger} {
		for _, path := range []string{"/healthz", "/livez", "/readyz", "/readyz?verbose", "/version"} {
			if status, body := request(t, config, path, ""); name != "a forger" && status != http.StatusOK {
				t.Errorf("%s gets %s with %d: %s", name, path, status, body)
			}
		}
		for _, path := range []string{"/", "/api", "/apis", "/metrics", "/openapi/v2", "/debug/pprof/", "/concord/census/configmaps", "/api/v1/namespaces", "/api/v1/namespaces/default/secrets/any"} {
			if name == "another user" && slices.Contains(discoveryPaths, path) {
				continue // as in every cluster with RBAC
			}
			if status, body := request(t, config, path, ""); status != http.StatusForbidden && status != http.StatusUnauthorized {
				t.Errorf("%s gets %s with %d: %s", name, path, status, body)
			}
		}
	}
}

func request(t *testing.T, config *rest.Config, path, accept string) (status int, body string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(raw)
}

// fetch gets a path as the administrator.
func fetch(t *testing.T, s *cluster.Server, path, accept string) string {
	t.Helper()
	status, body := request(t, s.Config(), path, accept)
	if status != http.StatusOK {
		t.Fatalf("%s: %d: %s", path, status, body)
	}
	return body
}

func testEndpoints(t *testing.T, s *cluster.Server) {
	if body := fetch(t, s, "/readyz?verbose", ""); !strings.Contains(body, hookName+" ok") {
		t.Errorf("/readyz does not show %s: %s", hookName, body)
	}
	// A check's metric is of the last time that somebody asked.
	fetch(t, s, "/healthz", "")
	fetch(t, s, "/livez", "")
	slis := fetch(t, s, "/metrics/slis", "")
	for _, kind := range []string{"healthz", "livez", "readyz"} {
		if want := `kubernetes_healthcheck{name="` + hookName + `",type="` + kind + `"} 1`; !strings.Contains(slis, want) {
			t.Errorf("/metrics/slis has no %s", want)
		}
	}
	metrics := fetch(t, s, "/metrics", "")
	for _, want := range []string{"concord_storageversion_report_duration_seconds_count 1\n", "concord_storageversion_agreement_duration_seconds_bucket", "apiserver_request_total"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics has no %q", want)
		}
	}
	var version struct{ Major, Minor, GitVersion, EmulationMajor, EmulationMinor, MinCompatibilityMajor, MinCompatibilityMinor string }
	if err := json.Unmarshal([]byte(fetch(t, s, "/version", "")), &version); err != nil {
		t.Fatal(err)
	}
	if version.Major != "1" || version.Minor != "37" || version.EmulationMinor != "37" || version.MinCompatibilityMinor != "36" || !strings.HasPrefix(version.GitVersion, "v1.37.") {
		t.Errorf("/version is %+v", version)
	}
	if info, err := os.Stat(s.Kubeconfig()); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the administrator's kubeconfig can be read by others: %v, %v", info.Mode(), err)
	}
}

func testDiscovery(t *testing.T, s *cluster.Server) {
	list, err := s.Kube().Discovery().ServerResourcesForGroupVersion("admissionregistration.k8s.io/v1")
	if err != nil {
		t.Fatal(err)
	}
	var found *metav1.APIResource
	for i, r := range list.APIResources {
		if r.Name == "mutatingadmissionpolicies" {
			found = &list.APIResources[i]
		}
	}
	if found == nil || found.StorageVersionHash == "" || found.SingularName != "mutatingadmissionpolicy" || found.Namespaced {
		t.Errorf("discovery describes mutatingadmissionpolicies as %+v", found)
	}
	cluster.Eventually(t, time.Minute, "all resources are discovered", func(context.Context) error {
		resources := discovered(t, s)
		for _, want := range wellKnown {
			if !resources[want] {
				return fmt.Errorf("aggregated discovery has no current %s", want)
			}
		}
		return nil
	})
	resources := discovered(t, s)
	for _, absent := range []string{"networking.k8s.io/v1beta1/ipaddresses", "apiregistration.k8s.io/v1beta1/apiservices", "apiextensions.k8s.io/v1beta1/customresourcedefinitions"} {
		if _, there := resources[absent]; there {
			t.Errorf("discovery has %s, which 1.37 does not serve", absent)
		}
	}
}

// wellKnown are resources that every server offers, each as "group/version/resource".
var wellKnown = []string{
	"/v1/configmaps", "/v1/namespaces", "/v1/events", "/v1/serviceaccounts", "events.k8s.io/v1/events", "coordination.k8s.io/v1/leases",
	"internal.apiserver.k8s.io/v1alpha1/storageversions", "apiextensions.k8s.io/v1/customresourcedefinitions",
	"apiregistration.k8s.io/v1/apiservices", "admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
	"certificates.k8s.io/v1/clustertrustbundles", "rbac.authorization.k8s.io/v1/clusterroles", "storagemigration.k8s.io/v1/storageversionmigrations",
	"authentication.k8s.io/v1/selfsubjectreviews", "migration.k8s.io/v1alpha1/storagestates", "migration.k8s.io/v1alpha1/storageversionmigrations",
}

// discovered returns the resources that aggregated discovery offers, each with whether it is said
// to be current.
func discovered(t *testing.T, s *cluster.Server) map[string]bool {
	t.Helper()
	var groups struct {
		Items []struct {
			Metadata struct{ Name string }
			Versions []struct {
				Version, Freshness string
				Resources          []struct{ Resource string }
			}
		}
	}
	resources := map[string]bool{}
	for _, path := range []string{"/api", "/apis"} {
		if err := json.Unmarshal([]byte(fetch(t, s, path, aggregated)), &groups); err != nil {
			t.Fatal(err)
		}
		for _, group := range groups.Items {
			for _, version := range group.Versions {
				for _, r := range version.Resources {
					resources[group.Metadata.Name+"/"+version.Version+"/"+r.Resource] = version.Freshness == "Current"
				}
			}
		}
	}
	return resources
}

func testOpenAPI(t *testing.T, s *cluster.Server) {
	v2 := fetch(t, s, "/openapi/v2", "application/json")
	for _, want := range []string{
		`"io.k8s.api.core.v1.ConfigMap"`, `"/api/v1/namespaces/{namespace}/configmaps"`,
		`"/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"`, `"x-kubernetes-group-version-kind"`,
		`"/apis/apiextensions.k8s.io/v1/customresourcedefinitions"`, `"/apis/apiregistration.k8s.io/v1/apiservices"`,
	} {
		if !strings.Contains(v2, want) {
			t.Errorf("/openapi/v2 has no %s", want)
		}
	}
	if strings.Contains(v2, "__internal") {
		t.Error("/openapi/v2 shows internal types")
	}
	for path, kind := range map[string]string{
		"api/v1": "ConfigMap", "apis/admissionregistration.k8s.io/v1": "MutatingAdmissionPolicy",
		"apis/internal.apiserver.k8s.io/v1alpha1": "StorageVersion", "apis/migration.k8s.io/v1alpha1": "StorageState",
	} {
		cluster.Eventually(t, time.Minute, "/openapi/v3 has "+path, func(context.Context) error {
			var index struct {
				Paths map[string]struct{ ServerRelativeURL string }
			}
			if err := json.Unmarshal([]byte(fetch(t, s, "/openapi/v3", "")), &index); err != nil {
				return err
			}
			url := index.Paths[path].ServerRelativeURL
			if url == "" || !strings.Contains(fetch(t, s, url, "application/json"), kind) {
				return fmt.Errorf("%q does not describe %s", url, kind)
			}
			return nil
		})
	}
}
