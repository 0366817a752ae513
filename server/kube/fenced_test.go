package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/api/apiserverinternal/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/kubeapiserver"
	etcddata "k8s.io/kubernetes/test/integration/etcd"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/beside"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

const registry = "/registry/"

// bypassing returns the prefixes of the keys that kube-apiserver writes outside of a resource's store, as ARCHITECTURE.md
// lists them. All values are in core/v1, which every release writes and reads.
func bypassing(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../ARCHITECTURE.md")
	must(t, err)
	_, section, _ := strings.Cut(string(text), "\n## Writers that bypass the fence\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var prefixes []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`<]+)").FindAllStringSubmatch(section, -1) {
		prefixes = append(prefixes, row[1])
	}
	return prefixes
}

// compacted is a key without an object: it has the revision to which kube-apiservers have compacted
// etcd.
const compacted = "compact_rev_key"

// agreed waits until every StorageVersion has the reports of so many servers, and these agree.
func (s *apiserver) agreed(timeout time.Duration, servers int) map[schema.GroupResource]agree.Encoding {
	s.t.Helper()
	agreements := map[schema.GroupResource]agree.Encoding{}
	eventually(s.t, timeout, "all servers agree", func(ctx context.Context) error {
		versions, err := beside.StorageVersions(ctx, s.Objects())
		if err != nil {
			return err
		}
		for gr, sv := range versions {
			common, ok := storageversion.Agreement(sv)
			if reports := storageversion.Reports(sv); !ok || len(reports) != servers {
				return fmt.Errorf("%s: reports %v, %s", gr, reports, storageversion.WaitsFor(sv))
			}
			agreements[gr] = common
		}
		return nil
	})
	return agreements
}

// migrated waits until the stored set of every reported resource is the agreed encoding alone.
func (s *apiserver) migrated(timeout time.Duration) {
	s.t.Helper()
	eventually(s.t, timeout, "everything is migrated", func(ctx context.Context) error {
		return beside.States(ctx, s.Objects(), func(sv *v1alpha1.StorageVersion, status migrationv1alpha1.StorageStateStatus) bool {
			common, ok := storageversion.Agreement(sv)
			return ok && slices.Equal(status.PersistedEncodings, []string{string(common)}) && status.StorageVersionUID == sv.UID
		})
	})
}

// value reads a key of etcd, and returns the encoding of its value.
func (c *control) value(ctx context.Context, key string) (agree.Encoding, error) {
	answer, err := c.Raw.Get(ctx, key)
	if err != nil {
		return "", err
	}
	if len(answer.Kvs) == 0 {
		return "", fmt.Errorf("%s is not in etcd", key)
	}
	encoding, _, ok := migratestore.Envelope(answer.Kvs[0].Value)
	if !ok {
		return "", fmt.Errorf("%s has no readable envelope", key)
	}
	return encoding, nil
}

// stores returns the resources by the prefixes of their objects, without the registry's prefix.
func stores(reported map[schema.GroupResource]agree.Encoding) map[string]schema.GroupResource {
	found := map[string]schema.GroupResource{}
	for gr := range reported {
		prefix := gr.Resource
		if special, ok := kubeapiserver.SpecialDefaultResourcePrefixes[gr]; ok {
			prefix = special
		} else if strings.Contains(gr.Group, ".") && !strings.HasSuffix(gr.Group, ".k8s.io") || slices.Contains([]string{"apiextensions.k8s.io", "apiregistration.k8s.io", migrationv1alpha1.GroupName}, gr.Group) {
			prefix = gr.Group + "/" + gr.Resource
		}
		found[prefix+"/"] = gr
	}
	return found
}

// TestFenced: everything that kube-apiserver stores is reported, and stored as reported, for
// objects of every kind that it serves. The other keys in etcd are exactly those of
// ARCHITECTURE.md's list.
func TestFenced(t *testing.T) {
	t.Parallel()
	c := newControl(t)
	s := c.ready(ours, "one", append(c.peerFlags(), "--endpoint-reconciler-type=lease", "--advertise-address=192.0.2.1", "--runtime-config=api/all=true",
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition")...)
	agreements := s.agreed(time.Minute, 1)
	t.Logf("%d StorageVersions", len(agreements))
	t.Run("Discovery", func(t *testing.T) { discoveryNamesEncodings(t, s, agreements) })
	t.Run("Objects", func(t *testing.T) { createEverything(t, c, s, agreements) })
	t.Run("Keys", func(t *testing.T) { nothingElseIsStored(t, c, s) })
	s.end()
}

// discoveryNamesEncodings compares the reports with the storage version hashes in the server's
// discovery.
func discoveryNamesEncodings(t *testing.T, s *apiserver, agreements map[schema.GroupResource]agree.Encoding) {
	// The groups of CustomResourceDefinitions are added later.
	eventually(t, time.Minute, "all groups are in discovery", func(context.Context) error {
		groups, err := s.Kube().Discovery().ServerGroups()
		if err != nil {
			return err
		}
		for gr := range agreements {
			if !slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == gr.Group }) {
				return fmt.Errorf("the group of %s is not", gr)
			}
		}
		return nil
	})
	discoveryIsWhole(t, s)
	groups, err := s.Kube().Discovery().ServerGroups()
	must(t, err)
	unseen := sets.KeySet(agreements)
	for _, version := range metav1.ExtractGroupVersions(groups) {
		gv, err := schema.ParseGroupVersion(version)
		must(t, err)
		list, err := s.Kube().Discovery().ServerResourcesForGroupVersion(version) // not the aggregated discovery, which has no hashes
		must(t, err)
		for _, r := range list.APIResources {
			if r.StorageVersionHash == "" {
				continue
			}
			gr := gv.WithResource(r.Name).GroupResource()
			if gr == (schema.GroupResource{Group: "events.k8s.io", Resource: "events"}) {
				gr.Group = "" // events of both groups are in one store
			}
			unseen.Delete(gr)
			encoding, err := schema.ParseGroupVersion(string(agreements[gr]))
			must(t, err)
			if want := migrationv1alpha1.StorageVersionHash(encoding.WithKind(r.Kind)); r.StorageVersionHash != want {
				t.Errorf("%s is reported in %q, but the server says that it stores %s", gr, encoding, r.StorageVersionHash)
			}
		}
	}
	if !unseen.Equal(sets.New(storageversion.Resource)) { // has no hash in discovery
		t.Errorf("reported, but not served as stored: %v", unseen)
	}
}

// createEverything creates an object of every kind that Kubernetes' own test of storage paths
// knows, and reads its encoding in raw etcd.
func createEverything(t *testing.T, c *control, s *apiserver, agreements map[schema.GroupResource]agree.Encoding) {
	ctx := t.Context()
	const namespace = "etcdstoragepathtestnamespace" // is used by that test
	if _, err := s.Kube().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The server's preferred version comes first; the objects of other versions have other names.
	_, lists, err := s.Kube().Discovery().ServerGroupsAndResources()
	must(t, err)
	created := sets.New[schema.GroupResource]()
	data := etcddata.GetEtcdStorageData()
	for _, list := range lists {
		gv, _ := schema.ParseGroupVersion(list.GroupVersion)
		for _, r := range list.APIResources {
			gvr := gv.WithResource(r.Name)
			sample, known := data[gvr]
			if !known || !slices.Contains(r.Verbs, "create") {
				continue
			}
			object := &unstructured.Unstructured{}
			must(t, json.Unmarshal([]byte(sample.Stub), &object.Object))
			object.SetGroupVersionKind(gv.WithKind(r.Kind))
			client := s.Dynamic().Resource(gvr)
			if r.Namespaced {
				_, err = client.Namespace(namespace).Create(ctx, object, metav1.CreateOptions{})
			} else {
				_, err = client.Create(ctx, object, metav1.CreateOptions{})
			}
			if err != nil {
				t.Errorf("%s: %v", gvr, err)
				continue
			}
			gr := gvr.GroupResource()
			if gr.Group == "events.k8s.io" {
				gr.Group = ""
			}
			created.Insert(gr)
			if encoding, err := c.value(ctx, sample.ExpectedEtcdPath); err != nil || encoding != agreements[gr] {
				t.Errorf("%s is stored in %q, agreed is %q, error %v", gvr, encoding, agreements[gr], err)
			}
		}
	}
	without := sets.KeySet(agreements).Difference(created)
	for gr := range without {
		if gr.Group != migrationv1alpha1.GroupName && !strings.HasSuffix(gr.Group, "concord.dev") && gr != storageversion.Resource {
			t.Errorf("no object of %s was created", gr)
		}
	}
}

// nothingElseIsStored compares all keys in etcd with the stores of the reported resources.
func nothingElseIsStored(t *testing.T, c *control, s *apiserver) {
	listed := bypassing(t)
	eventually(t, time.Minute, "every writer that bypasses the fence has written", func(ctx context.Context) error {
		versions, err := beside.StorageVersions(ctx, s.Objects())
		if err != nil {
			return err
		}
		reported := map[schema.GroupResource]agree.Encoding{}
		for gr := range versions {
			reported[gr] = ""
		}
		known := stores(reported)
		answer, err := c.Raw.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithKeysOnly())
		if err != nil {
			return err
		}
		found := sets.New[string]()
		for _, kv := range answer.Kvs {
			if string(kv.Key) == compacted {
				continue // is written after five minutes
			}
			key := strings.TrimPrefix(string(kv.Key), registry)
			under := func(prefix string) bool { return strings.HasPrefix(key, prefix) }
			if slices.ContainsFunc(slices.Collect(maps.Keys(known)), under) {
				continue
			}
			i := slices.IndexFunc(listed, under)
			if i < 0 {
				found.Insert(key)
				continue
			}
			found.Insert(listed[i])
			encoding, err := c.value(ctx, string(kv.Key))
			if err != nil || encoding != "v1" {
				return fmt.Errorf("%s is in %q: %w", key, encoding, err)
			}
		}
		if !found.Equal(sets.New(listed...)) {
			return fmt.Errorf("stored without a report is %v, listed is %v", sets.List(found), listed)
		}
		return nil
	})
}
