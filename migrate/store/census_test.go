package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"reflect"
	"strings"
	"testing"

	machinery "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"

	"github.com/concord-dev/concord/agree"
)

func TestLocate(t *testing.T) {
	for path, test := range map[string]struct {
		encoding agree.Encoding
		want     string
	}{
		"configmaps/default/a":                                   {"v1", "configmaps"},
		"namespaces/default":                                     {"v1", "namespaces"},
		"configmaps/configmaps/configmaps":                       {"v1", "configmaps"},
		"mutatingadmissionpolicies/a":                            {newEncoding, "mutatingadmissionpolicies.admissionregistration.k8s.io"},
		"leases/kube-system/a":                                   {"coordination.k8s.io/v1", "leases.coordination.k8s.io"},
		"events/default/a":                                       {"events.k8s.io/v1", "events.events.k8s.io"},
		"apps/deployments/default/a":                             {"apps/v1", "deployments.apps"},
		"example.com/widgets/default/a":                          {"example.com/v2", "widgets.example.com"},
		"example.com/widgets/a":                                  {"", "widgets.example.com"},
		"apiextensions.k8s.io/customresourcedefinitions/w.e.com": {"apiextensions.k8s.io/v1", "customresourcedefinitions.apiextensions.k8s.io"},
		"services/specs/default/a":                               {"v1", "services"},
		"services/endpoints/default/a":                           {"v1", "endpoints"},
		"services/endpoints/a":                                   {"v1", "services"}, // a service in a namespace called endpoints
		"minions/a":                                              {"v1", "nodes"},
		"ingress/default/a":                                      {"networking.k8s.io/v1", "ingresses.networking.k8s.io"},
		"ranges/serviceips":                                      {"v1", ResourceOther},
		"masterleases/10.0.0.1":                                  {"v1", ResourceOther},
		"compact_rev_key":                                        {"", "other"},
		"":                                                       {"", "other"},
		"example.com/widgets":                                    {"", "other"},
		"configmaps/":                                            {"v1", "other"},
		"configmaps//a":                                          {"v1", "other"},
	} {
		if got := locate(strings.Split(path, "/"), test.encoding).groupResource().String(); got != test.want {
			t.Errorf("%s in %q: got %s, want %s", path, test.encoding, got, test.want)
		}
	}
}

func TestCount(t *testing.T) {
	c := startEtcd(t)
	codecs := newTyped(t)
	sealed := []byte("k8s:enc:aescbc:v1:key1:\x00\x01\xff")
	policy, old := codecs.value(t, codecs.new, 1), codecs.value(t, codecs.old, 1)
	load(t, c, 700, numbered("/registry/example.com/widgets/default/"), func(i int) []byte { return widget(t, "v1", i) })
	load(t, c, 50, numbered("/registry/example.com/widgets/other/"), func(i int) []byte { return widget(t, "v2", i) })
	for key, value := range map[string][]byte{
		"/registry/mutatingadmissionpolicies/a":                   policy,
		"/registry/mutatingadmissionpolicies/b":                   old,
		"/registry/mutatingadmissionpolicies/c":                   sealed,
		"/registry/mutatingadmissionpolicies/d":                   old[:12],
		"/registry/secrets/default/a":                             sealed,
		"/registry/secrets/default/b":                             []byte("k8s:enc:broken"),
		"/registry/ipaddresses/10.0.0.1":                          sealed,
		"/registry/events/default/a":                              sealed,
		"/registry/example.com/events/default/a":                  []byte(`{"apiVersion":"example.com/v1","kind":"Event"}`),
		"/registry/storageversions/networking.k8s.io.ipaddresses": unknown("internal.apiserver.k8s.io/v1alpha1", "StorageVersion"),
		"/registry/storageversions/example.com.events":            unknown("internal.apiserver.k8s.io/v1alpha1", "StorageVersion"),
		"/registry/storageversions/core.events":                   unknown("internal.apiserver.k8s.io/v1alpha1", "StorageVersion"),
		"/registry/storageversions/malformed":                     {},
		"/registry/configmaps/default/a":                          {0xff, 0xfe, 0},
		"/registry/health":                                        []byte("true"),
		"/registryelsewhere/configmaps/default/a":                 []byte("not ours"),
		"/registry/example.com/widgetsets/a":                      widget(t, "v3", 1),
		"compact_rev_key":                                         []byte("12"),
	} {
		put(t, c, key, value)
	}
	last := put(t, c, "/registry/namespaces/default", unknown("v1", "Namespace"))

	census, err := Count(t.Context(), NewEtcd(c), "/registry", nil)
	must(t, err)
	if census.Revision != last {
		t.Errorf("revision %d, want %d", census.Revision, last)
	}
	type row struct {
		resource, encoding string
		objects            int64
	}
	var got []row
	var bytes int64
	for _, r := range census.Rows {
		got = append(got, row{r.Resource, r.Encoding, r.Objects})
		bytes += r.Bytes
	}
	want := []row{
		{"configmaps", "unknown", 1},
		{"events", "encrypted:aescbc:v1:key1", 1},
		{"events.example.com", "example.com/v1", 1},
		{"ipaddresses.networking.k8s.io", "encrypted:aescbc:v1:key1", 1},
		{"mutatingadmissionpolicies.admissionregistration.k8s.io", "admissionregistration.k8s.io/v1", 1},
		{"mutatingadmissionpolicies.admissionregistration.k8s.io", "admissionregistration.k8s.io/v1beta1", 1},
		{"mutatingadmissionpolicies.admissionregistration.k8s.io", "encrypted:aescbc:v1:key1", 1},
		{"mutatingadmissionpolicies.admissionregistration.k8s.io", "unknown", 1},
		{"namespaces", "v1", 1},
		{"other", "none", 1},
		{"secrets", "encrypted:?", 1},
		{"secrets", "encrypted:aescbc:v1:key1", 1},
		{"storageversions.internal.apiserver.k8s.io", "internal.apiserver.k8s.io/v1alpha1", 3},
		{"storageversions.internal.apiserver.k8s.io", "unknown", 1},
		{"widgets.example.com", "example.com/v1", 700},
		{"widgets.example.com", "example.com/v2", 50},
		{"widgetsets.example.com", "example.com/v3", 1},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	unknowns := []string{"/registry/configmaps/default/a", "/registry/mutatingadmissionpolicies/d", "/registry/secrets/default/b", "/registry/storageversions/malformed"}
	if !reflect.DeepEqual(census.Unknown, unknowns) {
		t.Errorf("unknown: got %v, want %v", census.Unknown, unknowns)
	}
	for prefix, want := range map[string]map[string]int64{
		"/registry/example.com/widgets/": {"example.com/v1": 700, "example.com/v2": 50},
		policyPrefix:                     {string(newEncoding): 1, string(oldEncoding): 1, EncodingEncrypted + "aescbc:v1:key1": 1, EncodingUnknown: 1},
	} {
		if counts, err := CountEncodings(t.Context(), NewEtcd(c), prefix); err != nil || !maps.Equal(counts, want) {
			t.Errorf("%s: got %v, want %v, %v", prefix, counts, want, err)
		}
	}
	var all int64
	for _, e := range stored(t, c, "/registry/") {
		all += int64(len(e.Value))
	}
	if bytes != all {
		t.Errorf("counted %d bytes of %d", bytes, all)
	}
}

// TestCountVerifies: with verify, a census names values that do not decode, although their envelope
// can be read. It does not try encrypted values.
func TestCountVerifies(t *testing.T) {
	c := startEtcd(t)
	whole := []byte(`{"apiVersion":"example.com/v1","kind":"Widget","spec":{"size":1}}`)
	for key, value := range map[string][]byte{
		"/registry/example.com/widgets/default/a": whole,
		"/registry/example.com/widgets/default/b": whole[:len(whole)-3],
		"/registry/example.com/widgets/default/c": whole[:len(whole)-1],
		"/registry/secrets/default/d":             []byte("k8s:enc:aescbc:v1:key1:\x00"),
		"/registry/secrets/default/e":             {0xff},
	} {
		put(t, c, key, value)
	}
	census, err := Count(t.Context(), NewEtcd(c), "/registry", func(value []byte) error {
		var any map[string]any
		return json.Unmarshal(value, &any)
	})
	must(t, err)
	const why = "unexpected end of JSON input"
	if want := []Damaged{{"/registry/example.com/widgets/default/b", why}, {"/registry/example.com/widgets/default/c", why}}; !reflect.DeepEqual(census.Undecodable, want) {
		t.Errorf("got %v, want %v", census.Undecodable, want)
	}
	if want := []string{"/registry/secrets/default/e"}; !reflect.DeepEqual(census.Unknown, want) {
		t.Errorf("unknown: got %v, want %v", census.Unknown, want)
	}
}

func TestCountOfNothing(t *testing.T) {
	census, err := Count(t.Context(), NewEtcd(startEtcd(t)), "/registry/", nil)
	must(t, err)
	if census.Rows == nil || len(census.Rows) != 0 || census.Unknown == nil {
		t.Fatalf("got %+v", census)
	}
}

func TestCountStartsAnewAfterCompaction(t *testing.T) {
	c := startEtcd(t)
	load(t, c, 100, numbered("/registry/example.com/widgets/default/"), func(i int) []byte { return widget(t, "v1", i) })
	compactions, always := 0, false
	kv := hooked{KV: NewEtcd(c), beforeRange: func(_ string, revision int64) error {
		if revision > 0 && (always || compactions == 0) {
			compactions++
			_, err := c.Compact(t.Context(), put(t, c, "/registry/example.com/widgets/default/late", widget(t, "v2", 1)))
			return err
		}
		return nil
	}}
	census, err := Count(t.Context(), kv, "/registry", nil)
	must(t, err)
	if compactions != 1 || len(census.Rows) != 2 || census.Rows[0].Objects != 100 || census.Rows[1].Objects != 1 {
		t.Fatalf("%d compactions, %+v", compactions, census)
	}
	always = true
	if _, err := Count(t.Context(), kv, "/registry", nil); !errors.Is(err, ErrCompacted) {
		t.Fatalf("got %v", err)
	}
}

func unknown(apiVersion, kind string) []byte {
	u := machinery.Unknown{TypeMeta: machinery.TypeMeta{APIVersion: apiVersion, Kind: kind}, Raw: []byte("raw")}
	out, err := u.Marshal()
	if err != nil {
		panic(err)
	}
	return append([]byte("k8s\x00"), out...)
}

// cborOf is an object as kube-apiserver stores it in CBOR.
func cborOf(t *testing.T, object map[string]any) string {
	t.Helper()
	value, err := direct.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return "\xd9\xd9\xf7" + string(value)
}

func TestEnvelope(t *testing.T) {
	for name, test := range map[string]struct {
		value    string
		encoding agree.Encoding
		kind     string
	}{
		"protobuf":                        {string(unknown("apps/v1", "Deployment")), "apps/v1", "Deployment"},
		"protobuf, core group":            {string(unknown("v1", "Secret")), "v1", "Secret"},
		"protobuf, fields before":         {"k8s\x00\x12\x01r\x18\x05\x0a\x09\x0a\x02v1\x12\x03Pod", "v1", "Pod"},
		"protobuf, nothing behind":        {"k8s\x00\x0a\x09\x0a\x02v1\x12\x03Pod\xff\xff", "v1", "Pod"},
		"protobuf, no kind":               {string(unknown("v1", "")), "", ""},
		"protobuf, no version":            {string(unknown("", "Pod")), "", ""},
		"protobuf, truncated":             {"k8s\x00\x0a\x20\x0a\x02v1", "", ""},
		"protobuf, length overflows":      {"k8s\x00\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "", ""},
		"protobuf, empty":                 {"k8s\x00", "", ""},
		"json":                            {`{"apiVersion":"v1","kind":"Pod","metadata":{}}`, "v1", "Pod"},
		"json, only what it takes":        {`{"kind":"Pod","apiVersion":"a.b/v1",`, "a.b/v1", "Pod"},
		"json, spaces":                    {" \n{\t\"kind\" : \"Pod\" , \"apiVersion\" : \"v1\" }", "v1", "Pod"},
		"json, fields at the end":         {`{"metadata":{"a":["}",{"b":"\"]"}],"n":-1.5e3,"t":true,"z":null},"spec":[],"apiVersion":"v1","kind":"Pod"}`, "v1", "Pod"},
		"json, nested fields do not":      {`{"spec":{"apiVersion":"v2","kind":"X"},"apiVersion":"v1","kind":"Pod"}`, "v1", "Pod"},
		"json, escapes":                   {`{"api\u0056ersion":"apps\/v1","kind":"P\u006fd"}`, "apps/v1", "Pod"},
		"json, other case":                {`{"APIVERSION":"v1","kind":"Pod"}`, "", ""},
		"json, no kind":                   {`{"apiVersion":"v1"}`, "", ""},
		"json, number for a version":      {`{"apiVersion":1,"kind":"Pod"}`, "", ""},
		"json, malformed version":         {`{"apiVersion":"a/b/c","kind":"Pod"}`, "", ""},
		"json, version with empty group":  {`{"apiVersion":"/v1","kind":"Pod"}`, "", ""},
		"json, group without version":     {`{"apiVersion":"apps/","kind":"Pod"}`, "", ""},
		"json, array":                     {`[{"apiVersion":"v1","kind":"Pod"}]`, "", ""},
		"json, unterminated":              {`{"metadata":{"a":`, "", ""},
		"json, unterminated string":       {`{"metadata`, "", ""},
		"json, string ends in a slash":    {`{"a\`, "", ""},
		"json, closing bracket too early": {`{"a":]`, "", ""},
		"cbor":                            {cborOf(t, map[string]any{"apiVersion": "a.b/v1", "kind": "Pod", "spec": map[string]any{"kind": "X"}}), "a.b/v1", "Pod"},
		"cbor, no kind":                   {cborOf(t, map[string]any{"apiVersion": "a.b/v1"}), "", ""},
		"cbor, truncated":                 {"\xd9\xd9\xf7\xa2", "", ""},
		"yaml":                            {"apiVersion: v1\ndata:\n  kind: Secret\nkind: ConfigMap\n", "v1", "ConfigMap"},
		"yaml, any order, quotes":         {"# a comment\nkind: \"Pod\"\nspec: {}\napiVersion: 'a.b/v1' # too", "a.b/v1", "Pod"},
		"yaml, what others hold":          {"data:\n  a: |\n    kind: X\n  apiVersion: v9\nitems:\n- kind: X\napiVersion: v1\nkind: Pod", "v1", "Pod"},
		"yaml, damaged behind":            {"apiVersion: v1\nkind: Pod\nspec: [\xff", "v1", "Pod"},
		"yaml, only nested":               {"spec:\n  apiVersion: v1\n  kind: Pod\n", "", ""},
		"yaml, no kind":                   {"apiVersion: v1\nspec: {}\n", "", ""},
		"yaml, number for a version":      {"apiVersion: 1\nkind: Pod\n", "", ""},
		"yaml, kind is an object":         {"apiVersion: v1\nkind:\n  Pod: x\n", "", ""},
		"yaml, unterminated":              {"apiVersion: v1\nkind: \"Pod", "", ""},
		"yaml, no space":                  {"apiVersion:v1\nkind:Pod", "", ""},
		"yaml, an alias of nothing":       {"apiVersion: v1\nkind: *kind", "", ""},
		"encrypted":                       {"k8s:enc:aescbc:v1:key1:xyz", "", ""},
		"text":                            {"10.0.0.1", "", ""},
		"empty":                           {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			encoding, kind, ok := Envelope([]byte(test.value))
			if encoding != test.encoding || kind != test.kind || ok != (test.kind != "") {
				t.Fatalf("got %q %q %v", encoding, kind, ok)
			}
		})
	}
}

func TestEncryption(t *testing.T) {
	for value, want := range map[string]string{
		"k8s:enc:aescbc:v1:key1:\x00\x01":  "aescbc:v1:key1",
		"k8s:enc:kms:v2:my-kms:data:more:": "kms:v2:my-kms",
		// The second part of it is a protobuf field with the ID of the key.
		"k8s:enc:kms:v2:my-kms:\x0a\x01x\x12\x01k": "kms:v2:my-kms:8254c329a92850f6",
		"k8s:enc:kms:v1:my-kms:\x0a\x01x\x12\x01k": "kms:v1:my-kms",
		"k8s:enc:secretbox:v1:k:":                  "secretbox:v1:k",
		"k8s:enc:aescbc:v1:":                       Unnamed,
		"k8s:enc:aescbc:v1:key":                    Unnamed,
		"k8s:enc:::key:":                           Unnamed,
		"k8s:enc:a:b:\x00:":                        Unnamed,
		"k8s:enc:":                                 Unnamed,
		"k8s:enc:kms:v2:my kms:\x0a\x01x":          Unnamed,
		"k8s\x00":                                  "",
		"":                                         "",
	} {
		if got, ok := Encryption([]byte(value)); got != want || ok != (want != "") {
			t.Errorf("%q: got %q %v, want %q", value, got, ok, want)
		}
	}
}

// slowEnvelope reads a JSON envelope in the obvious way: it reads every token, and takes the first
// of each field. It returns false for text that is no JSON object.
func slowEnvelope(value []byte) (apiVersion, kind string, isObject bool) {
	if !json.Valid(value) {
		return "", "", false
	}
	d := json.NewDecoder(bytes.NewReader(value))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return "", "", false
	}
	fields := map[string]any{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return "", "", false
		}
		var v any
		if err := d.Decode(&v); err != nil && err != io.EOF {
			return "", "", false
		}
		if _, again := fields[name.(string)]; !again {
			fields[name.(string)] = v
		}
	}
	apiVersion, _ = fields["apiVersion"].(string)
	kind, _ = fields["kind"].(string)
	return apiVersion, kind, true
}

func FuzzEnvelope(f *testing.F) {
	for _, seed := range []string{
		`{"apiVersion":"v1","kind":"Pod"}`,
		`{"metadata":{"a":["}",{"b":"\"]"}]},"apiVersion":"apps/v1","kind":"P\u006fd"}`,
		`{"kind":"Pod","n":-1.5e3,"apiVersion":"v1","t":true,"z":null}`,
		`{"a":"\`, `{`, `{}`, `[]`, `{"a":{{{{{{`,
		string(unknown("apps/v1", "Deployment")),
		"k8s\x00\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
		"k8s\x00\x0b\x0b\x0c\x0c", "k8s:enc:aescbc:v1:key1:xyz", "k8s:enc:::",
		"apiVersion: v1\nkind: Pod\n", "kind: &a [*a]\napiVersion: !!binary v1", "\xd9\xd9\xf7\xa0",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		encoding, kind, ok := Envelope(value)
		Encryption(value)
		if ok {
			if gv, err := schema.ParseGroupVersion(string(encoding)); err != nil || gv.String() != string(encoding) || kind == "" {
				t.Fatalf("ok with %q %q", encoding, kind)
			}
		}
		if rest, found := bytes.CutPrefix(value, protobufPrefix); found {
			if u, canonical := canonicalUnknown(rest); canonical && (u.APIVersion == "v1" && u.Kind != "") && (encoding != "v1" || kind != u.Kind) {
				t.Fatalf("got %q %q %v of %+v", encoding, kind, ok, u)
			}
			return
		}
		if apiVersion, wantKind, isObject := slowEnvelope(value); isObject && ok && (apiVersion != string(encoding) || wantKind != kind) {
			t.Fatalf("got %q %q, the slow reader %q %q", encoding, kind, apiVersion, wantKind)
		} else if isObject && !ok && apiVersion == "v1" && wantKind != "" {
			t.Fatalf("not ok, the slow reader has %q %q", apiVersion, wantKind)
		}
	})
}

// canonicalUnknown decodes a message that an encoder could have written: it encodes to the same
// bytes.
func canonicalUnknown(message []byte) (u machinery.Unknown, ok bool) {
	if err := u.Unmarshal(message); err != nil {
		return u, false
	}
	again, err := u.Marshal()
	return u, err == nil && bytes.Equal(again, message)
}
