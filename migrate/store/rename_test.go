package store

import (
	"testing"

	"github.com/concord-dev/concord/agree"
)

func TestRename(t *testing.T) {
	for _, test := range []struct{ name, value, want string }{
		{"plain", `{"apiVersion":"e.com/v1","kind":"W","metadata":{"name":"w"}}`, `{"apiVersion":"e.com/v2","kind":"W","metadata":{"name":"w"}}`},
		{"spaces, order and numbers stay", " {\n\"metadata\" : {} , \"n\": 12345678901234567890, \"kind\":\"W\",\"apiVersion\"\t:\t\"e.com\\/v1\" }\n", " {\n\"metadata\" : {} , \"n\": 12345678901234567890, \"kind\":\"W\",\"apiVersion\"\t:\t\"e.com/v2\" }\n"},
		{"only the top level counts", `{"metadata":{"managedFields":[{"apiVersion":"e.com/v1"}]},"spec":{"apiVersion":"x"},"kind":"W","apiVersion":"e.com/v1"}`, `{"metadata":{"managedFields":[{"apiVersion":"e.com/v1"}]},"spec":{"apiVersion":"x"},"kind":"W","apiVersion":"e.com/v2"}`},
		{"twice", `{"apiVersion":"e.com/v1","kind":"W","metadata":{},"api\u0056ersion":"e.com/v1"}`, ""},
		{"two kinds", `{"apiVersion":"e.com/v1","kind":"W","metadata":{},"kind":[]}`, ""},
		{"no metadata", `{"apiVersion":"e.com/v1","kind":"W"}`, ""},
		{"metadata is no object", `{"apiVersion":"e.com/v1","kind":"W","metadata":null}`, ""},
		{"a field that is not stored", `{"apiVersion":"e.com/v1","kind":"W","metadata":{"selfLink":"/x"}}`, ""},
		{"another one", `{"apiVersion":"e.com/v1","kind":"W","metadata":{"resourceVersion":"1"}}`, ""},
		{"a number that may be too large", `{"apiVersion":"e.com/v1","kind":"W","metadata":{},"spec":1e400}`, ""},
		{"damaged behind the envelope", `{"apiVersion":"e.com/v1","kind":"W","metadata":{},"spec":{"a":tru}}`, ""},
		{"cut off", `{"apiVersion":"e.com/v1","kind":"W","metadata":{}`, ""},
		{"more behind it", `{"apiVersion":"e.com/v1","kind":"W","metadata":{}}{}`, ""},
		{"no text", "{\"apiVersion\":\"e.com/v1\",\"kind\":\"W\",\"metadata\":{},\"spec\":\"\xff\"}", ""},
		{"a list", `[]`, ""},
		{"nothing", ``, ""},
	} {
		got, ok := Rename([]byte(test.value), "e.com/v2")
		if string(got) != test.want || ok != (test.want != "") {
			t.Errorf("%s: %q, %v", test.name, got, ok)
		}
	}
}

// TestShortcutIsVerified: the value that a shortcut returns is not written unless it says the encoding.
func TestShortcutIsVerified(t *testing.T) {
	c := startEtcd(t)
	prefix := widgetPrefix
	load(t, c, 3, numbered(prefix), func(i int) []byte { return widget(t, "v1", i) })
	before := stored(t, c, prefix)
	target := widgetTarget(t, c)
	for _, wrong := range []string{`{"apiVersion":"example.com/v3","kind":"Widget"}`, "no object"} {
		target.Shortcut = func([]byte, agree.Encoding) ([]byte, bool) { return []byte(wrong), true }
		result, err := New(NewEtcd(c)).Run(t.Context(), target, Options{}, nil)
		must(t, err)
		if result.Failures != 3 || result.Failed[0].Reason != WrongEncoding {
			t.Fatalf("got %+v", result)
		}
		for key, e := range stored(t, c, prefix) {
			if e.ModRevision != before[key].ModRevision {
				t.Errorf("%s was written", key)
			}
		}
	}
	target.Shortcut = func(_ []byte, from agree.Encoding) ([]byte, bool) {
		if from != "example.com/v1" {
			t.Errorf("from %q", from)
		}
		return nil, false
	}
	result, err := New(NewEtcd(c)).Run(t.Context(), target, Options{}, nil)
	must(t, err)
	if result.Rewritten != 3 {
		t.Errorf("got %+v", result.Progress)
	}
}
