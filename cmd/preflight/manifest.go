package preflight

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	goyaml "go.yaml.in/yaml/v2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/concord-dev/concord/verdict"
)

// kind is that of definitions.
const kind = "CustomResourceDefinition"

// some parses definitions, and returns an error if there is none.
func some(source string, text []byte) ([]verdict.Definition, error) {
	found, err := parse(text)
	if err == nil {
		found, err = once(found)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", source, err)
	case len(found) == 0:
		return nil, fmt.Errorf("%s has no CustomResourceDefinition of apiextensions.k8s.io/v1", source)
	}
	return found, nil
}

// parse finds the definitions in a stream of YAML or JSON documents, also in lists, as kubectl does.
// What kubectl would read in part, or in two ways, is an error where it may be a definition.
func parse(text []byte) (found []verdict.Definition, err error) {
	all, err := documents(text)
	if err != nil {
		return nil, errors.New(strings.Join(strings.Fields(err.Error()), " ")) // those of YAML have several lines
	}
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
	for i, doc := range all {
		if bytes.Equal(doc.text, []byte("null")) {
			continue // comments
		}
		object, _, err := unstructured.UnstructuredJSONScheme.Decode(doc.text, nil, nil)
		switch {
		case err == nil:
			err = add(object)
		case runtime.IsMissingKind(err) && !doc.mentions:
			continue
		case runtime.IsMissingKind(err):
			err = errors.New("it has no kind")
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
	}
	return found, nil
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

// document is one document of a stream, as JSON.
type document struct {
	text json.RawMessage
	// mentions says that the text of the document, or one beside it, mentions CustomResourceDefinitions. Other
	// documents only have to be readable.
	mentions bool
}

// documents splits a stream into its documents.
func documents(text []byte) (all []document, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("document %d: %w", len(all)+1, err)
		}
	}()
	chunks := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		chunk, err := chunks.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		mentions := bytes.Contains(chunk, []byte(kind))
		stream, isJSON := jsonStream(chunk)
		if !isJSON {
			read := yaml.YAMLToJSON
			if mentions {
				read = strictYAML
			}
			doc, err := read(chunk)
			if err != nil {
				return all, err
			}
			stream = []json.RawMessage{doc}
		}
		for _, doc := range stream {
			var value any
			twice, err := strictjson.UnmarshalStrict(doc, &value, strictjson.DisallowDuplicateFields)
			if err := errors.Join(append(twice, err)...); err != nil && mentions {
				return all, err
			}
			all = append(all, document{doc, mentions})
		}
	}
}

// jsonStream returns the values of a text that consists of nothing but JSON values, one after the other.
func jsonStream(text []byte) (all []json.RawMessage, isJSON bool) {
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var doc json.RawMessage
		if err := decoder.Decode(&doc); err != nil {
			return all, errors.Is(err, io.EOF) && len(all) > 0
		}
		all = append(all, doc)
	}
}

// strictYAML is the one document of a text, as JSON.
func strictYAML(text []byte) ([]byte, error) {
	doc, err := yaml.YAMLToJSONStrict(text)
	if _, loosely := yaml.YAMLToJSON(text); err != nil && loosely == nil {
		err = fmt.Errorf("%w (between documents, or files, there has to be a line ---)", err)
	}
	if err != nil {
		return nil, err
	}
	var value any
	decoder := goyaml.NewDecoder(bytes.NewReader(text))
	for range 2 {
		err = decoder.Decode(&value)
	}
	if !errors.Is(err, io.EOF) {
		return nil, errors.New("a document follows another one without a line --- between them")
	}
	return doc, nil
}
