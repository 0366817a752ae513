package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/cluster"
	migratestore "github.com/concord-dev/concord/migrate/store"
	testbed "github.com/concord-dev/concord/testbed/cluster"
)

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// disagreed waits until no resource is agreed on because of one Lease, and returns the Lease's name.
func (s *apiserver) disagreed(timeout time.Duration) (lease string) {
	s.t.Helper()
	eventually(s.t, timeout, "nothing is agreed, and it is said why", func(ctx context.Context) (err error) {
		lease, err = beside.Blamed(ctx, s.Objects())
		return err
	})
	return lease
}

// epoch returns the epoch of a resource's agreements.
func (s *apiserver) epoch(gr schema.GroupResource) int64 {
	s.t.Helper()
	all, err := beside.StorageVersions(s.t.Context(), s.Objects())
	must(s.t, err)
	history, err := storageversion.History(all[gr])
	must(s.t, err)
	return history.Epoch
}

// unknown waits until the stored set of every resource has Unknown.
func (s *apiserver) unknown(timeout time.Duration) {
	s.t.Helper()
	eventually(s.t, timeout, "all that is stored is Unknown", func(ctx context.Context) error {
		return beside.States(ctx, s.Objects(), func(_ *apiserverinternalv1alpha1.StorageVersion, status migrationv1alpha1.StorageStateStatus) bool {
			return slices.Contains(status.PersistedEncodings, string(agree.Unknown))
		})
	})
}

// TestBesideStock: beside a stock kube-apiserver that encrypts with the same keys nothing is agreed on and nothing is
// migrated, and the stock server works as usual. When it has crashed, and its Lease is deleted as the message says,
// everything is migrated, also the objects that the stock server, which emulates an older release,
// wrote in another version, or in CBOR.
func TestBesideStock(t *testing.T) {
	t.Parallel()
	const writes = agree.Encoding("admissionregistration.k8s.io/v1beta1") // our server writes policies in v1
	c := newControl(t)
	migrations := c.follow(migrationv1alpha1.GroupName + "/storageversionmigrations")
	encrypting := "--encryption-provider-config=" + c.write("encryption.yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n"+
		"  providers:\n  - aescbc: {keys: [{name: key1, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}\n  - identity: {}\n")
	other := c.ready(stock, "other", "--emulated-version=1.36", "--feature-gates=CBORServingAndStorage=true", encrypting)
	s := c.ready(ours, "one", encrypting)
	lease := s.disagreed(time.Minute)
	eventually(t, time.Minute, "our definitions are served by the stock server", func(ctx context.Context) error {
		return other.Objects().List(ctx, &migrationv1alpha1.StorageStateList{})
	})
	discoveryIsWhole(t, other)
	const policy = registry + "mutatingadmissionpolicies/written-by-stock"
	if _, err := other.Kube().AdmissionregistrationV1().MutatingAdmissionPolicies().Create(t.Context(), beside.MutatingPolicy("written-by-stock"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if found, err := c.value(t.Context(), policy); err != nil || found != writes {
		t.Errorf("the stock server wrote %s, error %v, want %s", found, err, writes)
	}
	other.createWidgets(3) // in CBOR
	s.unknown(time.Minute)

	other.Kill()
	if again := s.disagreed(time.Minute); again != lease {
		t.Errorf("the crashed server's Lease is called %s, and was called %s", again, lease)
	}
	s.unknown(time.Minute)
	if made := migrations(); len(made) > 0 {
		t.Errorf("migrations were written while nothing was agreed: %v", made)
	}
	must(t, s.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace).Delete(t.Context(), lease, metav1.DeleteOptions{}))
	want := s.agreed(time.Minute, 1)[mutatingPolicies]
	s.migrated(time.Minute)
	if found, err := c.value(t.Context(), policy); err != nil || found != want || want != "admissionregistration.k8s.io/v1" {
		t.Errorf("the policy is stored as %s, error %v, agreed on is %s", found, err, want)
	}
	s.flip("v2")
	s.storedVersions(time.Minute, "v2")
	if found := c.encodings(); len(found) != 1 || found["example.com/v2"] != 3 {
		t.Errorf("widgets are stored as %v", found)
	}
}

// discoveryIsWhole waits until a server's aggregated discovery has no group that it could not ask
// about, and every APIService is available.
func discoveryIsWhole(t *testing.T, s *apiserver) {
	t.Helper()
	eventually(t, time.Minute, "discovery is whole", func(ctx context.Context) error {
		for _, path := range []string{"/api", "/apis"} {
			status, body, err := testbed.Get(ctx, s.as(adminToken), path, http.Header{"Accept": {"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}})
			if err != nil || status != http.StatusOK {
				return fmt.Errorf("%s: %d %s: %w", path, status, body, err)
			}
			var list apidiscoveryv2.APIGroupDiscoveryList
			if err := json.Unmarshal([]byte(body), &list); err != nil {
				return err
			}
			if len(list.Items) == 0 {
				return fmt.Errorf("%s lists no group", path)
			}
			for _, group := range list.Items {
				for _, v := range group.Versions {
					if v.Freshness != apidiscoveryv2.DiscoveryFreshnessCurrent {
						return fmt.Errorf("%s/%s is %s", group.Name, v.Version, v.Freshness)
					}
				}
			}
		}
		services, err := s.Dynamic().Resource(apiServices).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, service := range services.Items {
			raw, err := json.Marshal(service.Object["status"])
			if err != nil || !strings.Contains(string(raw), `"status":"True","type":"Available"`) {
				return fmt.Errorf("APIService %s: %s, %w", service.GetName(), raw, err)
			}
		}
		return nil
	})
}

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

// createWidgets creates the CRD, which stores v1, and n objects.
func (s *apiserver) createWidgets(n int) {
	s.t.Helper()
	must(s.t, s.Objects().Create(s.t.Context(), testbed.Definition(widgets, "v1")))
	for i := range n {
		eventually(s.t, time.Minute, "a widget is created", func(ctx context.Context) error {
			_, err := s.widgets().Create(ctx, widget(fmt.Sprintf("w-%d", i)), metav1.CreateOptions{})
			return err
		})
	}
}

func (s *apiserver) widgets() dynamic.ResourceInterface {
	s.t.Helper()
	return s.Dynamic().Resource(widgets.WithVersion("v1")).Namespace(metav1.NamespaceDefault)
}

func widget(name string) *unstructured.Unstructured {
	w := &unstructured.Unstructured{}
	w.SetAPIVersion("example.com/v1")
	w.SetKind("Widget")
	w.SetName(name)
	return w
}

// changeCRD changes the CRD as a user does.
func (s *apiserver) changeCRD(status bool, change func(*apiextensionsv1.CustomResourceDefinition)) {
	s.t.Helper()
	eventually(s.t, time.Minute, "the definition is changed", func(ctx context.Context) error {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := s.Objects().Get(ctx, client.ObjectKey{Name: widgets.String()}, crd); err != nil {
			return err
		}
		change(crd)
		if status {
			return s.Objects().Status().Update(ctx, crd)
		}
		return s.Objects().Update(ctx, crd)
	})
}

// flip changes the storage version of the CRD.
func (s *apiserver) flip(stores string) {
	s.t.Helper()
	s.changeCRD(false, cluster.Store(stores))
}

// storedVersions waits until the definition's storedVersions are these.
func (s *apiserver) storedVersions(timeout time.Duration, want ...string) {
	s.t.Helper()
	eventually(s.t, timeout, fmt.Sprintf("storedVersions become %v", want), func(ctx context.Context) error {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := s.Objects().Get(ctx, client.ObjectKey{Name: widgets.String()}, crd); err != nil {
			return err
		}
		if !slices.Equal(crd.Status.StoredVersions, want) {
			return fmt.Errorf("they are %v", crd.Status.StoredVersions)
		}
		return nil
	})
}

// encodings counts the widgets in raw etcd by encoding.
func (c *control) encodings() map[agree.Encoding]int {
	c.t.Helper()
	answer, err := c.Raw.Get(c.t.Context(), registry+"example.com/widgets/", clientv3.WithPrefix())
	must(c.t, err)
	found := map[agree.Encoding]int{}
	for _, kv := range answer.Kvs {
		encoding, _, _ := migratestore.Envelope(kv.Value)
		found[encoding]++
	}
	return found
}

// TestPrunedTooEarly: if another migrator prunes storedVersions while old objects are stored, they
// are put back. They are pruned again only when Concord has migrated the objects.
func TestPrunedTooEarly(t *testing.T) {
	t.Parallel()
	c := newControl(t)
	s := c.ready(ours, "one")
	// Beside a stock server, the migration cannot run, so old objects stay.
	s.createWidgets(20)
	s.migrated(time.Minute)
	other := c.ready(stock, "other")
	s.disagreed(time.Minute)
	s.flip("v2")
	s.storedVersions(time.Minute, "v1", "v2")
	eventually(t, time.Minute, "the stored set knows both versions", func(ctx context.Context) error {
		state := &migrationv1alpha1.StorageState{}
		if err := s.Objects().Get(ctx, client.ObjectKey{Name: migrationv1alpha1.StateName(widgets)}, state); err != nil {
			return err
		}
		if !slices.Contains(state.Status.PersistedEncodings, "example.com/v1") || !slices.Contains(state.Status.PersistedEncodings, "example.com/v2") {
			return fmt.Errorf("it is %v", state.Status.PersistedEncodings)
		}
		return nil
	})
	// kube-controller-manager's migrator does this after a migration that failed.
	s.changeCRD(true, func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Status.StoredVersions = []string{"v2"} })
	s.storedVersions(time.Minute, "v2", "v1")
	if found := c.encodings(); found["example.com/v1"] != 20 {
		t.Errorf("in etcd are %v", found)
	}
	s.forget()
	s.changeCRD(true, func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Status.StoredVersions = []string{"v2"} })
	s.storedVersions(time.Minute, "v2", "v1")
	other.end() // deletes its Lease
	s.storedVersions(time.Minute, "v2")
	if found := c.encodings(); found["example.com/v2"] != 20 || len(found) != 1 {
		t.Errorf("in etcd are %v", found)
	}
}

// forget deletes the StorageState and waits until there is a new one. Its stored set is Unknown, as
// after a roll from stock servers.
func (s *apiserver) forget() {
	s.t.Helper()
	old := &migrationv1alpha1.StorageState{}
	key := client.ObjectKey{Name: migrationv1alpha1.StateName(widgets)}
	must(s.t, s.Objects().Get(s.t.Context(), key, old))
	must(s.t, s.Objects().Delete(s.t.Context(), old))
	eventually(s.t, time.Minute, "the stored set is Unknown", func(ctx context.Context) error {
		state := &migrationv1alpha1.StorageState{}
		if err := s.Objects().Get(ctx, key, state); err != nil {
			return err
		}
		if state.UID == old.UID || !slices.Equal(state.Status.PersistedEncodings, []string{migrationv1alpha1.Unknown}) {
			return fmt.Errorf("it is %v", state.Status.PersistedEncodings)
		}
		return nil
	})
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}
