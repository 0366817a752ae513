package beside

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/cluster"
	testbed "github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

// Group is the API group of the tests' resources.
const Group = "example.com"

// Encodings of the tests' resources.
const (
	V1 = Group + "/v1"
	V2 = Group + "/v2"
)

// Namespace is the namespace of their objects.
const Namespace = metav1.NamespaceDefault

// Widgets is a custom resource in v1 and v2, stored in v1 at first.
type Widgets struct {
	// Server is the server that is asked.
	Server *APIServer
	Plural string
}

// Define creates a CRD, with a status subresource or without one.
func (s *APIServer) Define(plural string, status bool, schemas map[string]apiextensionsv1.JSONSchemaProps) *Widgets {
	t := s.Cluster.T
	t.Helper()
	w := &Widgets{Server: s, Plural: plural}
	crd := testbed.Definition(w.In("").GroupResource(), "v1")
	for i := range crd.Spec.Versions {
		version := &crd.Spec.Versions[i]
		props := schemas[version.Name]
		props.Type, props.XPreserveUnknownFields = "object", ptr.To(true)
		version.Schema.OpenAPIV3Schema = &props
		if status {
			version.Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
		}
	}
	if err := s.Objects().Create(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
	Eventually(t, Patience, plural+" are served", func(ctx context.Context) error {
		_, err := s.Dynamic().Resource(w.In("v1")).List(ctx, metav1.ListOptions{})
		return err
	})
	return w
}

// Name is the name of the CRD, and of the StorageState.
func (w *Widgets) Name() string { return w.Plural + "." + Group }

// In returns the resource in a version.
func (w *Widgets) In(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: Group, Version: version, Resource: w.Plural}
}

func (w *Widgets) kind() string {
	return strings.ToUpper(w.Plural[:1]) + strings.TrimSuffix(w.Plural[1:], "s")
}

// Change changes the CRD.
func (w *Widgets) Change(how func(*apiextensionsv1.CustomResourceDefinition)) error {
	return cluster.ChangeDefinition(w.Server.Cluster.T.Context(), w.Server.Objects(), w.Name(), how)
}

// Store makes a version the storage version.
func (w *Widgets) Store(version string) {
	t := w.Server.Cluster.T
	t.Helper()
	if err := w.Change(cluster.Store(version)); err != nil {
		t.Fatal(err)
	}
}

// TakeOut removes v1 from the versions of the CRD.
func (w *Widgets) TakeOut() error {
	return w.Change(func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions = slices.DeleteFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == "v1" })
	})
}

// ObjectName is the name of the i-th object.
func ObjectName(i int) string { return fmt.Sprintf("w%04d", i) }

// Object returns the i-th object.
func (w *Widgets) Object(i int) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": V1, "kind": w.kind(), "metadata": map[string]any{"name": ObjectName(i), "namespace": Namespace},
		"spec": map[string]any{"n": int64(0)}, "mandatory": "there",
	}}
}

// Fill creates n objects.
func (w *Widgets) Fill(n int, edit func(i int, w *unstructured.Unstructured)) {
	t := w.Server.Cluster.T
	t.Helper()
	all := w.Server.Dynamic().Resource(w.In("v1")).Namespace(Namespace)
	var wg sync.WaitGroup
	numbers := make(chan int)
	for range 16 {
		wg.Go(func() {
			for i := range numbers {
				object := w.Object(i)
				if edit != nil {
					edit(i, object)
				}
				if err := load.Create(t.Context(), all, object); err != nil && !apierrors.IsAlreadyExists(err) {
					t.Errorf("create %s: %v", object.GetName(), err)
				}
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	wg.Wait()
}

// Keys is the prefix of the objects' keys in etcd.
func (w *Widgets) Keys() string { return "/registry/" + Group + "/" + w.Plural + "/" }

// Stored counts the stored objects by their apiVersion, at a revision of etcd, or now if that is 0.
func (w *Widgets) Stored(ctx context.Context, revision int64) (map[string]int, error) {
	values, err := w.Server.Cluster.Values(ctx, w.Keys(), revision)
	counts := map[string]int{}
	for _, value := range values {
		_, rest, _ := strings.Cut(value, `"apiVersion":"`)
		version, _, _ := strings.Cut(rest, `"`)
		counts[version]++
	}
	return counts, err
}

// StoredVersions returns status.storedVersions of the CRD.
func (w *Widgets) StoredVersions(ctx context.Context) ([]string, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	err := w.Server.Objects().Get(ctx, client.ObjectKey{Name: w.Name()}, crd)
	return crd.Status.StoredVersions, err
}

// State returns the StorageState of the resource.
func (w *Widgets) State(ctx context.Context) (*migrationv1alpha1.StorageState, error) {
	state := &migrationv1alpha1.StorageState{}
	return state, w.Server.Objects().Get(ctx, client.ObjectKey{Name: w.Name()}, state)
}

// AwaitStored waits until the StorageState names exactly these encodings as stored.
func (w *Widgets) AwaitStored(current string, encodings ...string) {
	t := w.Server.Cluster.T
	t.Helper()
	Eventually(t, Patience, fmt.Sprintf("of %s stored are %v, current is %s", w.Plural, encodings, current), func(ctx context.Context) error {
		state, err := w.State(ctx)
		if err != nil {
			return err
		}
		if state.Status.CurrentEncoding != current || !slices.Equal(state.Status.PersistedEncodings, encodings) {
			return fmt.Errorf("stored are %v, current is %s: %s", state.Status.PersistedEncodings, state.Status.CurrentEncoding, state.Status.Message)
		}
		return nil
	})
}

// AwaitPruned waits until the CRD's storedVersions are [v2], and checks that all objects are stored in v2.
func (w *Widgets) AwaitPruned(objects int) {
	t := w.Server.Cluster.T
	t.Helper()
	Eventually(t, Patience, "storedVersions of "+w.Plural+" are pruned", func(ctx context.Context) error {
		versions, err := w.StoredVersions(ctx)
		if err == nil && !slices.Equal(versions, []string{"v2"}) {
			migrations, listed := w.Migrations(ctx)
			err = errors.Join(fmt.Errorf("storedVersions are %v", versions), listed)
			for _, m := range migrations {
				err = errors.Join(err, fmt.Errorf("migration %s: %+v", m.Name, m.Status))
			}
		}
		return err
	})
	counts, err := w.Stored(t.Context(), 0)
	if err != nil || counts[V2] != objects || len(counts) != 1 {
		t.Errorf("of %s stored are %v, %v; want %d in v2", w.Plural, counts, err, objects)
	}
}

// AwaitFailed waits until a migration has ended with one of n objects left. The migration has to name it, with the reason
// and a text that its message contains; all others are stored in v2.
func (w *Widgets) AwaitFailed(n int, name string, reason migrationv1alpha1.MigrationFailureReason, text string) {
	t := w.Server.Cluster.T
	t.Helper()
	Eventually(t, 2*Patience, "a migration of "+w.Plural+" fails for one object", func(ctx context.Context) error {
		all, err := w.Migrations(ctx)
		for _, m := range all {
			failed := migrationv1alpha1.True(&m, migrationv1alpha1.MigrationFailed)
			if failed == nil || failed.Reason != migrationv1alpha1.ReasonObjectsFailed || len(m.Status.Failures) != 1 || m.Status.Progress == nil {
				err = errors.Join(err, fmt.Errorf("%s: %+v", m.Name, m.Status))
				continue
			}
			f, p := m.Status.Failures[0], m.Status.Progress
			if f.Name != name || f.Reason != reason || !strings.Contains(f.Message, text) || p.Done != int64(n-1) || p.Failed != 1 {
				t.Errorf("of %s is named %+v, and the progress is %+v", w.Plural, f, p)
			}
			t.Logf("named is %+v", f)
			return nil
		}
		return errors.Join(err, fmt.Errorf("there are %d migrations", len(all)))
	})
	if counts, err := w.Stored(t.Context(), 0); err != nil || counts[V2] != n-1 || len(counts) != 2 {
		t.Errorf("of %s stored are %v, %v", w.Plural, counts, err)
	}
}

// Migrations returns the migrations of the resource.
func (w *Widgets) Migrations(ctx context.Context) ([]migrationv1alpha1.StorageVersionMigration, error) {
	list := &migrationv1alpha1.StorageVersionMigrationList{}
	err := w.Server.Objects().List(ctx, list)
	return slices.DeleteFunc(list.Items, func(m migrationv1alpha1.StorageVersionMigration) bool {
		return m.Spec.Resource.Resource != w.Plural || m.Spec.Resource.Group != Group
	}), err
}
