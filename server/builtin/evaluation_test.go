package builtin

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/cel/environment"
)

// TestStoredExpressionEvaluates: a policy that a server of a higher version has stored
// decides as written also where it could not be written. Policies are not enforced here;
// the library's evaluator is what would enforce them.
func TestStoredExpressionEvaluates(t *testing.T) {
	at := field.NewPath("spec")
	policy := &admissionv1.ValidatingAdmissionPolicy{Spec: admissionv1.ValidatingAdmissionPolicySpec{
		Validations: []admissionv1.Validation{{Expression: "object.spec.words.includes('must')"}},
	}}
	found := validatingExpressions(policy, policySpec{}.declared(), at)[:1]
	lower := newExpressions(utilversion.MajorMinor(1, 36))
	if errs := lower.checkPolicy(found, nil); len(errs) != 1 {
		t.Fatalf("a new policy: %v, want it refused", errs)
	}
	compiler, err := lower.policies()
	if err != nil {
		t.Fatal(err)
	}
	condition := compiler.CompileCondition([]plugincel.ExpressionAccessor{found[0].ExpressionAccessor}, found[0].declared, environment.StoredExpressions)
	for word, want := range map[string]bool{"must": true, "may": false} {
		object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"words": []any{word}}}}
		kind, resource := schema.GroupVersionKind{Version: "v1", Kind: "Thing"}, schema.GroupVersionResource{Version: "v1", Resource: "things"}
		record := admission.NewAttributesRecord(object, nil, kind, "", "a", resource, "", admission.Create, &metav1.CreateOptions{}, false, nil)
		versioned := &admission.VersionedAttributes{Attributes: record, VersionedKind: kind, VersionedObject: admission.NewLazyObject(object)}
		request := plugincel.CreateAdmissionRequest(record, metav1.GroupVersionResource{Version: "v1", Resource: "things"}, metav1.GroupVersionKind{Version: "v1", Kind: "Thing"})
		bindings := plugincel.OptionalVariableBindings{Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer()}
		results, _, err := condition.ForInput(t.Context(), versioned, request, bindings, nil, celconfig.RuntimeCELCostBudget)
		if err != nil || results[0].Error != nil || results[0].EvalResult.Value() != want {
			t.Errorf("an object with %q: %+v, %v, want %v", word, results, err, want)
		}
	}
}
