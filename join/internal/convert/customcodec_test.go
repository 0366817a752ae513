package convert

import (
	"bytes"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	migratestore "github.com/concord-dev/concord/migrate/store"
)

var widgetDefinition = &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
	Group:      "example.com",
	Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
	Versions:   []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1"}, {Name: "v2", Storage: true}},
}}

func widgetCodec(t *testing.T) customCodec {
	t.Helper()
	convertor, _, err := New(nil, &rest.Config{}).convertor(t.Context(), widgetDefinition)
	if err != nil {
		t.Fatal(err)
	}
	return customCodec{convertor: convertor, encoding: schema.GroupVersion{Group: "example.com", Version: "v2"}}
}

// TestCustomCodec asserts that a rewrite changes only the version of a custom resource (I5): a
// field that is in no schema any more stays.
func TestCustomCodec(t *testing.T) {
	codec := widgetCodec(t)
	shortcut := renaming(widgetDefinition, "example.com/v2")
	for _, tc := range []struct{ name, stored, want string }{
		{
			"converted", `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"unknown":[1,2.5,null]}}`,
			`{"apiVersion":"example.com/v2","kind":"Widget","metadata":{"name":"w"},"spec":{"unknown":[1,2.5,null]}}`,
		},
		{"a version that the definition does not have", `{"apiVersion":"example.com/v0","kind":"Widget","metadata":{"name":"w"}}`, ""},
		{"another group", `{"apiVersion":"other.com/v1","kind":"Widget","metadata":{"name":"w"}}`, ""},
		{"no object", `{"a":1}`, ""},
		{"no JSON", "\x00", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			obj, _, err := codec.Decode([]byte(tc.stored), nil, nil)
			if err == nil {
				err = codec.Encode(obj, &out)
			}
			if got := strings.TrimSpace(out.String()); got != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
			from, _, _ := migratestore.Envelope([]byte(tc.stored))
			if short, ok := shortcut([]byte(tc.stored), from); string(short) != tc.want || ok != (tc.want != "") {
				t.Errorf("the shortcut got %q, want %q", short, tc.want)
			}
		})
	}
}
