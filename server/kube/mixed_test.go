package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	testbed "github.com/concord-dev/concord/testbed/cluster"
)

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// advice is the command that the condition of a StorageVersion advises for a crashed server.
var advice = regexp.MustCompile(`kubectl delete lease -n (\S+) (\S+)$`)

// disagreed waits until nothing is agreed for the sake of one Lease, and returns its name.
func (s *apiserver) disagreed(timeout time.Duration) (lease string) {
	s.t.Helper()
	eventually(s.t, timeout, "nothing is agreed, and it is said why", func(ctx context.Context) error {
		versions, err := s.storageVersions(ctx)
		if err != nil {
			return err
		}
		if len(versions) < 50 {
			return fmt.Errorf("there are %d StorageVersions", len(versions))
		}
		for gr, sv := range versions {
			told := storageversion.WaitsFor(sv)
			match := advice.FindStringSubmatch(told)
			if common, ok := storageversion.Agreement(sv); ok || match == nil || match[1] != storageversion.IdentityNamespace {
				return fmt.Errorf("%s: agreed on %q, it says %q", gr, common, told)
			}
			lease = match[2]
		}
		return nil
	})
	return lease
}

// Beside a stock kube-apiserver nothing is agreed and nothing migrates, and the stock one works
// as ever. When it has crashed and its Lease is deleted as told, everything is migrated, also
// the objects that the stock server, which emulates an older release, has written in another version.
func TestBesideStock(t *testing.T) {
	t.Parallel()
	const writes = agree.Encoding("admissionregistration.k8s.io/v1beta1") // of policies, which ours writes in v1
	c := newControl(t)
	migrations := c.follow(migrationv1alpha1.GroupName + "/storageversionmigrations")
	other := c.ready(stock, "other", "--emulated-version=1.36")
	s := c.ready(ours, "one")
	lease := s.disagreed(time.Minute)
	if _, err := s.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace).Get(t.Context(), lease, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "our definitions are served by the stock server", func(ctx context.Context) error {
		return other.Objects().List(ctx, &migrationv1alpha1.StorageStateList{})
	})
	discoveryIsWhole(t, other)
	watchesSeeWhatIsWritten(t, s, other)
	const policy = registry + "mutatingadmissionpolicies/written-by-stock"
	if _, err := other.Kube().AdmissionregistrationV1().MutatingAdmissionPolicies().Create(t.Context(), mutatingPolicy("written-by-stock"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if found, err := c.value(t.Context(), policy); err != nil || found != writes {
		t.Errorf("the stock server wrote %s, error %v, want %s", found, err, writes)
	}
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
}

// unknown waits until nobody claims to know what is stored of anything.
func (s *apiserver) unknown(timeout time.Duration) {
	s.t.Helper()
	eventually(s.t, timeout, "all that is stored is Unknown", func(ctx context.Context) error {
		versions, err := s.storageVersions(ctx)
		if err != nil {
			return err
		}
		stored, err := s.storageStates(ctx)
		if err != nil {
			return err
		}
		for gr := range versions {
			if encodings := stored[gr].PersistedEncodings; !slices.Contains(encodings, string(agree.Unknown)) {
				return fmt.Errorf("%s: %v", gr, encodings)
			}
		}
		return nil
	})
}

func mutatingPolicy(name string) *admissionregistrationv1.MutatingAdmissionPolicy {
	rule := admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{"example.org"}, APIVersions: []string{"*"}, Resources: []string{"gadgets"}},
	}
	return &admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints:   &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: rule}}},
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations: []admissionregistrationv1.Mutation{{
				PatchType:          admissionregistrationv1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: `Object{metadata: Object.metadata{labels: {"a": "b"}}}`},
			}},
		},
	}
}

// discoveryIsWhole says whether a server's aggregated discovery has groups that it could not
// ask about, or that nobody serves.
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

// watchesSeeWhatIsWritten writes by one server and watches by the other.
func watchesSeeWhatIsWritten(t *testing.T, writer, watched *apiserver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	config := watched.Kube().CoreV1().ConfigMaps(metav1.NamespaceDefault)
	list, err := config.List(ctx, metav1.ListOptions{})
	must(t, err)
	w, err := config.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	must(t, err)
	defer w.Stop()
	for i := range 20 {
		wrote, err := writer.Kube().CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("seen-%d", i)}, Data: map[string]string{"n": fmt.Sprint(i)},
		}, metav1.CreateOptions{})
		must(t, err)
		event, ok := <-w.ResultChan()
		seen, isConfigMap := event.Object.(*corev1.ConfigMap)
		if !ok || !isConfigMap || seen.ResourceVersion != wrote.ResourceVersion || seen.Data["n"] != fmt.Sprint(i) {
			t.Fatalf("wrote %+v, the watch saw %+v", wrote, event)
		}
	}
}
