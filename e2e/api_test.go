package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/cluster"
)

// TestAPI uses one server, with its etcd in it, as people do. That Kubernetes' own APIs are as
// everywhere is for Kubernetes' own suite to say (conformance); here is what Concord adds to them.
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

// testOpenAPI: kubectl explain knows Concord's kinds, beside those of every other server behind the
// same port.
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

// testTables: a migration that is asked for in Kubernetes' own API is done, and kubectl get shows it
// under the name of Concord's, as it shows reports and stored sets. A name alone is that of
// Kubernetes' API.
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

// tableOf is what kubectl get shows of resources: the columns, and each row in a line.
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
