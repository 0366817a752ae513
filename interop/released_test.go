package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/concord-dev/concord/e2e/beside"
)

// definitionFile is the file of a CRD in a release of a module.
type definitionFile struct{ version, path string }

// released is a CRD from which a release of its project removes a version.
type released struct {
	module string
	// older stores the version that drops removes; newer stores another one, and serves both.
	older, newer, drops definitionFile
	// stored are the versions that older and newer store.
	stored [2]string
	spec   string
}

var releasedDefinitions = []released{
	{
		module: "sigs.k8s.io/gateway-api",
		older:  definitionFile{"v1.0.0", "config/crd/experimental/gateway.networking.k8s.io_grpcroutes.yaml"},
		newer:  definitionFile{"v1.1.1", "config/crd/standard/gateway.networking.k8s.io_grpcroutes.yaml"},
		drops:  definitionFile{"v1.2.1", "config/crd/standard/gateway.networking.k8s.io_grpcroutes.yaml"},
		stored: [2]string{"v1alpha2", "v1"},
		spec:   `{"hostnames":["example.com"],"rules":[{"matches":[{"method":{"service":"echo","type":"Exact"}}]}]}`,
	},
	{
		module: "github.com/fluxcd/source-controller",
		older:  definitionFile{"v1.3.0", "config/crd/bases/source.toolkit.fluxcd.io_ocirepositories.yaml"},
		newer:  definitionFile{"v1.7.0", "config/crd/bases/source.toolkit.fluxcd.io_ocirepositories.yaml"},
		drops:  definitionFile{"v1.8.0", "config/crd/bases/source.toolkit.fluxcd.io_ocirepositories.yaml"},
		stored: [2]string{"v1beta2", "v1"},
		spec:   `{"interval":"1m0s","url":"oci://example.com/manifests","provider":"generic","timeout":"60s"}`,
	},
	{
		module: "github.com/crossplane/crossplane",
		older:  definitionFile{"v1.9.0", "cluster/crds/apiextensions.crossplane.io_compositionrevisions.yaml"},
		newer:  definitionFile{"v1.11.0", "cluster/crds/apiextensions.crossplane.io_compositionrevisions.yaml"},
		drops:  definitionFile{"v1.14.0", "cluster/crds/apiextensions.crossplane.io_compositionrevisions.yaml"},
		stored: [2]string{"v1alpha1", "v1beta1"},
		spec:   `{"revision":1,"compositeTypeRef":{"apiVersion":"example.com/v1","kind":"Database"},"resources":[{"name":"map","base":{"apiVersion":"v1","kind":"ConfigMap"}}]}`,
	},
}

// TestReleasedDefinitions upgrades the CRDs of released projects to a release that removes a
// version in which objects are stored. The upgrade is refused before concord controllers have
// run, and accepted afterwards, with all objects as they were.
func TestReleasedDefinitions(t *testing.T) {
	c := newCluster(t)
	a := guarded(t, c)
	var all []*upgraded
	for _, r := range releasedDefinitions {
		u := &upgraded{released: r, server: a}
		u.prepare(t)
		all = append(all, u)
	}
	deployed(a, tested(t).places(a))
	for _, u := range all {
		t.Run(u.crd.Spec.Names.Plural, u.finish)
	}
}

// upgraded is one of these CRDs in a cluster.
type upgraded struct {
	released
	server *beside.APIServer
	// crd is the CRD of the release older.
	crd *apiextensionsv1.CustomResourceDefinition
}

// file reads a definition from a module's release.
func (r released) file(t testing.TB, f definitionFile) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", r.module+"@"+f.version)
	cmd.Dir = t.TempDir()
	out, err := cmd.Output()
	var downloaded struct{ Dir, Error string }
	if decoded := json.Unmarshal(out, &downloaded); err != nil || decoded != nil {
		t.Fatalf("download %s %s: %v, %s", r.module, f.version, err, downloaded.Error)
	}
	content, err := os.ReadFile(filepath.Join(downloaded.Dir, f.path))
	must(t, err)
	crd := &apiextensionsv1.CustomResourceDefinition{}
	must(t, yaml.Unmarshal(content, crd))
	crd.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
	return crd
}

// releasedObjects is how many objects each of these CRDs has.
const releasedObjects = 20

func (u *upgraded) in(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: u.crd.Spec.Group, Version: version, Resource: u.crd.Spec.Names.Plural}
}

// prepare installs the CRD of the older release, creates objects, and upgrades the CRD to the newer release.
func (u *upgraded) prepare(t *testing.T) {
	t.Helper()
	u.crd = u.file(t, u.older)
	must(t, u.server.Objects().Create(t.Context(), u.crd.DeepCopy()))
	for i := range releasedObjects {
		object := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": fmt.Sprintf("o%02d", i)}}}
		object.SetGroupVersionKind(u.in(u.stored[0]).GroupVersion().WithKind(u.crd.Spec.Names.Kind))
		object.Object["spec"] = u.wanted(t)
		beside.Eventually(t, beside.Patience, "an object is made", func(ctx context.Context) error {
			_, err := u.all(u.stored[0]).Create(ctx, object, metav1.CreateOptions{})
			if apierrors.IsInvalid(err) {
				t.Fatal(err)
			}
			return err
		})
	}
	if err := u.upgrade(t, u.newer); err != nil {
		t.Fatalf("upgrade to %s: %v", u.newer.version, err)
	}
	if err := u.upgrade(t, u.drops); err == nil || !strings.Contains(err.Error(), u.stored[0]) {
		t.Errorf("upgrade to %s before a migration: %v", u.drops.version, err)
	}
}

func (u *upgraded) wanted(t *testing.T) map[string]any {
	t.Helper()
	var spec map[string]any
	must(t, yaml.Unmarshal([]byte(u.spec), &spec))
	return spec
}

func (u *upgraded) all(version string) dynamic.ResourceInterface {
	all := u.server.Dynamic().Resource(u.in(version))
	if u.crd.Spec.Scope == apiextensionsv1.NamespaceScoped {
		return all.Namespace(beside.Namespace)
	}
	return all
}

// upgrade replaces the CRD by that of another release.
func (u *upgraded) upgrade(t *testing.T, f definitionFile) error {
	t.Helper()
	next := u.file(t, f)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now := &apiextensionsv1.CustomResourceDefinition{}
		if err := u.server.Objects().Get(t.Context(), client.ObjectKey{Name: u.crd.Name}, now); err != nil {
			return err
		}
		now.Spec, now.Annotations, now.Labels = next.Spec, next.Annotations, next.Labels
		return u.server.Objects().Update(t.Context(), now)
	})
}

// finish waits until the older version is not stored any more, and upgrades the CRD to the
// release that removes it.
func (u *upgraded) finish(t *testing.T) {
	beside.Eventually(t, beside.Patience, "storedVersions is "+u.stored[1], func(ctx context.Context) error {
		now := &apiextensionsv1.CustomResourceDefinition{}
		err := u.server.Objects().Get(ctx, client.ObjectKey{Name: u.crd.Name}, now)
		if err == nil && !slices.Equal(now.Status.StoredVersions, u.stored[1:]) {
			err = fmt.Errorf("storedVersions are %v", now.Status.StoredVersions)
		}
		return err
	})
	values, err := u.server.Cluster.Values(t.Context(), "/registry/"+u.crd.Spec.Group+"/"+u.crd.Spec.Names.Plural+"/", 0)
	if err != nil || len(values) != releasedObjects {
		t.Errorf("%d objects are stored, %v", len(values), err)
	}
	for _, value := range values {
		if encoding := u.in(u.stored[1]).GroupVersion().String(); !strings.Contains(value, `"apiVersion":"`+encoding+`","kind"`) {
			t.Errorf("stored in another version than %s: %s", encoding, value)
		}
	}
	if err := u.upgrade(t, u.drops); err != nil {
		t.Fatalf("upgrade to %s: %v", u.drops.version, err)
	}
	beside.Eventually(t, beside.Patience, "all objects are read as they were", func(ctx context.Context) error {
		list, err := u.all(u.stored[1]).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != releasedObjects {
			t.Errorf("%d objects are left", len(list.Items))
		}
		for _, object := range list.Items {
			for field, want := range u.wanted(t) {
				if got := object.Object["spec"].(map[string]any)[field]; !contains(got, want) {
					t.Errorf("%s of %s is %v, want %v", field, object.GetName(), got, want)
				}
			}
		}
		return nil
	})
}

// contains says whether all that was written is there; fields that a definition adds by default
// do not matter.
func contains(got, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		fields, ok := got.(map[string]any)
		for name, value := range want {
			ok = ok && contains(fields[name], value)
		}
		return ok
	case []any:
		items, ok := got.([]any)
		ok = ok && len(items) == len(want)
		for i := 0; ok && i < len(want); i++ {
			ok = contains(items[i], want[i])
		}
		return ok
	}
	return fmt.Sprint(got) == fmt.Sprint(want)
}
