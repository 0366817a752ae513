package builtin_test

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// samples holds one valid object of every persisted resource, with only the fields that
// must be given, in its newest version.
var samples = map[string]string{
	"namespaces":      `{apiVersion: v1, kind: Namespace, metadata: {name: sample}}`,
	"configmaps":      `{apiVersion: v1, kind: ConfigMap, metadata: {name: sample, namespace: default}, data: {a: b}}`,
	"secrets":         `{apiVersion: v1, kind: Secret, metadata: {name: sample, namespace: default}, stringData: {a: b}}`,
	"serviceaccounts": `{apiVersion: v1, kind: ServiceAccount, metadata: {name: sample, namespace: default}}`,
	"services":        `{apiVersion: v1, kind: Service, metadata: {name: sample, namespace: default}, spec: {ports: [{port: 443}]}}`,
	"endpointslices": `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: sample, namespace: default}, addressType: IPv4,
  endpoints: [{addresses: [10.0.0.1]}], ports: [{port: 8443}]}`,
	"events": `{apiVersion: v1, kind: Event, metadata: {name: sample, namespace: default}, type: Warning, reason: Sampled, message: "hello",
  involvedObject: {kind: Pod, name: p, namespace: default}, source: {component: sampler, host: h}}`,
	"leases":          `{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: sample, namespace: default}, spec: {holderIdentity: me, leaseDurationSeconds: 15}}`,
	"leasecandidates": `{apiVersion: coordination.k8s.io/v1beta1, kind: LeaseCandidate, metadata: {name: sample, namespace: default}, spec: {leaseName: l, binaryVersion: 1.37.0, emulationVersion: 1.36.0, strategy: OldestEmulationVersion}}`,
	"storageversions": `{apiVersion: internal.apiserver.k8s.io/v1alpha1, kind: StorageVersion, metadata: {name: sample.things}, spec: {},
  status: {commonEncodingVersion: sample/v1, storageVersions: [{apiServerID: s1, encodingVersion: sample/v1, decodableVersions: [sample/v1]}]}}`,
	"validatingwebhookconfigurations": `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: sample}, webhooks: [
  {name: a.example.com, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {service: {namespace: space, name: s}},
   rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]}]}`,
	"mutatingwebhookconfigurations": `{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: sample}, webhooks: [
  {name: a.example.com, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {url: "https://example.com/x"}}]}`,
	"validatingadmissionpolicies": `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: sample}, spec: {
  matchConstraints: {resourceRules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]}, validations: [{expression: "true"}]}}`,
	"validatingadmissionpolicybindings": `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, metadata: {name: sample}, spec: {
  policyName: sample, validationActions: [Deny], paramRef: {name: p, namespace: space, parameterNotFoundAction: Allow}, matchResources: {}}}`,
	"mutatingadmissionpolicies": `{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingAdmissionPolicy, metadata: {name: sample}, spec: {
  reinvocationPolicy: Never, paramKind: {apiVersion: v1, kind: ConfigMap},
  matchConstraints: {resourceRules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]},
  mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[JSONPatch{op: \"remove\", path: \"/spec\"}]"}}]}}`,
	"mutatingadmissionpolicybindings": `{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingAdmissionPolicyBinding, metadata: {name: sample}, spec: {policyName: sample}}`,
	"clustertrustbundles":             `{apiVersion: certificates.k8s.io/v1, kind: ClusterTrustBundle, metadata: {name: "example.com:signer:sample"}, spec: {signerName: example.com/signer, trustBundle: ""}}`,
	"ipaddresses":                     `{apiVersion: networking.k8s.io/v1, kind: IPAddress, metadata: {name: 192.168.1.1}, spec: {parentRef: {group: apps, resource: things, namespace: space, name: t}}}`,
	"servicecidrs":                    `{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: sample}, spec: {cidrs: [10.0.0.0/24, "2001:db8::/64"]}}`,
	"storageversionmigrations":        `{apiVersion: storagemigration.k8s.io/v1, kind: StorageVersionMigration, metadata: {name: sample}, spec: {resource: {group: apps, resource: things}}}`,
}

// sample returns a fresh sample of the resource.
func sample(t *testing.T, resource string) *unstructured.Unstructured {
	t.Helper()
	text, ok := samples[resource]
	if !ok {
		t.Fatalf("no sample of %s", resource)
	}
	obj := parse(t, text)
	if resource == "clustertrustbundles" {
		set(t, obj, certificate(t), "spec", "trustBundle")
	}
	return obj
}

func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &obj.Object); err != nil {
		t.Fatal(err)
	}
	return obj
}

func set(t *testing.T, obj *unstructured.Unstructured, value any, path ...string) {
	t.Helper()
	if err := unstructured.SetNestedField(obj.Object, value, path...); err != nil {
		t.Fatal(err)
	}
}

func unmarshal(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}
