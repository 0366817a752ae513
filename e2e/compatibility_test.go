package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/concord-dev/concord/e2e/cluster"
)

// TestCompatibility: servers of one etcd that stand for several releases write only what
// each other's release understands, and live with what is stored already (KEP-4330,
// "Validation ratcheting", "CEL Environment Compatibility Versioning" and the new fields
// of "Integration tests"). One binary stands for all releases.
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

// definition returns a CRD of cluster-scoped things with a rule of their root.
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
		for _, again := range []func(error) bool{apierrors.IsNotFound, apierrors.IsServiceUnavailable, apierrors.IsTooManyRequests, apierrors.IsTimeout, apierrors.IsServerTimeout} {
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
			return nil // by the attempt that got no answer
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

// A function of the lists library that came with 1.37, in the rule of a CRD.
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

// The same function in policies.
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

// The validation that 1.37 relaxed: the estimated cost of the rules of a CRD.
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

// The field that came with 1.35: CRDs' status.observedGeneration. Data enters it where the
// release before the emulated one has it, and stays.
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
