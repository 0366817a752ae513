package preflight

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/concord-dev/concord/verdict"
)

// kind is that of definitions.
const kind = "CustomResourceDefinition"

// some parses definitions, and returns an error if there is none.
func some(source string, text []byte) ([]verdict.Definition, error) {
	found, err := parse(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", source, err)
	case len(found) == 0:
		return nil, fmt.Errorf("%s has no CustomResourceDefinition of apiextensions.k8s.io/v1", source)
	}
	return found, nil
}

// parse finds the definitions in a stream of YAML or JSON documents, also in lists. It reads them as kubectl apply does.
func parse(text []byte) (found []verdict.Definition, err error) {
	var add func(runtime.Object) error
	add = func(o runtime.Object) error {
		if list, ok := o.(runtime.Unstructured); ok && list.IsList() {
			return list.EachListItem(add)
		}
		object, ok := o.(*unstructured.Unstructured)
		if !ok || object.GetKind() != kind {
			if computed := o.GetObjectKind().GroupVersionKind().Kind; strings.Contains(computed, "{{") {
				return fmt.Errorf("a kind is computed: %s", computed)
			}
			return nil
		}
		d, err := definitionIn(object)
		found = append(found, d)
		return err
	}
	documents := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for n := 1; ; n++ {
		var doc runtime.RawExtension
		err := documents.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err == nil && len(doc.Raw) > 0 { // comments are none
			var object runtime.Object
			if object, _, err = unstructured.UnstructuredJSONScheme.Decode(doc.Raw, nil, nil); err == nil {
				err = add(object)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %s", n, strings.Join(strings.Fields(err.Error()), " ")) // those of YAML have several lines
		}
	}
}

// definitionIn returns the part of a manifest that is about versions.
func definitionIn(object *unstructured.Unstructured) (verdict.Definition, error) {
	if v := object.GetAPIVersion(); v != apiextensionsv1.SchemeGroupVersion.String() {
		return verdict.Definition{}, fmt.Errorf("a CustomResourceDefinition is in %s, which no release serves any more", v)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &crd); err != nil {
		return verdict.Definition{}, err
	}
	d := verdict.DefinitionOf(&crd)
	for _, field := range []struct{ name, value string }{{"spec.group", d.Resource.Group}, {"spec.names.plural", d.Resource.Resource}, {"storage version", d.Storage}} {
		if field.value == "" {
			return d, fmt.Errorf("CustomResourceDefinition %q has no %s", crd.Name, field.name)
		}
	}
	return d, nil
}
