package preflight

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// TestMissing: the functions and macros of a CEL expression that a release does not have are found,
// by the release in which k8s.io/apiserver introduced their library.
func TestMissing(t *testing.T) {
	for _, c := range []struct{ release, expression, want string }{
		{"1.36", `object.spec.names.includes("a")`, "includes"},
		{"1.37", `object.spec.names.includes("a")`, ""},
		{"1.36", `object.spec.names.all(n, n.size() > 0) && [1, 2].distinct().size() == 2`, ""},
		{"1.33", `[1, 2].distinct().size() == 2`, "distinct"},
		{"1.33", `lists.range(3).size() == 3`, "lists.range"},
		{"1.34", `lists.range(3).size() == 3`, ""},
		{"1.31", `object.spec.names.all(i, n, n.size() > i)`, "all with 3 arguments"},
		{"1.31", `object.spec.names.transformMap(i, n, n)`, "transformMap with 3 arguments"},
		{"1.32", `object.spec.names.transformMap(i, n, n)`, ""},
		{"1.31", `object.spec.names.all(n, n.startsWith("a"))`, ""},
		{"1.36", `nobody.has(this)`, ""},
		{"1.36", `is not CEL`, ""},
		{"1.36", `self.a.includes(1) ? self.b.includes(2) : semver("1.2.3").isGreaterThan(semver("1.2.2"))`, "includes"},
		{"1.32", `semver("1.2.3").isGreaterThan(semver("1.2.2"))`, "semver"}, // Quantities also have an isGreaterThan,
	} {
		r := rulesOf(version.MustParse(c.release), version.MustParse(c.release))
		if got := strings.Join(r.missing(c.expression), ", "); got != c.want {
			t.Errorf("%s lacks %q of %s, want %q", c.release, got, c.expression, c.want)
		}
	}
}

// TestRules: CEL expressions are found in all fields that hold some, and not in fields that only
// look like it. The name of a Service is checked for the releases that accept different names.
func TestRules(t *testing.T) {
	policies := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"}
	for _, c := range []struct {
		gvr     schema.GroupVersionResource
		release string
		object  string
		want    string
	}{
		{policies, "1.36", `spec: {validations: [{expression: 'true', messageExpression: 'string([1].includes(1))'}]}`, "includes"},
		{policies, "1.36", `spec: {variables: [{name: v, expression: '[1].includes(1)'}]}`, "includes"},
		{policies, "1.36", `spec: {validations: [{expression: 'true', message: '[1].includes(1)'}]}`, ""},
		{definitions, "1.36", `spec: {versions: [{schema: {openAPIV3Schema: {properties: {spec: {x-kubernetes-validations: [{rule: 'self.includes(1)'}]}}}}}]}`, "includes"},
		{definitions, "1.36", `spec: {versions: [{schema: {openAPIV3Schema: {properties: {rule: {default: {rule: 'self.includes(1)'}}}}}}]}`, ""},
		{services, "1.35", `metadata: {name: 1st}`, "begin with a letter in 1.35"},
		{services, "1.35", `metadata: {name: first}`, ""},
	} {
		var object map[string]any
		must(t, yaml.Unmarshal([]byte(c.object), &object))
		r := rulesOf(version.MustParse(c.release), version.MustParse(c.release))
		if got := strings.Join(r.of(c.gvr, object), ", "); !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%s of %s: %q, want %q", c.gvr.Resource, c.object, got, c.want)
		}
		if !slices.Contains(r.resources(), c.gvr) {
			t.Errorf("for %s nobody looks at %s", c.release, c.gvr.Resource)
		}
	}
	if all := rulesOf(version.MustParse("1.37"), version.MustParse("1.37")).resources(); len(all) > 0 {
		t.Errorf("with rules that do not differ %v are looked at", all)
	}
}

// TestWarnings: objects are read page by page. A resource that is not served needs no warning; a
// resource that the user may not read gets one.
func TestWarnings(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer := `{"apiVersion":"v1","kind":"List","items":[]}`
		switch {
		case strings.HasSuffix(r.URL.Path, "/services") && r.URL.Query().Get("continue") == "":
			answer = `{"apiVersion":"v1","kind":"ServiceList","metadata":{"continue":"more"},"items":[{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"a","name":"1st"}}]}`
		case strings.HasSuffix(r.URL.Path, "/services"):
			answer = `{"apiVersion":"v1","kind":"ServiceList","items":[{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"b","name":"2nd"}}]}`
		case strings.HasSuffix(r.URL.Path, "/deviceclasses"):
			w.WriteHeader(http.StatusForbidden)
			answer = `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Forbidden","code":403,"message":"nobody may"}`
		case strings.HasSuffix(r.URL.Path, "/mutatingadmissionpolicies"):
			w.WriteHeader(http.StatusNotFound)
			answer = `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"NotFound","code":404}`
		}
		_, _ = w.Write([]byte(answer)) // an error means that the client has gone
	}))
	defer server.Close()
	v := version.MustParse("1.35")
	objects, err := dynamic.NewForConfig(&rest.Config{Host: server.URL})
	must(t, err)
	world := &World{List: func(ctx context.Context, gvr schema.GroupVersionResource, visit func(*unstructured.Unstructured)) error {
		return listIn(ctx, objects, gvr, visit)
	}}
	all, unread := rulesOf(v, v).warnings(t.Context(), world)
	if len(all) != 2 || all[0].Object != "a/1st" || all[1].Object != "b/2nd" || all[0].Resource != "services" {
		t.Errorf("the warnings are %+v", all)
	}
	if unread == nil || !strings.Contains(unread.Error(), "deviceclasses.resource.k8s.io: nobody may") || strings.Contains(unread.Error(), "\n") {
		t.Errorf("not read: %v", unread)
	}
}
