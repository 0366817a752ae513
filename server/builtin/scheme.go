package builtin

import (
	"fmt"
	"reflect"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/version"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
)

var (
	// Scheme knows every version of the built-in resources, their in-memory form,
	// conversions, defaults and field selectors.
	Scheme = runtime.NewScheme()
	// Codecs encode and decode requests and responses.
	Codecs = serializer.NewCodecFactory(Scheme)
	// ParameterCodec decodes query parameters.
	ParameterCodec = runtime.NewParameterCodec(Scheme)
)

func init() { utilruntime.Must(addToScheme(Scheme)) }

func addToScheme(scheme *runtime.Scheme) error {
	if err := addVersioned(scheme); err != nil {
		return err
	}
	for _, k := range kinds() {
		if err := addInternal(scheme, k); err != nil {
			return err
		}
	}
	if err := addEventConversions(scheme); err != nil {
		return err
	}
	addDefaults(scheme)
	return addFieldLabels(scheme)
}

// OpenAPIScheme returns a scheme of the versioned types alone. Definition names must
// come from it: with the internal registrations of Scheme, "__internal" would show in
// the published documents.
func OpenAPIScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(addVersioned(scheme))
	return scheme
}

// DefinitionNamer names the OpenAPI definitions of the built-in types and those of the
// given schemes, which must not have internal registrations of versioned types either.
func DefinitionNamer(others ...*runtime.Scheme) *openapinamer.DefinitionNamer {
	return openapinamer.NewDefinitionNamer(append([]*runtime.Scheme{OpenAPIScheme()}, others...)...)
}

// addVersioned registers the types of all versions and orders the versions of each group.
func addVersioned(scheme *runtime.Scheme) error {
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	versions := map[string][]schema.GroupVersion{}
	for _, k := range kinds() {
		for _, t := range k.versions {
			gv := k.groupVersion(t)
			scheme.AddKnownTypes(gv, t.object)
			if t.list != nil {
				scheme.AddKnownTypes(gv, t.list)
			}
			if !slices.Contains(versions[k.Group], gv) {
				versions[k.Group] = append(versions[k.Group], gv)
				metav1.AddToGroupVersion(scheme, gv)
			}
		}
	}
	for _, gvs := range versions {
		slices.SortFunc(gvs, func(a, b schema.GroupVersion) int {
			return version.CompareKubeAwareVersionStrings(b.Version, a.Version)
		})
		if err := scheme.SetVersionPriority(gvs...); err != nil {
			return err
		}
	}
	return nil
}

// addInternal registers the newest version's types as the in-memory form and conversions
// between it and the other versions.
func addInternal(scheme *runtime.Scheme, k kind) error {
	if k.storedAs != (schema.GroupResource{}) {
		return nil
	}
	hub := k.versions[0]
	addInternalTypes(scheme, k.internal(), hub)
	for _, t := range k.versions[1:] {
		if err := addReinterpretation(scheme, hub.object, t.object); err != nil {
			return err
		}
		if err := addReinterpretation(scheme, hub.list, t.list); err != nil {
			return err
		}
	}
	return nil
}

func addInternalTypes(scheme *runtime.Scheme, internal schema.GroupVersion, hub types) {
	for _, object := range []runtime.Object{hub.object, hub.list} {
		if object != nil {
			scheme.AddKnownTypeWithName(internal.WithKind(reflect.TypeOf(object).Elem().Name()), object)
		}
	}
}

// addDefaults registers the defaulting of each kind for all of its versions.
func addDefaults(scheme *runtime.Scheme) {
	for _, k := range kinds() {
		setDefaults, ok := defaulters[k.GroupResource]
		if !ok {
			continue
		}
		hub := reflect.TypeOf(k.versions[0].object).Elem()
		for _, t := range k.versions {
			scheme.AddTypeDefaultingFunc(t.object, func(object any) {
				setDefaults(t.version, viewAs(object, hub).Interface().(runtime.Object))
			})
		}
	}
}

// defaulters hold the defaulting of each resource that has any. They work on the
// in-memory form of an object that was given in some version.
var defaulters = map[schema.GroupResource]func(version string, obj runtime.Object){
	{Group: coreGroup, Resource: "namespaces"}:                           defaulter(defaultNamespace),
	{Group: coreGroup, Resource: "secrets"}:                              defaulter(defaultSecret),
	{Group: coreGroup, Resource: "services"}:                             defaulter(defaultService),
	{Group: discoveryGroup, Resource: "endpointslices"}:                  defaulter(defaultEndpointSlice),
	{Group: admissionGroup, Resource: "validatingwebhookconfigurations"}: defaulter(defaultValidatingWebhooks),
	{Group: admissionGroup, Resource: "mutatingwebhookconfigurations"}:   defaulter(defaultMutatingWebhooks),
	{Group: admissionGroup, Resource: "validatingadmissionpolicies"}:     defaulter(defaultValidatingPolicy),
	{Group: admissionGroup, Resource: "mutatingadmissionpolicies"}:       defaulter(defaultMutatingPolicy),
	{Group: admissionGroup, Resource: "validatingadmissionpolicybindings"}: func(version string, obj runtime.Object) {
		b := obj.(*admissionv1.ValidatingAdmissionPolicyBinding)
		defaultBinding(version, b.Spec.MatchResources, b.Spec.ParamRef)
	},
	{Group: admissionGroup, Resource: "mutatingadmissionpolicybindings"}: func(version string, obj runtime.Object) {
		b := obj.(*admissionv1.MutatingAdmissionPolicyBinding)
		defaultBinding(version, b.Spec.MatchResources, b.Spec.ParamRef)
	},
}

func defaulter[P runtime.Object](set func(P)) func(string, runtime.Object) {
	return func(_ string, obj runtime.Object) { set(obj.(P)) }
}

// addFieldLabels registers the field selectors that resources have beyond metadata.name
// and metadata.namespace, in every version.
func addFieldLabels(scheme *runtime.Scheme) error {
	for _, k := range kinds() {
		labels, ok := fieldLabels[k.GroupResource]
		if !ok {
			continue
		}
		for _, t := range k.versions {
			gvk := k.groupVersion(t).WithKind(k.Kind)
			if err := scheme.AddFieldLabelConversionFunc(gvk, convertFieldLabel(gvk, labels)); err != nil {
				return err
			}
		}
	}
	return nil
}

// fieldLabels map the field labels of each resource to those its objects are matched by.
var fieldLabels = map[schema.GroupResource]map[string]string{
	{Group: coreGroup, Resource: "namespaces"}:                  {"status.phase": "status.phase", "name": "metadata.name"},
	{Group: coreGroup, Resource: "secrets"}:                     {"type": "type"},
	{Group: certificatesGroup, Resource: "clustertrustbundles"}: {"spec.signerName": "spec.signerName"},
	eventsResource:                           eventFieldLabels("involvedObject", "reportingComponent", "source"),
	{Group: eventsGroup, Resource: "events"}: eventFieldLabels("regarding", "reportingController"),
}

func convertFieldLabel(gvk schema.GroupVersionKind, labels map[string]string) runtime.FieldLabelConversionFunc {
	return func(label, value string) (string, string, error) {
		if label == "metadata.name" || label == "metadata.namespace" {
			return label, value, nil
		}
		if to, ok := labels[label]; ok {
			return to, value, nil
		}
		return "", "", fmt.Errorf("%q is not a field selector that %s supports", label, gvk.Kind)
	}
}
