package e2e

import (
	"bytes"
	_ "embed"
	"errors"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

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

// certificate is one that a trust bundle can have, in PEM.
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

// read reads, through a server, all marked objects of the samples' resources, but for
// those of a load, in the version that the samples have, or where that is not served, in
// v1beta1, which looks the same.
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

// wantSame fails for every object that was read and is not the same now, through each of
// the servers.
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
