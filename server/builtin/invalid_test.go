package builtin_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// change is a merge patch on a sample of the resource, and the field that is refused.
type change struct {
	resource, patch string
	field           string // of one of the causes; "" for accepted
}

const long = `"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"`

var invalid = []change{
	{"namespaces", `{metadata: {name: Bad_Name}}`, "metadata.name"},
	{"namespaces", `{metadata: {name: a.b}}`, "metadata.name"},
	{"namespaces", `{spec: {finalizers: [unknown]}}`, "spec.finalizers[0]"},
	{"namespaces", `{metadata: {labels: {"-": x}}}`, "metadata.labels"},
	{"configmaps", `{metadata: {name: Bad_Name}}`, "metadata.name"},
	{"configmaps", `{metadata: {name: a.b}}`, ""},
	{"configmaps", `{data: {"a/b": x}}`, "data[a/b]"},
	{"configmaps", `{binaryData: {a: ""}}`, "data[a]"},
	{"secrets", `{data: {"a b": ""}}`, "data[a b]"},
	{"secrets", `{type: kubernetes.io/tls}`, "data[tls.crt]"},
	{"secrets", `{type: kubernetes.io/dockerconfigjson, stringData: {".dockerconfigjson": "{"}}`, "data[.dockerconfigjson]"},
	{"secrets", `{type: kubernetes.io/basic-auth}`, "data[username]"},
	{"secrets", `{type: kubernetes.io/service-account-token}`, "metadata.annotations[kubernetes.io/service-account.name]"},
	{"serviceaccounts", `{metadata: {name: Bad_Name}}`, "metadata.name"},
	{"events", `{involvedObject: {namespace: other}}`, "involvedObject.namespace"},
	{"events", `{eventTime: "2030-01-01T00:00:00.000000Z"}`, "reportingController"},
	{"leases", `{spec: {leaseDurationSeconds: 0}}`, "spec.leaseDurationSeconds"},
	{"leases", `{spec: {leaseTransitions: -1}}`, "spec.leaseTransitions"},
	{"leases", `{spec: {preferredHolder: x}}`, "spec.preferredHolder"},
	{"leases", `{spec: {strategy: Unknown}}`, "spec.strategy"},
	{"leases", `{spec: {strategy: example.com/mine, preferredHolder: x}}`, ""},
	{"leasecandidates", `{spec: {leaseName: ""}}`, "spec.leaseName"},
	{"leasecandidates", `{spec: {binaryVersion: 1.35.0}}`, "spec.binaryVersion"},
	{"leasecandidates", `{spec: {emulationVersion: ""}}`, "spec.emulationVersion"},
	{"storageversions", `{metadata: {name: things}}`, "metadata.name"},
	{"storageversions", `{metadata: {name: group.}}`, "metadata.name"},
	{"storageversions", `{status: {storageVersions: [{apiServerID: s1, encodingVersion: sample/v1, decodableVersions: [sample/v2]}]}}`, "status.storageVersions"},
	{"storageversions", `{status: {storageVersions: [{apiServerID: s1, encodingVersion: sample/v1, decodableVersions: [sample/v1], servedVersions: [sample/v2]}]}}`, "status.storageVersions"},
	{"storageversions", `{status: {storageVersions: [{apiServerID: s1, encodingVersion: sample/v1, decodableVersions: [sample/v1]}, {apiServerID: s1, encodingVersion: sample/v1, decodableVersions: [sample/v1]}]}}`, "status.storageVersions"},
	{"storageversions", `{status: {commonEncodingVersion: sample/v2}}`, "status.commonEncodingVersion"},
	{"storageversions", `{status: {commonEncodingVersion: null}}`, "status.commonEncodingVersion"},
	{"storageversions", `{status: {storageVersions: []}}`, "status.commonEncodingVersion"},
	{"storageversions", `{status: {conditions: [{type: AllEncodingVersionsEqual, status: Maybe, reason: R}]}}`, "status.conditions[0].status"},
	{"validatingwebhookconfigurations", `{webhooks: [{name: short, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {url: "https://x"}}]}`, "webhooks[0].name"},
	{"validatingwebhookconfigurations", `{webhooks: [{name: a.b.c, sideEffects: None, clientConfig: {url: "https://x"}}]}`, "webhooks[0].admissionReviewVersions"},
	{"validatingwebhookconfigurations", `{webhooks: [{name: a.b.c, admissionReviewVersions: [v7], sideEffects: None, clientConfig: {url: "https://x"}}]}`, "webhooks[0].admissionReviewVersions"},
	{"validatingwebhookconfigurations", `{webhooks: [{name: a.b.c, admissionReviewVersions: [v1], sideEffects: Some, clientConfig: {url: "https://x"}}]}`, "webhooks[0].sideEffects"},
	{"validatingwebhookconfigurations", `{webhooks: [{name: a.b.c, admissionReviewVersions: [v1], sideEffects: None, timeoutSeconds: 31, clientConfig: {url: "https://x"}}]}`, "webhooks[0].timeoutSeconds"},
	{"validatingwebhookconfigurations", `{webhooks: [{name: a.b.c, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {}}]}`, "webhooks[0].clientConfig"},
	{"mutatingwebhookconfigurations", `{webhooks: [{name: a.b.c, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {url: "http://x"}}]}`, "webhooks[0].clientConfig.url"},
	{"mutatingwebhookconfigurations", `{webhooks: [{name: a.b.c, admissionReviewVersions: [v1], sideEffects: None, reinvocationPolicy: Often, clientConfig: {url: "https://x"}}]}`, "webhooks[0].reinvocationPolicy"},
	{"mutatingwebhookconfigurations", `{webhooks: [{name: a.b.c, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {url: "https://x"}, rules: [{operations: ["*", CREATE], apiGroups: [""], apiVersions: [v1], resources: [x]}]}]}`, "webhooks[0].rules[0].operations"},
	{"mutatingwebhookconfigurations", `{webhooks: [{name: a.b.c, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {url: "https://x"}, rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [""], resources: ["*", x]}]}]}`, "webhooks[0].rules[0].resources[1]"},
	{"validatingwebhookconfigurations", `{webhooks: [{name: a.b.c, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {url: "https://x"}, matchConditions: [{name: a, expression: "x"}]}]}`, "webhooks[0].matchConditions[0].expression"},
	{"validatingwebhookconfigurations", `{webhooks: [{name: a.b.c, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {url: "https://x"}, matchConditions: [{name: a, expression: "variables.a == 1"}]}]}`, "webhooks[0].matchConditions[0].expression"},
	{"validatingwebhookconfigurations", `{webhooks: [{name: a.b.c, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {url: "https://x"}, matchConditions: [{name: a, expression: "params == 1"}]}]}`, "webhooks[0].matchConditions[0].expression"},
	{"mutatingwebhookconfigurations", `{webhooks: [{name: a.b.c, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {url: "https://x"}, matchConditions: [{name: a, expression: "request.name"}]}]}`, "webhooks[0].matchConditions[0].expression"},
	{"mutatingwebhookconfigurations", `{webhooks: [{name: a.b.c, admissionReviewVersions: [v1], sideEffects: None, clientConfig: {url: "https://x"}, matchConditions: [{name: a, expression: "object.x == request.name && authorizer.requestResource.check('get').allowed()"}]}]}`, ""},
	{"validatingadmissionpolicies", `{spec: {matchConstraints: null}}`, "spec.matchConstraints"},
	{"validatingadmissionpolicies", `{spec: {matchConstraints: {resourceRules: []}}}`, "spec.matchConstraints.resourceRules"},
	{"validatingadmissionpolicies", `{spec: {validations: []}}`, "spec.validations"},
	{"validatingadmissionpolicies", `{spec: {validations: [], auditAnnotations: [{key: k, valueExpression: "string(object)"}]}}`, ""},
	{"validatingadmissionpolicies", `{spec: {validations: [{expression: " "}]}}`, "spec.validations[0].expression"},
	{"validatingadmissionpolicies", `{spec: {validations: [{expression: "x", reason: Because}]}}`, "spec.validations[0].reason"},
	{"validatingadmissionpolicies", `{spec: {failurePolicy: Shrug}}`, "spec.failurePolicy"},
	{"validatingadmissionpolicies", `{spec: {auditAnnotations: [{key: "a b", valueExpression: x}]}}`, "spec.auditAnnotations[0].key"},
	{"validatingadmissionpolicies", `{spec: {variables: [{name: 1x, expression: x}]}}`, "spec.variables[0].name"},
	{"validatingadmissionpolicies", `{spec: {matchConditions: [{name: a, expression: x}, {name: a, expression: x}]}}`, "spec.matchConditions[1].name"},
	{"validatingadmissionpolicies", `{spec: {paramKind: {apiVersion: v1}}}`, "spec.paramKind.kind"},
	{"validatingadmissionpolicies", `{spec: {validations: [{expression: "params.x"}]}}`, "spec.validations[0].expression"},
	{"validatingadmissionpolicies", `{spec: {paramKind: {apiVersion: v1, kind: ConfigMap}, validations: [{expression: "params.x"}]}}`, "spec.validations[0].expression"},
	{"validatingadmissionpolicies", `{spec: {paramKind: {apiVersion: v1, kind: ConfigMap}, validations: [{expression: "params.x == 1"}]}}`, ""},
	{"validatingadmissionpolicies", `{spec: {validations: [{expression: "1"}]}}`, "spec.validations[0].expression"},
	{"validatingadmissionpolicies", `{spec: {validations: [{expression: "request.nothing == oldObject"}]}}`, "spec.validations[0].expression"},
	{"validatingadmissionpolicies", `{spec: {validations: [{expression: "request.name == oldObject.x && namespaceObject.metadata.name == ''"}]}}`, ""},
	{"validatingadmissionpolicies", `{spec: {validations: [{expression: "true", messageExpression: "1"}]}}`, "spec.validations[0].messageExpression"},
	{"validatingadmissionpolicies", `{spec: {validations: [{expression: "true", messageExpression: "string(authorizer.path('/x').check('get').allowed())"}]}}`, "spec.validations[0].messageExpression"},
	{"validatingadmissionpolicies", `{spec: {validations: [{expression: "authorizer.path('/x').check('get').allowed()", messageExpression: "string(object.x)"}]}}`, ""},
	{"validatingadmissionpolicies", `{spec: {validations: [{expression: "has(Object{}.x)"}]}}`, "spec.validations[0].expression"},
	{"validatingadmissionpolicies", `{spec: {auditAnnotations: [{key: k, valueExpression: "1"}]}}`, "spec.auditAnnotations[0].valueExpression"},
	{"validatingadmissionpolicies", `{spec: {auditAnnotations: [{key: k, valueExpression: "null"}]}}`, ""},
	{"validatingadmissionpolicies", `{spec: {variables: [{name: a, expression: "x"}]}}`, "spec.variables[0].expression"},
	{"validatingadmissionpolicies", `{spec: {variables: [{name: a, expression: "1"}, {name: b, expression: "variables.a + 1"}], validations: [{expression: "variables.b == 2"}]}}`, ""},
	{"validatingadmissionpolicies", `{spec: {variables: [{name: a, expression: "variables.b"}, {name: b, expression: "1"}]}}`, "spec.variables[0].expression"},
	{"validatingadmissionpolicies", `{spec: {variables: [{name: a, expression: "1"}], validations: [{expression: "variables.b == 2"}]}}`, "spec.validations[0].expression"},
	{"validatingadmissionpolicies", `{spec: {validations: [{expression: "variables.a == 1"}]}}`, "spec.validations[0].expression"},
	{"validatingadmissionpolicies", `{spec: {variables: [{name: a, expression: "'s'"}], matchConditions: [{name: a, expression: "variables.a"}]}}`, "spec.matchConditions[0].expression"},
	{"validatingadmissionpolicybindings", `{spec: {policyName: ""}}`, "spec.policyName"},
	{"validatingadmissionpolicybindings", `{spec: {validationActions: []}}`, "spec.validationActions"},
	{"validatingadmissionpolicybindings", `{spec: {validationActions: [Deny, Warn]}}`, "spec.validationActions"},
	{"validatingadmissionpolicybindings", `{spec: {paramRef: {name: "", parameterNotFoundAction: Deny}}}`, "spec.paramRef"},
	{"validatingadmissionpolicybindings", `{spec: {paramRef: {name: a, parameterNotFoundAction: null}}}`, "spec.paramRef.parameterNotFoundAction"},
	{"validatingadmissionpolicybindings", `{spec: {matchResources: {matchPolicy: Roughly}}}`, "spec.matchResources.matchPolicy"},
	{"mutatingadmissionpolicies", `{spec: {reinvocationPolicy: ""}}`, "spec.reinvocationPolicy"},
	{"mutatingadmissionpolicies", `{spec: {mutations: []}}`, "spec.mutations"},
	{"mutatingadmissionpolicies", `{spec: {mutations: [{patchType: JSONPatch}]}}`, "spec.mutations[0].jsonPatch"},
	{"mutatingadmissionpolicies", `{spec: {mutations: [{patchType: ApplyConfiguration, jsonPatch: {expression: x}, applyConfiguration: {expression: x}}]}}`, "spec.mutations[0].jsonPatch"},
	{"mutatingadmissionpolicies", `{spec: {mutations: [{patchType: Rewrite}]}}`, "spec.mutations[0].patchType"},
	{"mutatingadmissionpolicies", `{spec: {matchConstraints: {namespaceSelector: {matchExpressions: [{key: a, operator: Like}]}}}}`, "spec.matchConstraints.namespaceSelector.matchExpressions[0].operator"},
	{"mutatingadmissionpolicies", `{spec: {mutations: [{patchType: JSONPatch, jsonPatch: {expression: "Object{}"}}]}}`, "spec.mutations[0].jsonPatch.expression"},
	{"mutatingadmissionpolicies", `{spec: {mutations: [{patchType: JSONPatch, jsonPatch: {expression: "[]"}}]}}`, "spec.mutations[0].jsonPatch.expression"},
	{"mutatingadmissionpolicies", `{spec: {mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "params.x"}}]}}`, "spec.mutations[0].applyConfiguration.expression"},
	{"mutatingadmissionpolicies", `{spec: {variables: [{name: a, expression: "params.x"}], mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{spec: Object.spec{x: string(variables.a)}}"}}]}}`, ""},
	{"mutatingadmissionpolicies", `{spec: {paramKind: null, variables: [{name: a, expression: "params.x"}]}}`, "spec.variables[0].expression"},
	{"mutatingadmissionpolicies", `{spec: {matchConditions: [{name: a, expression: "'s'"}]}}`, "spec.matchConditions[0].expression"},
	{"mutatingadmissionpolicybindings", `{spec: {policyName: Bad_Name}}`, "spec.policyName"},
	{"clustertrustbundles", `{metadata: {name: sample}}`, "metadata.name"},
	{"clustertrustbundles", `{spec: {signerName: ""}}`, "metadata.name"},
	{"clustertrustbundles", `{spec: {trustBundle: ""}}`, "spec.trustBundle"},
	{"clustertrustbundles", `{spec: {trustBundle: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}}`, "spec.trustBundle"},
	{"ipaddresses", `{metadata: {name: sample}}`, "metadata.name"},
	{"ipaddresses", `{metadata: {name: "2001:0db8::1"}}`, "metadata.name"},
	{"ipaddresses", `{spec: {parentRef: null}}`, "spec.parentRef"},
	{"ipaddresses", `{spec: {parentRef: {name: ""}}}`, "spec.parentRef.name"},
	{"services", `{metadata: {name: "1st"}}`, "metadata.name"},
	{"services", `{spec: {ports: []}}`, "spec.ports"},
	{"services", `{spec: {clusterIP: None, ports: []}}`, ""},
	{"services", `{spec: {ports: [{port: 70000}]}}`, "spec.ports[0].port"},
	{"services", `{spec: {ports: [{port: 1}, {port: 2, name: two}]}}`, "spec.ports[0].name"},
	{"services", `{spec: {ports: [{port: 1, name: a}, {port: 2, name: a}]}}`, "spec.ports[1].name"},
	{"services", `{spec: {ports: [{port: 1, protocol: ICMP}]}}`, "spec.ports[0].protocol"},
	{"services", `{spec: {ports: [{port: 1, targetPort: "not a name"}]}}`, "spec.ports[0].targetPort"},
	{"services", `{spec: {clusterIP: nowhere}}`, "spec.clusterIPs[0]"},
	{"services", `{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.2]}}`, "spec.clusterIPs"},
	{"services", `{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1, 10.0.0.2]}}`, "spec.clusterIPs[1]"},
	{"services", `{spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1, "fd00::1"]}}`, ""},
	{"services", `{spec: {clusterIPs: [10.0.0.1]}}`, "spec.clusterIPs"},
	{"services", `{spec: {ports: [{port: 1, name: a}, {port: 1, name: b}]}}`, "spec.ports[1]"},
	{"services", `{spec: {ports: [{port: 1, name: a}, {port: 1, name: b, protocol: UDP}]}}`, ""},
	{"services", `{spec: {ports: [{port: 1, nodePort: 30000}]}}`, "spec.ports[0].nodePort"},
	{"services", `{spec: {type: NodePort, ports: [{port: 1, nodePort: -1}]}}`, "spec.ports[0].nodePort"},
	{"services", `{spec: {type: NodePort, ports: [{port: 1, nodePort: 30000}]}}`, ""},
	{"services", `{spec: {internalTrafficPolicy: Any}}`, "spec.internalTrafficPolicy"},
	{"services", `{spec: {type: NodePort, externalTrafficPolicy: Any}}`, "spec.externalTrafficPolicy"},
	{"services", `{spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 86401}}}}`, "spec.sessionAffinityConfig.clientIP.timeoutSeconds"},
	{"services", `{spec: {type: Any}}`, "spec.type"},
	{"services", `{spec: {sessionAffinity: Any}}`, "spec.sessionAffinity"},
	{"services", `{spec: {selector: {"-": x}}}`, "spec.selector"},
	{"services", `{spec: {type: ExternalName}}`, "spec.externalName"},
	{"services", `{spec: {type: ExternalName, externalName: localhost, clusterIP: 10.0.0.1}}`, "spec.clusterIP"},
	{"services", `{spec: {type: ExternalName, externalName: api.example.com, ports: []}}`, ""},
	{"endpointslices", `{addressType: Any}`, "addressType"},
	{"endpointslices", `{endpoints: [{addresses: []}]}`, "endpoints[0].addresses"},
	{"endpointslices", `{endpoints: [{addresses: ["fd00::1"]}]}`, "endpoints[0].addresses[0]"},
	{"endpointslices", `{addressType: FQDN, endpoints: [{addresses: ["Bad Name"]}]}`, "endpoints[0].addresses[0]"},
	{"endpointslices", `{ports: [{port: 1}, {port: 2}]}`, "ports[1].name"},
	{"endpointslices", `{ports: [{port: 0}]}`, "ports[0].port"},
	{"endpointslices", `{ports: [{port: 1, name: "Bad Name"}]}`, "ports[0].name"},
	{"endpointslices", `{ports: [{port: 1, protocol: ICMP}]}`, "ports[0].protocol"},
	{"servicecidrs", `{spec: {cidrs: []}}`, "spec.cidrs"},
	{"servicecidrs", `{spec: {cidrs: [10.0.0.1/24]}}`, "spec.cidrs[0]"},
	{"servicecidrs", `{spec: {cidrs: [10.0.0.0/24, 10.1.0.0/24]}}`, "spec.cidrs"},
	{"storageversionmigrations", `{spec: {resource: {resource: ""}}}`, "spec.resource.resource"},
	{"storageversionmigrations", `{metadata: {name: ` + long + `}}`, ""},
}

func TestInvalidObjects(t *testing.T) {
	s := startServer(t, newPlan(t, "1.37", "1.36", everything), startEtcd(t), coordination)
	for _, c := range invalid {
		t.Run(c.resource+" "+c.patch, func(t *testing.T) {
			obj := patched(t, sample(t, c.resource), c.patch)
			gvr := obj.GroupVersionKind().GroupVersion().WithResource(c.resource)
			_, err := s.in(gvr, obj).Create(t.Context(), obj, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			expectField(t, err, c.field)
		})
	}
}

// update changes an object that was created as in sample.
var invalidUpdates = []change{
	{"configmaps", `{metadata: {finalizers: ["a b"]}}`, "metadata.finalizers"},
	{"secrets", `{type: other}`, "type"},
	{"leasecandidates", `{spec: {leaseName: other}}`, "spec.leaseName"},
	{"clustertrustbundles", `{spec: {signerName: example.com/other}}`, "spec.signerName"},
	{"ipaddresses", `{spec: {parentRef: {name: other}}}`, "spec.parentRef"},
	{"servicecidrs", `{spec: {cidrs: [10.0.0.0/16]}}`, "spec.cidrs"},
	{"endpointslices", `{addressType: FQDN}`, "addressType"},
	{"services", `{spec: {ports: []}}`, "spec.ports"},
	{"storageversionmigrations", `{spec: {resource: {resource: other}}}`, "spec"},
	{"storageversions", `{metadata: {labels: {a: b}}}`, ""},
	{"validatingadmissionpolicies", `{spec: {validations: []}}`, "spec.validations"},
	{"namespaces", `{metadata: {labels: {a: b}}}`, ""},
}

func TestInvalidUpdates(t *testing.T) {
	s := startServer(t, newPlan(t, "1.37", "1.36", everything), startEtcd(t))
	for _, c := range invalidUpdates {
		t.Run(c.resource+" "+c.patch, func(t *testing.T) {
			obj := sample(t, c.resource)
			gvr := obj.GroupVersionKind().GroupVersion().WithResource(c.resource)
			if _, err := s.in(gvr, obj).Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			_, err := s.in(gvr, obj).Patch(t.Context(), obj.GetName(), types.MergePatchType, toJSON(t, c.patch), metav1.PatchOptions{})
			expectField(t, err, c.field)
		})
	}
}

// expectField wants an error that is about the field, or none for "".
func expectField(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	if !apierrors.IsInvalid(err) {
		t.Fatalf("got error %v, want one that names %s", err, want)
	}
	var fields []string
	for _, cause := range err.(apierrors.APIStatus).Status().Details.Causes {
		if cause.Field == want {
			return
		}
		fields = append(fields, cause.Field)
	}
	t.Errorf("the error is about %s, want %s: %v", strings.Join(fields, ", "), want, err)
}

func toJSON(t *testing.T, text string) []byte {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// patched returns the object with a merge patch applied.
func patched(t *testing.T, obj *unstructured.Unstructured, patch string) *unstructured.Unstructured {
	t.Helper()
	merge(obj.Object, parse(t, patch).Object)
	return obj
}

func merge(into, patch map[string]any) {
	for key, value := range patch {
		old, isMap := into[key].(map[string]any)
		changes, isPatch := value.(map[string]any)
		switch {
		case value == nil:
			delete(into, key)
		case isMap && isPatch:
			merge(old, changes)
		default:
			into[key] = value
		}
	}
}
