package e2e

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

// TestAPI uses one server with the etcd in it, as people do. Kubernetes' own suite tests Kubernetes'
// APIs on it (conformance); these tests are of what Concord adds to them.
func TestAPI(t *testing.T) {
	t.Parallel()
	c := cluster.NewEmbedded(t)
	s := c.Start(cluster.Options{}, "one")[0]
	t.Run("OpenAPI", func(t *testing.T) { testOpenAPI(t, s) })
	t.Run("Tables", func(t *testing.T) { testTables(t, c, s) })
	c.Check()
	s.Terminate()
}

func configMap(name, text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"text": text}}
}

// testOpenAPI: the OpenAPI documents, which kubectl explain reads, have Concord's kinds, and those
// of all the API servers behind the same port.
func testOpenAPI(t *testing.T, s *cluster.Server) {
	v2 := fetch(t, s, "/openapi/v2", "application/json")
	for _, want := range []string{
		`"io.k8s.api.core.v1.ConfigMap"`, `"/apis/apiextensions.k8s.io/v1/customresourcedefinitions"`, `"/apis/apiregistration.k8s.io/v1/apiservices"`,
		`"/apis/internal.apiserver.k8s.io/v1alpha1/storageversions"`,
	} {
		if !strings.Contains(v2, want) {
			t.Errorf("/openapi/v2 has no %s", want)
		}
	}
	for path, field := range map[string]string{"apis/internal.apiserver.k8s.io/v1alpha1": "commonEncodingVersion", "apis/migration.k8s.io/v1alpha1": "persistedStorageVersionHashes"} {
		cluster.Eventually(t, time.Minute, "/openapi/v3 has "+path, func(context.Context) error {
			var index struct {
				Paths map[string]struct{ ServerRelativeURL string }
			}
			if err := json.Unmarshal([]byte(fetch(t, s, "/openapi/v3", "")), &index); err != nil {
				return err
			}
			url := index.Paths[path].ServerRelativeURL
			if url == "" || !strings.Contains(fetch(t, s, url, "application/json"), field) {
				return fmt.Errorf("%q does not describe %s", url, field)
			}
			return nil
		})
	}
}

// testTables: a migration that is created in Kubernetes' own API is done. kubectl get shows its copy
// in migration.k8s.io, StorageVersions and StorageStates with helpful columns. A name without a
// group means Kubernetes' API.
func testTables(t *testing.T, c *cluster.Cluster, s *cluster.Server) {
	c.WaitSettled()
	asked := createFrom(t, s, `{apiVersion: storagemigration.k8s.io/v1, kind: StorageVersionMigration, metadata: {name: asked}, spec: {resource: {group: "", resource: configmaps}}}`)[0]
	waitMigrated(t, s, asked, "succeeds", storagemigrationv1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
	for path, want := range map[string]struct{ columns, row string }{
		"/apis/internal.apiserver.k8s.io/v1alpha1/storageversions": {"Name Encoding Agreed Servers Epoch Age", "core.configmaps v1 True 1 "},
		"/apis/migration.k8s.io/v1alpha1/storagestates":            {"Name Resource Stored Current Heartbeat Age", "configmaps configmaps v1 v1 "},
		"/apis/migration.k8s.io/v1alpha1/storageversionmigrations": {"Name Resource Phase Encoding Done Total Failed Rate Age", copiesOf(t, s, "asked")[0].Name + " configmaps Succeeded v1 "},
	} {
		columns, rows := tableOf(t, s, path)
		if columns != want.columns || !strings.Contains(rows, "\n"+want.row) {
			t.Errorf("%s is shown with the columns %s, and no %q in %s", path, columns, want.row, rows)
		}
	}
}

// tableOf returns the columns and rows that kubectl get shows, with each row in a line.
func tableOf(t *testing.T, s *cluster.Server, path string) (columns, rows string) {
	t.Helper()
	var table metav1.Table
	must(t, json.Unmarshal([]byte(fetch(t, s, path, "application/json;as=Table;g=meta.k8s.io;v=v1")), &table))
	var names []string
	for _, column := range table.ColumnDefinitions {
		if column.Priority == 0 {
			names = append(names, column.Name)
		}
	}
	for _, row := range table.Rows {
		rows += "\n"
		for i, cell := range row.Cells {
			if table.ColumnDefinitions[i].Priority == 0 {
				rows += fmt.Sprint(cell, " ")
			}
		}
	}
	return strings.Join(names, " "), rows
}

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

// discovered returns the resources that aggregated discovery offers, each with whether it is marked as current.
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

// betas makes servers offer the beta versions that all releases from 1.34 to 1.37 have and
// that are off by default, with the gates that they need, so that the resources that become
// stable in 1.37 can be written and read at every emulation version.
const betas = "--feature-gates=ClusterTrustBundle=true,StorageVersionMigrator=true --runtime-config=certificates.k8s.io/v1beta1=true,coordination.k8s.io/v1beta1=true,storagemigration.k8s.io/v1beta1=true"

//go:embed testdata/objects.yaml
var objectsYAML []byte

// samples are the objects of testdata/objects.yaml, in an order in which they can be created.
func samples(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(objectsYAML), len(objectsYAML))
	for {
		u := &unstructured.Unstructured{}
		switch err := decoder.Decode(&u.Object); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		}
		if u.GetKind() == "ClusterTrustBundle" {
			must(t, unstructured.SetNestedField(u.Object, certificate(t), "spec", "trustBundle"))
		}
		all = append(all, u)
	}
}

// certificate returns a certificate for a ClusterTrustBundle, in PEM.
func certificate(t *testing.T) string {
	t.Helper()
	return string(cluster.EncodePEM(cluster.NewAuthority(t, "bundled").Cert.Raw))
}

func resourceOf(u *unstructured.Unstructured) schema.GroupVersionResource {
	resource, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())
	return resource
}

// createSamples creates the samples through a server, marked for the audit, and returns
// how many there are of each resource.
func createSamples(t *testing.T, s *cluster.Server) map[schema.GroupResource]int {
	t.Helper()
	made := map[schema.GroupResource]int{}
	for _, u := range samples(t) {
		annotations := u.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[load.WriteAnnotation] = s.Name + "/sample-" + u.GetKind()
		u.SetAnnotations(annotations)
		resource := resourceOf(u)
		if _, err := s.Dynamic().Resource(resource).Namespace(u.GetNamespace()).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Fatalf("create %s %s: %v", u.GetKind(), u.GetName(), err)
		}
		made[resource.GroupResource()]++
	}
	return made
}

// contents are objects without resourceVersion and apiVersion, by resource, namespace and name.
type contents map[string]map[string]any

// loadPrefix begins the names of objects that a load changes all the time.
const loadPrefix = "load"

// read reads, through a server, all marked objects of the samples' resources, except those of a load. It reads
// them in the version that the samples have or, where that is not served, in v1beta1, which looks the same.
func read(t *testing.T, s *cluster.Server) contents {
	t.Helper()
	found := contents{}
	for _, sample := range samples(t) {
		resource := resourceOf(sample)
		list, err := s.Dynamic().Resource(resource).List(t.Context(), metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			list, err = s.Dynamic().Resource(resource.GroupResource().WithVersion("v1beta1")).List(t.Context(), metav1.ListOptions{})
		}
		if err != nil {
			t.Fatalf("list %s through %s: %v", resource, s.Name, err)
		}
		for _, u := range list.Items {
			if u.GetAnnotations()[load.WriteAnnotation] == "" || strings.HasPrefix(u.GetName(), loadPrefix+"-") {
				continue // the servers' own, or changing
			}
			u.SetResourceVersion("")
			delete(u.Object, "apiVersion")
			found[strings.Join([]string{resource.GroupResource().String(), u.GetNamespace(), u.GetName()}, " ")] = u.Object
		}
	}
	return found
}

// wantSame fails for every object that was read before and is different now, through each of the servers.
func wantSame(t *testing.T, before contents, servers ...*cluster.Server) {
	t.Helper()
	for _, s := range servers {
		now := read(t, s)
		for _, key := range slices.Sorted(maps.Keys(before)) {
			if !reflect.DeepEqual(before[key], now[key]) {
				t.Errorf("%s is read through %s as\n%v, and was\n%v", key, s.Name, now[key], before[key])
			}
		}
		if len(now) != len(before) {
			t.Errorf("%d objects are read through %s, there were %d", len(now), s.Name, len(before))
		}
	}
	t.Logf("%d objects are equal, read through each of %d servers", len(before), len(servers))
}
