package convert

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/storage"

	migratestore "github.com/concord-dev/concord/migrate/store"
)

// TestShortcutAgreesWithTheCodec generates correct, unusual and broken values. If the shortcut
// rewrites a value, the codec must rewrite it as well, to the same content.
func TestShortcutAgreesWithTheCodec(t *testing.T) {
	codec, shortcut := widgetCodec(t), renaming(widgetDefinition, "example.com/v2")
	const rounds = 60_000
	taken, sound := 0, 0
	for seed := range uint64(rounds) {
		g := generator{rand.New(rand.NewPCG(seed, 1))}
		stored := g.value()
		from, _, ok := migratestore.Envelope(stored)
		if !ok {
			continue
		}
		slow, err := bySlowPath(codec, stored)
		if err == nil {
			sound++
		}
		fast, ok := shortcut(slices.Clone(stored), from)
		if !ok {
			continue
		}
		taken++
		if err != nil {
			t.Fatalf("seed %d: %q is rewritten, and the codec says %v", seed, stored, err)
		}
		if got, want := contentOf(t, fast), contentOf(t, slow); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %q is rewritten to\n%q, by the codec to\n%q", seed, stored, fast, slow)
		}
	}
	t.Logf("of %d values the codec took %d and the shortcut %d", rounds, sound, taken)
	if taken < rounds/10 || taken == sound {
		t.Errorf("of %d values the codec took %d and the shortcut %d: the draw is one-sided", rounds, sound, taken)
	}
}

func TestNoShortcutPastAWebhook(t *testing.T) {
	crd := widgetDefinition.DeepCopy()
	crd.Spec.Conversion.Strategy = apiextensionsv1.WebhookConverter
	if renaming(crd, "example.com/v2") != nil {
		t.Error("a webhook is passed by")
	}
	if _, ok := renaming(widgetDefinition, "example.com/v2")([]byte(`{"apiVersion":"example.com/v0","kind":"Widget","metadata":{}}`), "example.com/v0"); ok {
		t.Error("a version that the definition does not have is taken")
	}
}

func bySlowPath(codec customCodec, stored []byte) ([]byte, error) {
	obj, _, err := codec.Decode(stored, nil, &unstructured.Unstructured{})
	if err != nil {
		return nil, err
	}
	if err := (storage.APIObjectVersioner{}).PrepareObjectForStorage(obj); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = codec.Encode(obj, &out)
	return out.Bytes(), err
}

// contentOf decodes as every reader of custom resources does. A whole number may have been written
// as a float, for JSON the two are the same.
func contentOf(t *testing.T, value []byte) any {
	t.Helper()
	u := &unstructured.Unstructured{}
	if _, _, err := unstructured.UnstructuredJSONScheme.Decode(value, nil, u); err != nil {
		t.Fatalf("decode %q: %v", value, err)
	}
	return wholeNumbers(u.Object)
}

func wholeNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = wholeNumbers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = wholeNumbers(v[i])
		}
	case float64:
		if v < 1<<63 && v >= -1<<63 && v == float64(int64(v)) {
			return int64(v)
		}
	}
	return v
}

// generator makes stored values as text, so that it can also make values that no encoder writes.
type generator struct{ *rand.Rand }

func (g generator) oneOf(all ...string) string { return all[g.IntN(len(all))] }

// rarely is true one time in n.
func (g generator) rarely(n int) bool { return g.IntN(n) == 0 }

func (g generator) space() string {
	if g.rarely(8) {
		return g.oneOf(" ", "\n", "\t", "\r\n", "  ", "\v", " ")
	}
	return ""
}

func (g generator) value() []byte {
	fields := []string{
		`"apiVersion"` + g.space() + ":" + g.space() + g.oneOf(`"example.com/v1"`, `"example.com/v1"`, `"example.com/v2"`, `"example.com/v1"`, `"example.com\/v1"`, `"example.com/v0"`),
		`"kind":` + g.oneOf(`"Widget"`, `"Widget"`, `"Gadget"`),
		`"metadata":` + g.metadata(),
	}
	for range g.IntN(4) {
		fields = append(fields, g.field(3))
	}
	if g.rarely(10) {
		fields = append(fields, g.oneOf(`"apiVersion":"example.com/v2"`, `"api\u0056ersion":"example.com/v1"`, `"metadata":{"name":"z"}`, `"Kind":"x"`, `"apiversion":"x"`, `"items":[]`, `"apiVersion":{}`))
	}
	g.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
	text := []byte(g.space() + "{" + strings.Join(fields, g.space()+","+g.space()) + "}" + g.oneOf("", "\n", "", "", "x", "{}"))
	if g.rarely(4) {
		i := g.IntN(len(text))
		switch g.IntN(3) {
		case 0:
			text = slices.Delete(text, i, i+1)
		case 1:
			text[i] = byte(g.Uint32())
		default:
			text = slices.Insert(text, i, g.oneOf("{", "}", "\"", ",", ":", "\\", "0", "e", "\x00", "\xff")[0])
		}
	}
	return text
}

func (g generator) metadata() string {
	if g.rarely(20) {
		return g.oneOf("null", "[]", `"m"`, "{}", "7")
	}
	fields := []string{`"name":"w"`}
	if g.rarely(3) {
		fields = append(fields, g.field(2))
	}
	if g.rarely(8) {
		fields = append(fields, g.oneOf(`"resourceVersion":"7"`, `"selfLink":"/x"`, `"resource\u0056ersion":"7"`, `"resourceVersion":7`, `"generation":3`, `"labels":{"resourceVersion":"x"}`))
	}
	return "{" + strings.Join(fields, ",") + "}"
}

func (g generator) field(depth int) string {
	return fmt.Sprintf(`"%s":%s%s`, g.oneOf("spec", "a", "b", "ü", `\u00e9`, "kind ", "<", "x.y"), g.space(), g.anything(depth))
}

func (g generator) anything(depth int) string {
	if depth > 0 && g.rarely(2) {
		var all []string
		object := g.rarely(2)
		for range g.IntN(4) {
			if object {
				all = append(all, g.field(depth-1))
			} else {
				all = append(all, g.anything(depth-1))
			}
		}
		inside := strings.Join(all, ",")
		if object {
			return "{" + inside + "}"
		}
		return "[" + inside + "]"
	}
	return g.oneOf("null", "true", "false", "0", "-1", "9223372036854775807", "9223372036854775808", "12345678901234567890123", "1.5", "1.0", "-0.0", "1e3", "1E400", "0.1e-400",
		`""`, `"text"`, `"a\"b"`, `"\u2028<&>"`, `"\ud800"`, "\"\xff\"", `"apiVersion"`, `"{"`, "01", "nul", "1.", `"tab	"`, strings.Repeat("9", 400))
}
