package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/server/planning"
	"github.com/concord-dev/concord/testbed/load"
)

// TestEmulation starts one server at every release in range, by default and with the
// betas enabled, and compares it with what that release is known to do.
func TestEmulation(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	var s *cluster.Server
	for _, release := range compat.AllowedEmulation(compat.BinaryVersion()) {
		for _, betas := range []bool{false, true} {
			o := cluster.Options{Emulation: release.String()}
			if betas {
				o.Args = "--runtime-config=api/beta=true"
			}
			if s == nil {
				s = c.Start(o, "one")[0]
			} else {
				s.Restart(o)
			}
			t.Run(fmt.Sprintf("%s betas=%t", release, betas), func(t *testing.T) {
				t.Run("Discovery", func(t *testing.T) { testDiscoveryOfRelease(t, s, release, betas) })
				t.Run("Introspection", func(t *testing.T) { testIntrospection(t, s, release) })
				t.Run("Skew", func(t *testing.T) { testKubeletSkew(t, s, release) })
				t.Run("Controllers", func(t *testing.T) { testControllers(t, s) })
			})
		}
	}
	c.Check()
	s.Terminate()
}

// testDiscoveryOfRelease compares the aggregated discovery of a server with the table of
// what the release that it emulates serves, testdata/served/<release>.txt, for the
// resources that Concord has.
//
// The tables were derived from what k8s.io/api v0.37.2 says of the lifecycle of its types,
// and verified against what the releases say of themselves, which gave the same lines:
// testdata/served/derive.go was run for each release on its own published modules (1.34
// on k8s.io/api, client-go, apiextensions-apiserver and kube-aggregator v0.34.13, 1.35 on
// v0.35.10, 1.36 on v0.36.6) and on those of v0.37.2, and the outputs were compared:
//
//	M=$(go env GOMODCACHE)/k8s.io
//	for m in api client-go apiextensions-apiserver kube-aggregator; do go mod download k8s.io/$m@v0.34.13; done
//	go run derive.go 1.34 $M/api@v0.34.13=$M/client-go@v0.34.13/kubernetes/typed \
//	  $M/apiextensions-apiserver@v0.34.13/pkg/apis=$M/apiextensions-apiserver@v0.34.13/pkg/client/clientset/clientset/typed \
//	  $M/kube-aggregator@v0.34.13/pkg/apis=$M/kube-aggregator@v0.34.13/pkg/client/clientset_generated/clientset/typed
//
// A running kube-apiserver of those releases was not asked.
//
// Versions behind a feature gate of their own are not compared.
func testDiscoveryOfRelease(t *testing.T, s *cluster.Server, release *version.Version, betas bool) {
	table, err := os.ReadFile(filepath.Join("testdata", "served", release.String()+".txt"))
	if err != nil {
		t.Fatalf("nobody has written down what %s serves: %v", release, err)
	}
	ours := planning.Generic()
	groups, want := map[string]bool{}, map[string]bool{
		// This API is alpha and off in those releases. Concord needs it and serves it.
		"internal.apiserver.k8s.io/v1alpha1/storageversions": true,
	}
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		gv, err := schema.ParseGroupVersion(f[0])
		if err != nil || len(f) != 3 || f[2] != "on" && f[2] != "off" {
			t.Fatalf("%s: line %q: %v", release, line, err)
		}
		groups[gv.Group] = true
		if ours.Has(schema.GroupResource{Group: gv.Group, Resource: f[1]}) && (f[2] == "on" || betas) {
			want[gv.Group+"/"+gv.Version+"/"+f[1]] = true
		}
	}
	if len(want) < 20 {
		t.Errorf("the table of %s has only %d versions of resources that Concord has", release, len(want))
	}
	groups["internal.apiserver.k8s.io"] = true
	cluster.Eventually(t, time.Minute, "discovery is current", func(context.Context) error {
		all := discovered(t, s)
		got := map[string]bool{}
		for _, gvr := range slices.Sorted(maps.Keys(all)) {
			// Kubernetes does not know Concord's own groups, so these are left out.
			if group, _, _ := strings.Cut(gvr, "/"); groups[group] {
				got[gvr] = true
			}
			if !all[gvr] {
				return fmt.Errorf("%s is not current", gvr)
			}
		}
		for _, gvr := range gated {
			delete(got, gvr)
			delete(want, gvr)
		}
		var errs []error
		for _, gvr := range slices.Sorted(maps.Keys(want)) {
			if !got[gvr] {
				errs = append(errs, fmt.Errorf("%s serves %s, this server does not", release, gvr))
			}
		}
		for _, gvr := range slices.Sorted(maps.Keys(got)) {
			if !want[gvr] {
				errs = append(errs, fmt.Errorf("this server serves %s, %s does not", gvr, release))
			}
		}
		return errors.Join(errs...)
	})
}

// testIntrospection: /version tells the versions (KEP-4330, "Version introspection");
// /statusz and /flagz are there from 1.36 on, where they are beta.
func testIntrospection(t *testing.T, s *cluster.Server, release *version.Version) {
	var v struct{ Minor, EmulationMajor, EmulationMinor, MinCompatibilityMajor, MinCompatibilityMinor string }
	must(t, json.Unmarshal([]byte(fetch(t, s, "/version", "")), &v))
	least := compat.DefaultMinCompatibility(compat.BinaryVersion(), release)
	if v.Minor != "37" || v.EmulationMajor+"."+v.EmulationMinor != release.String() || v.MinCompatibilityMajor+"."+v.MinCompatibilityMinor != least.String() {
		t.Errorf("/version of %s is %+v", release, v)
	}
	want := http.StatusOK
	if release.LessThan(version.MustParse("1.36")) {
		want = http.StatusNotFound
	}
	for path, line := range map[string]string{
		"/statusz": `(?m)^Emulation version[:= ]+` + regexp.QuoteMeta(release.String()) + `$`,
		"/flagz":   `(?m)^emulation-version[:= ]+` + regexp.QuoteMeta("["+release.String()+"]") + `$`,
	} {
		status, body := request(t, s.Config(), path, "")
		if status != want {
			t.Errorf("%s at %s: %d, want %d", path, release, status, want)
		} else if status == http.StatusOK && !regexp.MustCompile(line).MatchString(body) {
			t.Errorf("%s at %s does not match %s: %s", path, release, line, body)
		}
	}
}

// testKubeletSkew: the skew of a kubelet counts from the release that the server emulates
// (KEP-4330, "Skew"), whatever the binary's release is. Requests of the server itself and of its
// controllers are never out of skew.
func testKubeletSkew(t *testing.T, s *cluster.Server, release *version.Version) {
	const newer, older = `concord_component_skew_requests_total{component="kubelet",direction="newer"}`, `concord_component_skew_requests_total{component="kubelet",direction="older"}`
	oldest := compat.DefaultMinCompatibility(compat.BinaryVersion(), release).SubtractMinor(2)
	before := skewCounts(t, s)
	for _, v := range []*version.Version{release, release.AddMinor(1), oldest, oldest.SubtractMinor(1), oldest.SubtractMinor(2)} {
		config := s.Config()
		config.UserAgent = fmt.Sprintf("kubelet/v%s.1 (linux/amd64) kubernetes/93248f9", v)
		if status, body := request(t, config, "/api/v1", ""); status != http.StatusOK {
			t.Errorf("kubelet %s is answered %d: %s", v, status, body)
		}
	}
	after := skewCounts(t, s)
	if got := [2]int{after[newer] - before[newer], after[older] - before[older]}; got != [2]int{1, 2} {
		t.Errorf("at %s kubelets were counted newer and older %v times, want one and two", release, got)
	}
	if named := fmt.Sprintf(`component="kubelet" version="%s"`, oldest.SubtractMinor(2)); !strings.Contains(s.Output(), named) {
		t.Errorf("at %s the log does not name %s", release, named)
	}
	for _, own := range []compat.Component{compat.ConcordServer, compat.ConcordControllers} {
		for line, n := range after {
			if strings.Contains(line, fmt.Sprintf("component=%q", own)) {
				t.Errorf("%s is out of skew with itself: %s %d", own, line, n)
			}
		}
	}
}

// testControllers: Kubernetes' controllers run at every release, and give a namespace what clients
// expect in it.
func testControllers(t *testing.T, s *cluster.Server) {
	kube := s.Kube().CoreV1()
	made, err := kube.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "new-"}}, metav1.CreateOptions{})
	must(t, err)
	cluster.Eventually(t, time.Minute, "a namespace has its ServiceAccount and the root CA", func(ctx context.Context) error {
		_, account := kube.ServiceAccounts(made.Name).Get(ctx, "default", metav1.GetOptions{})
		_, ca := kube.ConfigMaps(made.Name).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return errors.Join(account, ca)
	})
}

// skewCounts returns the values of the skew metric by the name and labels before them.
func skewCounts(t *testing.T, s *cluster.Server) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for sample, value := range samplesOf(t, s, skewedRequests+"{") {
		n, err := strconv.Atoi(value)
		must(t, err)
		counts[sample] = n
	}
	return counts
}

// gated are beta versions that are served with a feature gate only, which is off by default.
var gated = []string{"certificates.k8s.io/v1beta1/clustertrustbundles", "storagemigration.k8s.io/v1beta1/storageversionmigrations"}

// TestCompatibility: servers on one etcd that emulate several releases write only what the
// releases of the others understand, and accept what is stored already (KEP-4330, "Validation
// ratcheting", "CEL Environment Compatibility Versioning" and the new fields of "Integration
// tests"). One binary emulates all releases.
func TestCompatibility(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	const beta = "--runtime-config=admissionregistration.k8s.io/v1beta1=true"
	var servers []*cluster.Server
	for _, o := range []cluster.Options{
		{Emulation: "1.37", MinCompatibility: "1.37", Args: beta},
		{Emulation: "1.37", MinCompatibility: "1.36", Args: beta},
		{Emulation: "1.36", MinCompatibility: "1.35", Args: beta},
		{Emulation: "1.35", MinCompatibility: "1.34", Args: beta},
	} {
		name := "emulates-" + o.Emulation + "-min-" + o.MinCompatibility
		servers = append(servers, c.Start(o, name)...)
	}
	highest, lower := servers[0], servers[1:]
	t.Run("Rules", func(t *testing.T) { testRules(t, highest, lower) })
	t.Run("Policies", func(t *testing.T) { testPolicies(t, highest, lower) })
	t.Run("RuleCost", func(t *testing.T) { testRuleCost(t, highest, lower) })
	t.Run("NewField", func(t *testing.T) { testNewField(t, servers) })
	c.Check()
}

var (
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	validations = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"}
	mutations   = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1beta1", Resource: "mutatingadmissionpolicies"}
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	must(t, yaml.Unmarshal([]byte(text), &obj.Object))
	return obj
}

// definition returns a CRD of cluster-scoped objects with a validation rule at the root of its schema.
func definition(t *testing.T, plural, rule string) *unstructured.Unstructured {
	t.Helper()
	return object(t, fmt.Sprintf(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: %[1]s.e2e.concord.dev},
spec: {group: e2e.concord.dev, scope: Cluster, names: {plural: %[1]s, singular: %[1]sone, kind: Kind%[1]s, listKind: Kind%[1]sList}, versions: [
{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-validations: [{rule: %[2]q}],
properties: {spec: {type: object, required: [words], properties: {words: {type: array, maxItems: 10, items: {type: string, maxLength: 100}}}}}}}}]}}`, plural, rule))
}

// attempt repeats a request that a server answers with "not yet" or "not now".
func attempt(t *testing.T, what string, f func(context.Context) error) error {
	t.Helper()
	var err error
	cluster.Eventually(t, 60*time.Second, what, func(ctx context.Context) error {
		err = f(ctx)
		for _, again := range []func(error) bool{apierrors.IsNotFound, apierrors.IsServiceUnavailable, apierrors.IsTooManyRequests, apierrors.IsTimeout, apierrors.IsServerTimeout, load.EtcdLate} {
			if again(err) {
				return err
			}
		}
		return nil
	})
	return err
}

func create(t *testing.T, r dynamic.ResourceInterface, obj *unstructured.Unstructured) error {
	t.Helper()
	tried := false
	return attempt(t, obj.GetName()+" can be created", func(ctx context.Context) error {
		_, err := r.Create(ctx, obj, metav1.CreateOptions{})
		if tried && apierrors.IsAlreadyExists(err) {
			return nil // created by the attempt that got no answer
		}
		tried = true
		return err
	})
}

func patch(t *testing.T, r dynamic.ResourceInterface, name string, kind types.PatchType, body string, subresources ...string) error {
	t.Helper()
	return attempt(t, name+" can be patched", func(ctx context.Context) error {
		_, err := r.Patch(ctx, name, kind, []byte(body), metav1.PatchOptions{}, subresources...)
		return err
	})
}

func label(t *testing.T, r dynamic.ResourceInterface, name string) error {
	t.Helper()
	return patch(t, r, name, types.MergePatchType, `{"metadata":{"labels":{"touched":"yes"}}}`)
}

func wantInvalid(t *testing.T, what string, err error, parts ...string) {
	t.Helper()
	if !apierrors.IsInvalid(err) {
		t.Errorf("%s: %v, want it refused as invalid", what, err)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: the error has no %q: %v", what, part, err)
		}
	}
}

// testRules: the rule of a CRD uses a function of CEL's lists library that is new in 1.37.
func testRules(t *testing.T, highest *cluster.Server, lower []*cluster.Server) {
	const rule = "self.spec.words.includes('must')"
	crd := definition(t, "rules", rule)
	for _, s := range lower {
		wantInvalid(t, s.Name, create(t, s.Dynamic().Resource(definitions), crd), "x-kubernetes-validations[0].rule", "compilation failed", "undeclared reference to 'includes'")
	}
	must(t, create(t, highest.Dynamic().Resource(definitions), crd))
	things := schema.GroupVersionResource{Group: widgetGroup, Version: "v1", Resource: "rules"}
	for i, s := range append(lower, highest) {
		custom := s.Dynamic().Resource(things)
		thing := func(words string) *unstructured.Unstructured {
			return object(t, fmt.Sprintf(`{apiVersion: e2e.concord.dev/v1, kind: Kindrules, metadata: {name: thing-%d}, spec: {words: %s}}`, i, words))
		}
		wantInvalid(t, s.Name+": a custom resource that breaks the stored rule", create(t, custom, thing("[may]")), "failed rule: "+rule)
		if err := create(t, custom, thing("[may, must]")); err != nil {
			t.Errorf("%s: a custom resource that keeps the stored rule: %v", s.Name, err)
		}
		if err := label(t, s.Dynamic().Resource(definitions), crd.GetName()); err != nil {
			t.Errorf("%s: an update of the CRD that keeps the rule: %v", s.Name, err)
		}
	}
	for _, s := range lower {
		other := `[{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/x-kubernetes-validations/0/rule", "value": "self.spec.words.includes('other')"}]`
		err := patch(t, s.Dynamic().Resource(definitions), crd.GetName(), types.JSONPatchType, other)
		wantInvalid(t, s.Name+": another rule", err, "undeclared reference to 'includes'")
	}
}

// testPolicies: admission policies use the same function.
func testPolicies(t *testing.T, highest *cluster.Server, lower []*cluster.Server) {
	const match = `matchConstraints: {resourceRules: [{apiGroups: [e2e.concord.dev], apiVersions: ["*"], operations: [CREATE], resources: [nothing]}]}`
	validating := object(t, `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: includes}, spec: {`+match+`,
validations: [{expression: "object.spec.words.includes('must')"}]}}`)
	mutating := object(t, `{apiVersion: admissionregistration.k8s.io/v1beta1, kind: MutatingAdmissionPolicy, metadata: {name: includes}, spec: {`+match+`,
reinvocationPolicy: Never, mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{spec: Object.spec{must: object.spec.words.includes('must')}}"}}]}}`)
	for _, s := range lower {
		wantInvalid(t, s.Name, create(t, s.Dynamic().Resource(validations), validating), "spec.validations[0].expression", "compilation failed: ERROR: <input>:1:27: undeclared reference to 'includes'")
		wantInvalid(t, s.Name, create(t, s.Dynamic().Resource(mutations), mutating), "spec.mutations[0].applyConfiguration.expression", "undeclared reference to 'includes'")
	}
	must(t, create(t, highest.Dynamic().Resource(validations), validating))
	must(t, create(t, highest.Dynamic().Resource(mutations), mutating))
	for _, s := range lower {
		for _, gvr := range []schema.GroupVersionResource{validations, mutations} {
			if err := label(t, s.Dynamic().Resource(gvr), "includes"); err != nil {
				t.Errorf("%s: an update that keeps the expression: %v", s.Name, err)
			}
			more := `{"spec":{"matchConditions":[{"name":"c","expression":"[1, 2].indexOf(2) == 1"}]}}`
			if err := patch(t, s.Dynamic().Resource(gvr), "includes", types.MergePatchType, more); err != nil {
				t.Errorf("%s: an update that adds an older function: %v", s.Name, err)
			}
			newer := `{"spec":{"matchConditions":[{"name":"c","expression":"[1, 2].includes(2)"}]}}`
			err := patch(t, s.Dynamic().Resource(gvr), "includes", types.MergePatchType, newer)
			wantInvalid(t, s.Name, err, "spec.matchConditions[0].expression")
		}
	}
}

// testRuleCost: the validation that 1.37 has relaxed, that of the estimated cost of a CRD's rules.
func testRuleCost(t *testing.T, highest *cluster.Server, lower []*cluster.Server) {
	crd := definition(t, "costs", "self.spec.words.all(w, !self.metadata.name.contains(w))")
	for _, s := range lower {
		wantInvalid(t, s.Name, create(t, s.Dynamic().Resource(definitions), crd), "estimated rule cost exceeds budget", "CRDBoundedNameCost")
	}
	must(t, create(t, highest.Dynamic().Resource(definitions), crd))
	for _, s := range lower {
		if err := label(t, s.Dynamic().Resource(definitions), crd.GetName()); err != nil {
			t.Errorf("%s: an update that keeps the rule: %v", s.Name, err)
		}
		narrower := `[{"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/words/maxItems", "value": 9}]`
		err := patch(t, s.Dynamic().Resource(definitions), crd.GetName(), types.JSONPatchType, narrower)
		wantInvalid(t, s.Name+": another schema with the rule", err, "estimated rule cost exceeds budget")
	}
}

// testNewField: the field status.observedGeneration of CRDs, which is new in 1.35. A value is
// accepted if the release before the emulated one has the field, and a stored value stays.
func testNewField(t *testing.T, servers []*cluster.Server) {
	highest, at136, at135 := servers[0], servers[2], servers[3]
	crd := definition(t, "fields", "true")
	must(t, create(t, at135.Dynamic().Resource(definitions), crd))
	write := func(s *cluster.Server, observed, want int64) {
		t.Helper()
		status := fmt.Sprintf(`{"status":{"observedGeneration":%d}}`, observed)
		if err := patch(t, s.Dynamic().Resource(definitions), crd.GetName(), types.MergePatchType, status, "status"); err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		for _, reader := range servers {
			got, err := reader.Dynamic().Resource(definitions).Get(t.Context(), crd.GetName(), metav1.GetOptions{})
			if err != nil {
				t.Fatalf("%s: %v", reader.Name, err)
			}
			if value, _, _ := unstructured.NestedInt64(got.Object, "status", "observedGeneration"); value != want {
				t.Errorf("after %s wrote %d, %s reads %d, want %d", s.Name, observed, reader.Name, value, want)
			}
		}
	}
	write(at135, 1, 0)
	write(at136, 2, 2)
	write(at135, 3, 3)
	must(t, label(t, at135.Dynamic().Resource(definitions), crd.GetName()))
	write(highest, 4, 4)
	write(at135, 0, 0)
	write(at135, 5, 0)
}
