package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/e2e/cluster"
)

func request(t *testing.T, config *rest.Config, path, accept string) (status int, body string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	must(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
	must(t, err)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	response, err := client.Do(r)
	must(t, err)
	defer func() { _ = response.Body.Close() }()
	raw, err := io.ReadAll(response.Body)
	must(t, err)
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

const aggregatedDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

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
		must(t, json.Unmarshal([]byte(fetch(t, s, path, aggregatedDiscovery)), &groups))
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
