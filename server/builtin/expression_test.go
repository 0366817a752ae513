package builtin_test

import (
	"encoding/json"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// roles are all places that hold expressions: a merge patch on a sample, with a boolean
// expression for BOOL, and the field that holds it.
var roles = []change{
	{"validatingadmissionpolicies", `{spec: {validations: [{expression: "BOOL"}]}}`, "spec.validations[0].expression"},
	{"validatingadmissionpolicies", `{spec: {validations: [{expression: "true", messageExpression: "string(BOOL)"}]}}`, "spec.validations[0].messageExpression"},
	{"validatingadmissionpolicies", `{spec: {auditAnnotations: [{key: k, valueExpression: "string(BOOL)"}]}}`, "spec.auditAnnotations[0].valueExpression"},
	{"validatingadmissionpolicies", `{spec: {variables: [{name: v, expression: "BOOL"}]}}`, "spec.variables[0].expression"},
	{"validatingadmissionpolicies", `{spec: {matchConditions: [{name: c, expression: "BOOL"}]}}`, "spec.matchConditions[0].expression"},
	{"mutatingadmissionpolicies", `{spec: {mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/x', value: BOOL}]"}}]}}`, "spec.mutations[0].jsonPatch.expression"},
	{"mutatingadmissionpolicies", `{spec: {mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{spec: Object.spec{x: BOOL}}"}}]}}`, "spec.mutations[0].applyConfiguration.expression"},
	{"mutatingadmissionpolicies", `{spec: {variables: [{name: v, expression: "BOOL"}]}}`, "spec.variables[0].expression"},
	{"mutatingadmissionpolicies", `{spec: {matchConditions: [{name: c, expression: "BOOL"}]}}`, "spec.matchConditions[0].expression"},
	{"validatingwebhookconfigurations", `{webhooks: [{name: a.b.c, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {url: "https://x"}, matchConditions: [{name: c, expression: "BOOL"}]}]}`, "webhooks[0].matchConditions[0].expression"},
	{"mutatingwebhookconfigurations", `{webhooks: [{name: a.b.c, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {url: "https://x"}, matchConditions: [{name: c, expression: "BOOL"}]}]}`, "webhooks[0].matchConditions[0].expression"},
}

// The lists library got the function at 1.37.
const (
	newIn137 = "[1, 2].includes(1)"
	since134 = "[1, 2].indexOf(1) == 0"
)

// TestNewFunction: an expression that is new to its object uses only what the minimum
// compatibility version knows; one that a server with a higher version has stored stays
// (KEP-4330, "CEL Environment Compatibility Versioning").
func TestNewFunction(t *testing.T) {
	etcd := startEtcd(t)
	lower := startServer(t, newPlan(t, "1.37", "1.36", everything), etcd)
	higher := startServer(t, newPlan(t, "1.37", "1.37", everything), etcd)
	for _, role := range roles {
		t.Run(role.resource+" "+role.field, func(t *testing.T) {
			with := func(expression string) *unstructured.Unstructured {
				return patched(t, sample(t, role.resource), strings.ReplaceAll(role.patch, "BOOL", expression))
			}
			obj := with(newIn137)
			gvr := obj.GroupVersionKind().GroupVersion().WithResource(role.resource)
			at136, at137 := lower.in(gvr, obj), higher.in(gvr, obj)

			_, err := at136.Create(t.Context(), obj, metav1.CreateOptions{})
			expectField(t, err, role.field)
			created, err := at137.Create(t.Context(), obj, metav1.CreateOptions{})
			expectField(t, err, "")
			defer func() { _ = at137.Delete(t.Context(), obj.GetName(), metav1.DeleteOptions{}) }()

			labelled := created.DeepCopy()
			labelled.SetLabels(map[string]string{"a": "b"})
			stored, err := at136.Update(t.Context(), labelled, metav1.UpdateOptions{})
			expectField(t, err, "")
			_, err = at136.Patch(t.Context(), obj.GetName(), types.MergePatchType, other(t, stored), metav1.PatchOptions{})
			expectField(t, err, "")
			_, err = at136.Patch(t.Context(), obj.GetName(), types.MergePatchType, body(t, with(newIn137+" || false")), metav1.PatchOptions{})
			expectField(t, err, role.field)
			_, err = at136.Patch(t.Context(), obj.GetName(), types.MergePatchType, body(t, with(since134)), metav1.PatchOptions{})
			expectField(t, err, "")
			_, err = at136.Patch(t.Context(), obj.GetName(), types.MergePatchType, body(t, with(newIn137)), metav1.PatchOptions{})
			expectField(t, err, role.field)
			_, err = at137.Patch(t.Context(), obj.GetName(), types.MergePatchType, body(t, with("[1, 2].unknown(1)")), metav1.PatchOptions{})
			expectField(t, err, role.field)
		})
	}
}

// other returns a patch that adds an expression which every release knows.
func other(t *testing.T, stored *unstructured.Unstructured) []byte {
	t.Helper()
	conditions := []any{map[string]any{"name": "other", "expression": since134}}
	if hooks, found, _ := unstructured.NestedSlice(stored.Object, "webhooks"); found {
		hook := hooks[0].(map[string]any)
		hook["matchConditions"] = append(conditions, hook["matchConditions"].([]any)...)
		return marshal(t, map[string]any{"webhooks": hooks})
	}
	old, _, _ := unstructured.NestedSlice(stored.Object, "spec", "matchConditions")
	return marshal(t, map[string]any{"spec": map[string]any{"matchConditions": append(conditions, old...)}})
}

// body returns what a merge patch makes of the object's spec.
func body(t *testing.T, obj *unstructured.Unstructured) []byte {
	t.Helper()
	delete(obj.Object, "metadata")
	return marshal(t, obj.Object)
}

func marshal(t *testing.T, value any) []byte {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestStoredExpressionElsewhere: only the very use that is stored stays; the same text in
// another role is new, and a variable that params are taken from shows no longer compiles.
func TestStoredExpressionElsewhere(t *testing.T) {
	etcd := startEtcd(t)
	lower := startServer(t, newPlan(t, "1.37", "1.36", everything), etcd)
	higher := startServer(t, newPlan(t, "1.37", "1.37", everything), etcd)
	obj := patched(t, sample(t, "validatingadmissionpolicies"), `{spec: {paramKind: {apiVersion: v1, kind: ConfigMap},
  validations: [{expression: "`+newIn137+`"}, {expression: "params.x == 1"}]}}`)
	gvr := obj.GroupVersionKind().GroupVersion().WithResource("validatingadmissionpolicies")
	if _, err := higher.in(gvr, obj).Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ patch, field string }{
		{`{spec: {validations: [{expression: "params.x == 1"}, {expression: "` + newIn137 + `"}]}}`, ""},
		{`{spec: {matchConditions: [{name: c, expression: "` + newIn137 + `"}]}}`, "spec.matchConditions[0].expression"},
		{`{spec: {paramKind: null}}`, "spec.validations[0].expression"},
	} {
		_, err := lower.in(gvr, obj).Patch(t.Context(), "sample", types.MergePatchType, toJSON(t, step.patch), metav1.PatchOptions{})
		expectField(t, err, step.field)
	}
}

// TestCompilationError: the words are those that users of kube-apiserver know.
func TestCompilationError(t *testing.T) {
	s := newServer(t)
	obj := patched(t, sample(t, "validatingadmissionpolicies"), `{spec: {validations: [{expression: "x > 1"}]}}`)
	gvr := obj.GroupVersionKind().GroupVersion().WithResource("validatingadmissionpolicies")
	_, err := s.in(gvr, obj).Create(t.Context(), obj, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Fatalf("got %v, want an invalid object", err)
	}
	want := `ValidatingAdmissionPolicy.admissionregistration.k8s.io "sample" is invalid: spec.validations[0].expression: Invalid value: "x > 1": ` +
		"compilation failed: ERROR: <input>:1:1: undeclared reference to 'x' (in container '')\n | x > 1\n | ^"
	if err.Error() != want {
		t.Errorf("the error is\n%s\nwant\n%s", err, want)
	}
}
