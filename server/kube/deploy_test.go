package kube_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
	"github.com/concord-dev/concord/e2e/beside"
)

// deployed are the manifests of concord controllers, as they are installed.
const (
	deployFolder       = "../../deploy"
	withoutGuards      = "install/controllers.yaml"
	withGuards         = "install/controllers-and-guards.yaml"
	chartWithAllValues = "chart/testdata/all-values.yaml"
)

// manifests reads the objects of a file under deploy, in its order.
func manifests(t testing.TB, path string) []*unstructured.Unstructured {
	t.Helper()
	objects, err := beside.Manifests(filepath.Join(deployFolder, path))
	must(t, err)
	return objects
}

// apply has the server apply an object, server-side and with strict validation, as kubectl does.
func (s *apiserver) apply(ctx context.Context, mapper meta.RESTMapper, object *unstructured.Unstructured, dryRun ...string) (*unstructured.Unstructured, error) {
	kind := object.GroupVersionKind()
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	var client dynamic.ResourceInterface = s.Dynamic().Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		client = s.Dynamic().Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	data, err := object.MarshalJSON()
	if err != nil {
		return nil, err
	}
	return client.Patch(ctx, object.GetName(), "application/apply-patch+yaml", data,
		metav1.PatchOptions{FieldManager: "test", DryRun: dryRun, FieldValidation: metav1.FieldValidationStrict})
}

func (s *apiserver) mapper() meta.RESTMapper {
	s.t.Helper()
	return restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(s.Kube().Discovery()))
}

// install applies all objects of a file.
func (s *apiserver) install(path string) {
	s.t.Helper()
	mapper := s.mapper()
	for _, object := range manifests(s.t, path) {
		s.applied(mapper, object)
	}
}

// applied applies an object as soon as the server takes it, and returns it as stored. A guard that
// was just installed refuses changes of definitions until the server has the objects that it judges by
// ("paramKind … not yet synced").
func (s *apiserver) applied(mapper meta.RESTMapper, object *unstructured.Unstructured) (stored *unstructured.Unstructured) {
	s.t.Helper()
	eventually(s.t, time.Minute, fmt.Sprintf("%s %s is applied", object.GetKind(), object.GetName()), func(ctx context.Context) (err error) {
		stored, err = s.apply(ctx, mapper, object)
		return err
	})
	return stored
}

// TestDeploy applies the manifests of concord controllers to Kubernetes' own kube-apiserver, first
// on trial. That Helm's chart and kustomize's bases render these is tested in deploy.
func TestDeploy(t *testing.T) {
	t.Parallel()
	s := newControl(t).ready(stock, "one")
	mapper := s.mapper()
	for _, path := range []string{withGuards, chartWithAllValues} {
		for _, object := range manifests(t, path) {
			dryRun := []string{metav1.DryRunAll}
			if object.GetKind() == "Namespace" {
				dryRun = nil // what is in it needs it
			}
			if _, err := s.apply(t.Context(), mapper, object, dryRun...); err != nil {
				t.Errorf("%s: %s %s: %v", path, object.GetKind(), object.GetName(), err)
			}
		}
	}
	s.install(withGuards)
	for _, object := range manifests(t, withGuards) {
		first, again := s.applied(mapper, object), s.applied(mapper, object)
		if again.GetGeneration() != first.GetGeneration() {
			t.Errorf("%s %s: applied once more it is of generation %d, was %d", object.GetKind(), object.GetName(), again.GetGeneration(), first.GetGeneration())
		}
	}
}

// TestDeployedDefinitions: the CustomResourceDefinitions of the manifests are those that servers
// install by themselves.
func TestDeployedDefinitions(t *testing.T) {
	deployed := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, object := range manifests(t, withoutGuards) {
		if object.GetKind() != "CustomResourceDefinition" {
			continue
		}
		var crd apiextensionsv1.CustomResourceDefinition
		must(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, &crd, true))
		deployed[crd.Name] = &crd
	}
	installed := append(migrationv1alpha1.CRDs(), versionv1alpha1.CRDs()...)
	if len(deployed) != len(installed) {
		t.Errorf("%d definitions are deployed, %d installed", len(deployed), len(installed))
	}
	for _, want := range installed {
		if got := deployed[want.Name]; !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s differs from what servers install: run make manifests", want.Name)
		}
	}
}
