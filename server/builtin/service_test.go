package builtin_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// TestServiceChanges asserts that clients which know one cluster IP, or change the type and
// nothing else, as kubectl apply and patch do, are understood, and what stands by default.
func TestServiceChanges(t *testing.T) {
	s := newServer(t)
	services := schema.GroupVersionResource{Version: "v1", Resource: "services"}
	for name, tc := range map[string]struct{ created, patch, want, without string }{
		"another address":   {`{spec: {clusterIP: 10.0.0.1}}`, `{spec: {clusterIP: 10.0.0.2}}`, `"clusterIPs":["10.0.0.2"]`, "10.0.0.1"},
		"no address":        {`{spec: {clusterIP: 10.0.0.1}}`, `{spec: {clusterIP: null}}`, `"type":"ClusterIP"`, "clusterIP"},
		"no list":           {`{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1, "fd00::1"]}}`, `{spec: {clusterIPs: null}}`, `"clusterIPs":["10.0.0.1","fd00::1"]`, "none"},
		"no head":           {`{}`, `{spec: {clusterIP: None}}`, `"clusterIPs":["None"]`, "none"},
		"to a name":         {`{spec: {clusterIP: 10.0.0.1}}`, `{spec: {type: ExternalName, externalName: example.com}}`, `"externalName":"example.com"`, "clusterIP"},
		"from a name":       {`{spec: {type: ExternalName, externalName: example.com}}`, `{spec: {type: ClusterIP, externalName: null, clusterIP: 10.0.0.1}}`, `"clusterIPs":["10.0.0.1"]`, "externalName"},
		"to ports of nodes": {`{}`, `{spec: {type: NodePort}}`, `"externalTrafficPolicy":"Cluster"`, "nodePort"},
		"from them":         {`{spec: {type: NodePort, ports: [{port: 1, nodePort: 30000}]}}`, `{spec: {type: ClusterIP}}`, `"type":"ClusterIP"`, "30000"},
		"no traffic policy": {`{spec: {type: NodePort}}`, `{spec: {type: ClusterIP}}`, `"type":"ClusterIP"`, "externalTrafficPolicy"},
		"to a balancer":     {`{}`, `{spec: {type: LoadBalancer}}`, `"allocateLoadBalancerNodePorts":true`, "nodePort"},
		"from it":           {`{spec: {type: LoadBalancer}}`, `{spec: {type: ClusterIP}}`, `"type":"ClusterIP"`, "allocate"},
		"affinity":          {`{}`, `{spec: {sessionAffinity: ClientIP}}`, `"timeoutSeconds":10800`, "none"},
		"no affinity":       {`{spec: {sessionAffinity: ClientIP}}`, `{spec: {sessionAffinity: None}}`, `"sessionAffinity":"None"`, "10800"},
	} {
		t.Run(name, func(t *testing.T) {
			obj := patched(t, sample(t, "services"), tc.created)
			obj.SetName(strings.ReplaceAll(name, " ", "-"))
			// By PUT, which makes what is not there.
			if _, err := s.in(services, obj).Update(t.Context(), obj, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			got, err := s.in(services, obj).Patch(t.Context(), obj.GetName(), types.MergePatchType, toJSON(t, tc.patch), metav1.PatchOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if text := content(t, got); !strings.Contains(text, tc.want) || strings.Contains(text, tc.without) {
				t.Errorf("want %s and no %s in %s", tc.want, tc.without, text)
			}
		})
	}
}

// TestEndpointSliceGeneration asserts that readers can tell a changed EndpointSlice.
func TestEndpointSliceGeneration(t *testing.T) {
	s := newServer(t)
	obj := s.create(t, "endpointslices", sample(t, "endpointslices"))
	in := s.in(obj.GroupVersionKind().GroupVersion().WithResource("endpointslices"), obj)
	for patch, want := range map[string]int64{`{metadata: {annotations: {a: b}}}`: 1, `{ports: [{port: 8444}]}`: 2} {
		got, err := in.Patch(t.Context(), obj.GetName(), types.MergePatchType, toJSON(t, patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil || got.GetGeneration() != want {
			t.Errorf("%s: generation %d, %v, want %d", patch, got.GetGeneration(), err, want)
		}
	}
}
