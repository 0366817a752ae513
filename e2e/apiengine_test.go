package e2e

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/cluster"
)

// migrateThroughAPI changes a custom resource's storage version and asks for the migration
// to go through the API. It is asked for before the change and rests until it can be done,
// so that no other migration is made.
func migrateThroughAPI(t *testing.T, s *cluster.Server, gr schema.GroupResource, to string) *migrationv1alpha1.StorageVersionMigration {
	t.Helper()
	m := askForAPI(t, s, gr, to, func(spec *migrationv1alpha1.StorageVersionMigrationSpec) { spec.Paused = true })
	storeIn(t, s, gr, to)
	cluster.Eventually(t, cluster.SettleTimeout, "the migration is for "+to, func(ctx context.Context) error {
		if err := s.Objects().Get(ctx, client.ObjectKeyFromObject(m), m); err != nil {
			return err
		}
		if encoding := m.Annotations[migrationv1alpha1.EncodingAnnotation]; encoding != string(widgetEncoding(to)) {
			return fmt.Errorf("it is for %q", encoding)
		}
		return nil
	})
	pauseMigration(t, s, m, false)
	return m
}

// askForAPI makes a migration that is to go through the API.
func askForAPI(t *testing.T, s *cluster.Server, gr schema.GroupResource, version string, change func(*migrationv1alpha1.StorageVersionMigrationSpec)) *migrationv1alpha1.StorageVersionMigration {
	t.Helper()
	m := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{GenerateName: "api-" + gr.Resource + "-"}}
	m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: gr.Group, Version: version, Resource: gr.Resource}
	m.Spec.Engine = migrationv1alpha1.EngineAPI
	change(&m.Spec)
	must(t, s.Objects().Create(t.Context(), m))
	return m
}

func waitEnded(t *testing.T, s *cluster.Server, m *migrationv1alpha1.StorageVersionMigration) *migrationv1alpha1.StorageVersionMigration {
	t.Helper()
	took := cluster.Eventually(t, cluster.SettleTimeout, "the migration "+m.Name+" ends", func(ctx context.Context) error {
		if err := s.Objects().Get(ctx, client.ObjectKeyFromObject(m), m); err != nil {
			return err
		}
		if !migrationv1alpha1.Final(m) {
			return fmt.Errorf("it is %+v", m.Status)
		}
		return nil
	})
	t.Logf("migration %s ended after %v: %+v", m.Name, took.Round(time.Millisecond), m.Status.Progress)
	return m
}

// wantWrittenOnce expects that so many objects were written again since they were created,
// each of them once.
func wantWrittenOnce(t *testing.T, c *cluster.Cluster, gr schema.GroupResource, want int) {
	t.Helper()
	found, err := c.Raw.Get(t.Context(), "/registry/"+gr.Group+"/"+gr.Resource+"/", clientv3.WithPrefix())
	must(t, err)
	again := 0
	for _, kv := range found.Kvs {
		switch kv.Version {
		case 1: // as it was created
		case 2:
			again++
		default:
			t.Errorf("%s was written %d times", kv.Key, kv.Version)
		}
	}
	if again != want {
		t.Errorf("%d objects were written again, want %d", again, want)
	}
}

// revisionsOf reads at which revision each stored object was written.
func revisionsOf(t *testing.T, c *cluster.Cluster, gr schema.GroupResource) map[string]int64 {
	t.Helper()
	found, err := c.Raw.Get(t.Context(), "/registry/"+gr.Group+"/"+gr.Resource+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	must(t, err)
	revisions := map[string]int64{}
	for _, kv := range found.Kvs {
		revisions[string(kv.Key)] = kv.ModRevision
	}
	return revisions
}

// The versions of a custom resource may have defaults of their own, though they are converted by
// name only. After a migration through the API the watch cache has the object as it is stored,
// with the defaults of the version that it is stored in.
func testAPIDefaults(t *testing.T) {
	c := cluster.New(t)
	server := c.Start(cluster.Options{}, "one")[0]
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	crd := widgetCRD("v1")
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		v.Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
		status := map[string]apiextensionsv1.JSONSchemaProps{"seen": text}
		if v.Name == "v2" {
			status["phase"] = apiextensionsv1.JSONSchemaProps{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"Pending"`)}}
		}
		v.Schema.OpenAPIV3Schema.Properties["status"] = apiextensionsv1.JSONSchemaProps{Type: "object", Properties: status}
	}
	createCRD(t, crd, server)
	fill(t, server, widgetsV1, 1)
	of := func(version string) dynamic.ResourceInterface {
		return server.Dynamic().Resource(widgets.WithVersion(version)).Namespace(metav1.NamespaceDefault)
	}
	list, err := of("v1").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("there are %+v: %v", list, err)
	}
	object := &list.Items[0]
	// The audit does not know the writes of statuses, and is not asked.
	object.Object["status"] = map[string]any{"seen": "yes"}
	if _, err := of("v1").UpdateStatus(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.WaitSettled()
	get := func(revision string) *unstructured.Unstructured {
		t.Helper()
		found, err := of("v2").Get(t.Context(), object.GetName(), metav1.GetOptions{ResourceVersion: revision})
		must(t, err)
		return found
	}
	// The cache of v2 has it from now on.
	if _, err := of("v2").List(t.Context(), metav1.ListOptions{ResourceVersion: "0"}); err != nil {
		t.Fatal(err)
	}
	if phase, _, _ := unstructured.NestedString(get("0").Object, "status", "phase"); phase != "" {
		t.Errorf("what is stored in v1 has v2's default %q", phase)
	}
	wantSucceeded(t, waitEnded(t, server, migrateThroughAPI(t, server, widgets, "v2")), 1)
	stored := get("")
	if phase, _, _ := unstructured.NestedString(stored.Object, "status", "phase"); phase != "Pending" {
		t.Errorf("what is stored in v2 has the phase %q", phase)
	}
	cluster.Eventually(t, time.Minute, "the cache has what is stored", func(context.Context) error {
		if cached := get("0"); !reflect.DeepEqual(cached, stored) {
			return fmt.Errorf("it has %v, and stored is %v", cached, stored)
		}
		return nil
	})
}
