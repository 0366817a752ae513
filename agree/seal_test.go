package agree

import "testing"

// TestSealed: an encoding is a group/version and the Seal (the key) that it is encrypted with; both
// can be read from it.
func TestSealed(t *testing.T) {
	for _, plain := range []Encoding{"v1", "apps/v1", "networking.k8s.io/v1beta1"} {
		for _, seal := range []Seal{"", "aescbc:v1:key1:0a", "aesgcm:v1:a+b:0a"} {
			e := plain.Sealed(seal)
			if e.Plain() != plain || e.Seal() != seal {
				t.Errorf("%s sealed with %q is %s: %s and %q", plain, seal, e, e.Plain(), e.Seal())
			}
			if again := e.Sealed("other:v1:k:1"); again.Plain() != plain || again.Seal() != "other:v1:k:1" {
				t.Errorf("%s sealed anew is %s", e, again)
			}
			if seal != "" && e == plain {
				t.Errorf("%s does not tell that it is encrypted", e)
			}
		}
	}
	if e := Unknown.Sealed("aescbc:v1:key1:0a"); e != Unknown {
		t.Errorf("Unknown became %s", e)
	}
	if key := Seal("aescbc:v1:key1:0a").Key(); key != "aescbc:v1:key1" {
		t.Errorf("values say %q", key)
	}
	if key := Seal("").Key(); key != "" {
		t.Errorf("values that are not encrypted say %q", key)
	}
}

// TestUnknownKey: servers that do not know yet which key they encrypt with do not agree, although
// their reports are equal.
func TestUnknownKey(t *testing.T) {
	report := func(seal Seal) []Report {
		e := Encoding("v1").Sealed(seal)
		return []Report{{Server: "a", Encoding: e}, {Server: "b", Encoding: e}}
	}
	for seal, known := range map[Seal]bool{"": true, "aescbc:v1:key1:0a": true, "kms:v1:p:": true, "kms:v2:p:0a": true, "kms:v2:p:" + UnknownKey: false} {
		if _, agreed := Common(report(seal)); agreed != known || seal.Known() != known {
			t.Errorf("%q: agreed %v, known %v", seal, agreed, seal.Known())
		}
	}
}

func TestGroupVersion(t *testing.T) {
	for e, want := range map[Encoding][2]string{"v1": {"", "v1"}, "apps/v1": {"apps", "v1"}, "apps/v1+aescbc:v1:a/b:1": {"apps", "v1"}, Unknown: {"", string(Unknown)}} {
		if e.Group() != want[0] || e.Version() != want[1] {
			t.Errorf("%s is of group %q and version %q", e, e.Group(), e.Version())
		}
	}
}
