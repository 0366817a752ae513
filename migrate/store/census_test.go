package store

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

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
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	unknowns := []string{"/registry/configmaps/default/a", "/registry/mutatingadmissionpolicies/d", "/registry/secrets/default/b", "/registry/storageversions/malformed"}
	if !reflect.DeepEqual(census.Unknown, unknowns) {
		t.Errorf("unknown: got %v, want %v", census.Unknown, unknowns)
	}
	var all int64
	for _, e := range stored(t, c, "/registry/") {
		all += int64(len(e.Value))
	}
	if bytes != all {
		t.Errorf("counted %d bytes of %d", bytes, all)
	}
}

// TestCountVerifies: a census that verifies names values that do not decode although their envelope
// can be read, and tries nothing that is encrypted.
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
