package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/ledger"
	"github.com/concord-dev/concord/testbed/load"
)

const (
	CustomGroup = "demo.concord.dev"
	customKind  = "Gadget"
	CRDName     = "gadgets." + CustomGroup

	counterAnnotation = "demo.concord.dev/counter"
	attemptAnnotation = "demo.concord.dev/attempt"
	viaAnnotation     = "demo.concord.dev/via"
	fillerAnnotation  = "demo.concord.dev/filler"

	// fillerBytes makes a stored object about 1 KiB.
	fillerBytes = 480
	// WriterPrefix is the name prefix of the writers' objects, LoadPrefix that of the loaded objects.
	WriterPrefix = "writer-"
	LoadPrefix   = "load-"
)

var (
	Policies = schema.GroupResource{Group: admissionv1.GroupName, Resource: "mutatingadmissionpolicies"}
	Bindings = schema.GroupResource{Group: admissionv1.GroupName, Resource: "mutatingadmissionpolicybindings"}
	Gadgets  = schema.GroupResource{Group: CustomGroup, Resource: "gadgets"}

	// Shown are the resources whose objects the demo writes.
	Shown = []schema.GroupResource{Policies, Bindings, Gadgets}
	// Expected is how their objects are stored at the end.
	Expected = map[schema.GroupResource]agree.Encoding{
		Policies: "admissionregistration.k8s.io/v1",
		Bindings: "admissionregistration.k8s.io/v1",
		Gadgets:  CustomGroup + "/v2",
	}
	CustomVersions = []string{"v1", "v2"}
)

// filler returns the text, always the same for a name, that makes an object its size.
func filler(name string) string {
	sum := sha256.Sum256([]byte(name))
	block := hex.EncodeToString(sum[:])
	return strings.Repeat(block, fillerBytes/len(block)+1)[:fillerBytes]
}

// annotations returns the annotations that a write leaves in an object.
func annotations(m load.Mark) map[string]string {
	return map[string]string{
		counterAnnotation: strconv.FormatInt(m.Counter, 10),
		attemptAnnotation: m.Attempt,
		viaAnnotation:     m.Via,
	}
}

// readMark reads the mark that the last write left in an object's annotations.
func readMark(annotations map[string]string) (load.Mark, error) {
	counter, err := strconv.ParseInt(annotations[counterAnnotation], 10, 64)
	if err != nil {
		return load.Mark{}, fmt.Errorf("annotation %s: %w", counterAnnotation, err)
	}
	return load.Mark{Counter: counter, Attempt: annotations[attemptAnnotation], Via: annotations[viaAnnotation]}, nil
}

// StoredMark reads the mark in a stored value without decoding the rest.
func StoredMark(value []byte) (load.Mark, error) {
	var object metav1.PartialObjectMetadata // the metadata is field 1 of every object
	if err := ledger.Decode(value, &object); err != nil {
		return load.Mark{}, err
	}
	return readMark(object.Annotations)
}

// NewBody returns the object to create: a typed object, or JSON for a custom resource in
// the version.
func NewBody(key load.Key, version string, m load.Mark) (any, error) {
	switch key.Resource {
	case Policies:
		return newPolicy(key.Name, m), nil
	case Bindings:
		return newBinding(key.Name, m), nil
	}
	return json.Marshal(map[string]any{
		"apiVersion": CustomGroup + "/" + version,
		"kind":       customKind,
		"metadata":   map[string]any{"name": key.Name, "annotations": annotations(m)},
		"spec":       map[string]any{"colour": "blue", "payload": filler(key.Name), "size": 3},
	})
}

func newPolicy(name string, m load.Mark) runtime.Object {
	return &admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations(m)},
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			MatchConstraints: matchGadgets(),
			Variables:        []admissionv1.Variable{{Name: "filler", Expression: "'" + filler(name) + "'"}},
			Mutations: []admissionv1.Mutation{{
				PatchType: admissionv1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &admissionv1.ApplyConfiguration{
					Expression: "Object{metadata: Object.metadata{labels: {'touched': 'yes'}}}",
				},
			}},
			FailurePolicy:      ptr.To(admissionv1.Ignore),
			ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
		},
	}
}

func newBinding(name string, m load.Mark) runtime.Object {
	all := annotations(m)
	all[fillerAnnotation] = filler(name)
	return &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: all},
		Spec:       admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "policy-of-" + name, MatchResources: matchGadgets()},
	}
}

// matchGadgets matches a resource that does not exist, so that the policies change nothing also
// where they are enforced.
func matchGadgets() *admissionv1.MatchResources {
	return &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{"nowhere." + CustomGroup}, APIVersions: []string{"v1"}, Resources: []string{"nothings"}},
		},
	}}}
}

// patch returns the JSON patch from one mark to the next. It does nothing to an object
// that shows another write than the one before, so that a request which is carried out
// late cannot undo a newer one.
func patch(from, to load.Mark) ([]byte, error) {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value string `json:"value"`
	}
	path := func(annotation string) string {
		return "/metadata/annotations/" + strings.ReplaceAll(annotation, "/", "~1")
	}
	operations := []operation{{Op: "test", Path: path(counterAnnotation), Value: strconv.FormatInt(from.Counter, 10)}}
	values := annotations(to)
	for _, annotation := range []string{counterAnnotation, attemptAnnotation, viaAnnotation} {
		operations = append(operations, operation{Op: "replace", Path: path(annotation), Value: values[annotation]})
	}
	return json.Marshal(operations)
}

// Definition returns the CRD of the custom resources, both versions served and stored in
// the one named.
func Definition(storage string) *apiextensionsv1.CustomResourceDefinition {
	crd := cluster.Definition(Gadgets, storage)
	crd.Spec.Scope = apiextensionsv1.ClusterScoped
	return crd
}
