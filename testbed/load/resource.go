package load

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// Resource is a resource whose objects clients write.
type Resource struct {
	schema.GroupVersionResource
	Kind string
	// Namespace is empty for resources without one.
	Namespace string
	// Fill sets the fields that the resource needs; one of them holds text, which changes with every write. Update
	// returns the merge patch for another text.
	Fill   func(fields map[string]any, text string)
	Update func(text string) map[string]any
}

// through returns a client of the resource at one server.
func (r Resource) through(e Endpoint) dynamic.ResourceInterface {
	if r.Namespace == "" {
		return e.Client.Resource(r.GroupVersionResource)
	}
	return e.Client.Resource(r.GroupVersionResource).Namespace(r.Namespace)
}

func (r Resource) object(name, write, text string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	r.Fill(u.Object, text)
	u.SetAPIVersion(r.GroupVersion().String())
	u.SetKind(r.Kind)
	u.SetName(name)
	u.SetNamespace(r.Namespace)
	u.SetAnnotations(map[string]string{WriteAnnotation: write})
	return u
}

func (r Resource) patch(write, text string) map[string]any {
	patch := r.Update(text)
	metadata, ok := patch["metadata"].(map[string]any)
	if !ok {
		metadata = map[string]any{}
	}
	metadata["annotations"] = map[string]any{WriteAnnotation: write}
	patch["metadata"] = metadata
	return patch
}

// Policies are MutatingAdmissionPolicies, which move from v1beta1 to v1 between the
// emulation of 1.36 and of 1.37.
func Policies() Resource {
	variable := func(text string) []any {
		return []any{map[string]any{"name": "text", "expression": fmt.Sprintf("%q", text)}}
	}
	return Resource{
		GroupVersionResource: schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingadmissionpolicies"},
		Kind:                 "MutatingAdmissionPolicy",
		Fill: func(fields map[string]any, text string) {
			fields["spec"] = map[string]any{
				"reinvocationPolicy": "Never",
				"failurePolicy":      "Ignore",
				"variables":          variable(text),
				"matchConstraints": map[string]any{"resourceRules": []any{map[string]any{
					"apiGroups": []any{"e2e.concord.dev"}, "apiVersions": []any{"*"}, "operations": []any{"CREATE"}, "resources": []any{"nothing"},
				}}},
				"mutations": []any{map[string]any{
					"patchType": "JSONPatch",
					"jsonPatch": map[string]any{"expression": `[JSONPatch{op: "remove", path: "/spec"}]`},
				}},
			}
		},
		Update: func(text string) map[string]any {
			return map[string]any{"spec": map[string]any{"variables": variable(text)}}
		},
	}
}

// Bundles returns ClusterTrustBundles with a certificate, in PEM. Their storage version changes from v1beta1 to v1
// when --min-compatibility-version rises above 1.36; emulating 1.37 alone does not change it. v1beta1 is served only
// if --runtime-config says so.
func Bundles(certificate string) Resource {
	labels := func(text string) map[string]any {
		return map[string]any{"text": strings.ReplaceAll(text, " ", "-")}
	}
	return Resource{
		GroupVersionResource: schema.GroupVersionResource{Group: "certificates.k8s.io", Version: "v1beta1", Resource: "clustertrustbundles"},
		Kind:                 "ClusterTrustBundle",
		Fill: func(fields map[string]any, text string) {
			fields["spec"] = map[string]any{"trustBundle": certificate}
			fields["metadata"] = map[string]any{"labels": labels(text)}
		},
		Update: func(text string) map[string]any {
			return map[string]any{"metadata": map[string]any{"labels": labels(text)}}
		},
	}
}

// Custom returns custom resources of any kind in a namespace, which have the string field spec.text.
func Custom(gvr schema.GroupVersionResource, kind, namespace string) Resource {
	return Resource{
		GroupVersionResource: gvr,
		Kind:                 kind,
		Namespace:            namespace,
		Fill: func(fields map[string]any, text string) {
			fields["spec"] = map[string]any{"text": text, "padding": strings.Repeat("x", 500)}
		},
		Update: func(text string) map[string]any { return map[string]any{"spec": map[string]any{"text": text}} },
	}
}

// ConfigMaps returns a resource whose encoding never changes.
func ConfigMaps(namespace string) Resource {
	return Resource{
		GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Kind:                 "ConfigMap",
		Namespace:            namespace,
		Fill:                 func(fields map[string]any, text string) { fields["data"] = map[string]any{"text": text} },
		Update:               func(text string) map[string]any { return map[string]any{"data": map[string]any{"text": text}} },
	}
}
