package builtin_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/concord-dev/concord/server/builtin"
)

// certificate returns a self-signed certificate as PEM.
func certificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func (s *testServer) in(gvr schema.GroupVersionResource, obj *unstructured.Unstructured) dynamic.ResourceInterface {
	if ns := obj.GetNamespace(); ns != "" {
		return s.dynamic.Resource(gvr).Namespace(ns)
	}
	return s.dynamic.Resource(gvr)
}

// stored returns the raw value under a key in etcd and the ID of its lease.
func (s *testServer) stored(t *testing.T, key string) (value []byte, lease int64) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.etcd}, DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	got, err := client.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) != 1 {
		t.Fatalf("etcd has %d values under %s, want 1", len(got.Kvs), key)
	}
	return got.Kvs[0].Value, got.Kvs[0].Lease
}

// encodingOf returns the apiVersion in the envelope of a stored value.
func encodingOf(t *testing.T, value []byte) string {
	t.Helper()
	rest, ok := strings.CutPrefix(string(value), "k8s\x00")
	if !ok {
		t.Fatalf("stored value is not protobuf: %.20q", value)
	}
	var unknown runtime.Unknown
	if err := unknown.Unmarshal([]byte(rest)); err != nil {
		t.Fatal(err)
	}
	return unknown.APIVersion
}

// TestEveryVersion creates an object of every resource through each version that is
// served, and reads it through all of them: the content is the same, what is stored is
// in the version of the plan, and a second server with a later plan reads it too.
func TestEveryVersion(t *testing.T) {
	etcd := startEtcd(t)
	oldPlan := newPlan(t, "1.36", "1.35", map[string]string{"api/beta": "true"})
	newPlan := newPlan(t, "1.37", "1.37", map[string]string{"api/beta": "true"})
	before, after := startServer(t, oldPlan, etcd), startServer(t, newPlan, etcd)

	moved := map[string]bool{}
	for _, p := range builtin.PersistedResources(oldPlan) {
		t.Run(p.GroupResource.String(), func(t *testing.T) {
			for _, version := range p.Served {
				if len(p.Aliases) > 0 && !strings.HasPrefix(version, "v") {
					continue // shown by TestEventsInTwoGroups
				}
				obj := sample(t, p.GroupResource.Resource)
				obj.SetAPIVersion(version)
				gv := obj.GroupVersionKind().GroupVersion()
				resource := before.in(gv.WithResource(p.GroupResource.Resource), obj)
				created, err := resource.Create(t.Context(), obj, metav1.CreateOptions{})
				if err != nil {
					t.Fatalf("create through %s: %v", version, err)
				}
				key := "/registry/" + p.GroupResource.Resource + "/"
				if ns := obj.GetNamespace(); ns != "" {
					key += ns + "/"
				}
				value, _ := before.stored(t, key+obj.GetName())
				if got := encodingOf(t, value); got != p.Storage.String() {
					t.Errorf("%s created through %s is stored as %s, want %s", p.GroupResource, version, got, p.Storage)
				}
				sameThroughAll(t, before, p, created)
				later := builtin.PersistedResources(newPlan)
				i := slices.IndexFunc(later, func(l builtin.Persisted) bool { return l.GroupResource == p.GroupResource })
				sameThroughAll(t, after, later[i], created)
				if later[i].Storage != p.Storage {
					moved[p.GroupResource.Resource] = true
				}
				deleteOptions := metav1.DeleteOptions{}
				if err := resource.Delete(t.Context(), obj.GetName(), deleteOptions); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	want := []string{"clustertrustbundles", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "storageversionmigrations"}
	for _, resource := range want {
		if !moved[resource] {
			t.Errorf("%s is stored in the same version by both plans", resource)
		}
	}
}

// sameThroughAll gets and lists the object through every served version.
func sameThroughAll(t *testing.T, s *testServer, p builtin.Persisted, want *unstructured.Unstructured) {
	t.Helper()
	for _, version := range p.Served {
		if len(p.Aliases) > 0 && !strings.HasPrefix(version, "v") {
			continue
		}
		gv, err := schema.ParseGroupVersion(version)
		if err != nil {
			t.Fatal(err)
		}
		resource := s.in(gv.WithResource(p.GroupResource.Resource), want)
		got, err := resource.Get(t.Context(), want.GetName(), noGet)
		if err != nil {
			t.Fatal(err)
		}
		if got.GetAPIVersion() != version {
			t.Errorf("got apiVersion %s through %s", got.GetAPIVersion(), version)
		}
		if a, b := content(t, got), content(t, want); a != b {
			t.Errorf("through %s the object is\n%s, want\n%s", version, a, b)
		}
		for _, item := range rawItems(t, s, gv, p.GroupResource.Resource) {
			if item["apiVersion"] != nil || item["kind"] != nil {
				t.Errorf("an item listed through %s has its own apiVersion %v and kind %v", version, item["apiVersion"], item["kind"])
			}
		}
	}
}

// content is the object without what may differ between versions.
func content(t *testing.T, obj *unstructured.Unstructured) string {
	t.Helper()
	obj = obj.DeepCopy()
	obj.SetAPIVersion("")
	obj.SetManagedFields(nil)
	text, err := json.Marshal(obj.Object)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func rawItems(t *testing.T, s *testServer, gv schema.GroupVersion, resource string) []map[string]any {
	t.Helper()
	path := "/apis/" + gv.String()
	if gv.Group == "" {
		path = "/api/" + gv.Version
	}
	raw, err := s.RESTClient().Get().AbsPath(path+"/"+resource).SetHeader("Accept", "application/json").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []map[string]any }
	if err := json.Unmarshal(raw, &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) == 0 {
		t.Errorf("nothing listed at %s/%s", path, resource)
	}
	return list.Items
}

// TestApplyThroughVersions: server-side apply works on every resource and keeps the owner
// of a field across versions.
func TestApply(t *testing.T) {
	plan := newPlan(t, "1.37", "1.36", map[string]string{"api/beta": "true"})
	s := startServer(t, plan, startEtcd(t))
	for _, p := range builtin.PersistedResources(plan) {
		for _, version := range p.Served {
			if len(p.Aliases) > 0 && !strings.HasPrefix(version, "v") {
				continue
			}
			obj := sample(t, p.GroupResource.Resource)
			obj.SetAPIVersion(version)
			resource := s.in(obj.GroupVersionKind().GroupVersion().WithResource(p.GroupResource.Resource), obj)
			obj.SetLabels(map[string]string{"applied": strings.ReplaceAll(version, "/", "-")})
			got, err := resource.Apply(t.Context(), obj.GetName(), obj, metav1.ApplyOptions{FieldManager: "tester"})
			if err != nil {
				t.Errorf("apply %s through %s: %v", p.GroupResource, version, err)
				continue
			}
			owners := slices.DeleteFunc(got.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool { return e.Manager != "tester" })
			if len(owners) != 1 || owners[0].APIVersion != version || !strings.Contains(owners[0].FieldsV1.GetRawString(), `"f:applied"`) {
				t.Errorf("%s applied through %s: managed fields %v", p.GroupResource, version, got.GetManagedFields())
			}
		}
	}
}

// TestWatchInOldVersion: a watcher sees its own version, whatever is stored.
func TestWatchInOldVersion(t *testing.T) {
	plan := newPlan(t, "1.37", "1.36", map[string]string{"api/beta": "true"})
	s := startServer(t, plan, startEtcd(t))
	obj := sample(t, "mutatingadmissionpolicies")
	gvr := obj.GroupVersionKind().GroupVersion().WithResource("mutatingadmissionpolicies")
	if _, err := s.in(gvr, obj).Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, version := range []string{"v1", "v1beta1"} {
		gvr.Version = version
		w, err := s.in(gvr, obj).Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			t.Fatal(err)
		}
		event := <-w.ResultChan()
		if event.Object == nil {
			t.Fatalf("no event through %s", version)
		}
		if got := event.Object.(*unstructured.Unstructured).GetAPIVersion(); got != "admissionregistration.k8s.io/"+version {
			t.Errorf("watched %s, got %s", version, got)
		}
		w.Stop()
	}
}

// TestStorageVersionHash: plain discovery has it for every persisted resource, and it
// changes with the version stored.
func TestStorageVersionHash(t *testing.T) {
	etcd := startEtcd(t)
	hash := func(emulation string) string {
		s := startServer(t, newPlan(t, emulation, emulation, map[string]string{"api/beta": "true"}), etcd)
		raw, err := s.RESTClient().Get().AbsPath("/apis/certificates.k8s.io/v1beta1").SetHeader("Accept", "application/json").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var list metav1.APIResourceList
		if err := json.Unmarshal(raw, &list); err != nil {
			t.Fatal(err)
		}
		return list.APIResources[0].StorageVersionHash
	}
	before, after := hash("1.36"), hash("1.37")
	if before == "" || after == "" || before == after {
		t.Errorf("storage version hashes %q and %q, want two different ones", before, after)
	}
}

// TestOpenAPI: all served versions are described, nothing internal shows.
func TestOpenAPI(t *testing.T) {
	plan := newPlan(t, "1.37", "1.36", everything)
	s := startServer(t, plan, startEtcd(t))
	v2, err := s.discovery.OpenAPISchema()
	if err != nil {
		t.Fatal(err)
	}
	if text := v2.String(); strings.Contains(text, "__internal") || !strings.Contains(text, "io.k8s.api.admissionregistration.v1beta1.MutatingAdmissionPolicy") {
		t.Error("OpenAPI v2 shows an internal version, or does not describe MutatingAdmissionPolicy")
	}
	paths, err := s.discovery.OpenAPIV3().Paths()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range builtin.PersistedResources(plan) {
		for _, version := range p.Served {
			path := "apis/" + version
			if !strings.Contains(version, "/") {
				path = "api/" + version
			}
			document, ok := paths[path]
			if !ok {
				t.Errorf("no OpenAPI v3 of %s", path)
				continue
			}
			text, err := document.Schema(runtime.ContentTypeJSON)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "__internal") {
				t.Errorf("OpenAPI v3 of %s shows an internal version", path)
			}
		}
	}
}

// TestPatchOfOldVersion: a strategic merge patch works in every version.
func TestPatchOfOldVersion(t *testing.T) {
	plan := newPlan(t, "1.37", "1.36", map[string]string{"api/beta": "true"})
	s := startServer(t, plan, startEtcd(t))
	obj := sample(t, "mutatingadmissionpolicies")
	gvr := obj.GroupVersionKind().GroupVersion().WithResource("mutatingadmissionpolicies")
	if _, err := s.in(gvr, obj).Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, version := range []string{"v1beta1", "v1"} {
		gvr.Version = version
		patch := `{"spec":{"matchConditions":[{"name":"` + version + `","expression":"true"}]}}`
		got, err := s.in(gvr, obj).Patch(t.Context(), "sample", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		conditions, _, _ := unstructured.NestedSlice(got.Object, "spec", "matchConditions")
		if len(conditions) != i+1 || got.GetGeneration() != int64(i+2) {
			t.Errorf("after the patch through %s: conditions %v, generation %d", version, conditions, got.GetGeneration())
		}
	}
}
