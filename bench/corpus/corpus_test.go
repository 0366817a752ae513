package corpus

import (
	"strings"
	"testing"

	migratestore "github.com/concord-dev/concord/migrate/store"
)

func TestOldEncodings(t *testing.T) {
	template := []byte(`{"apiVersion":"` + CustomGroup + `/v2","kind":"Rewritten","metadata":{"name":"template","uid":"x"},"spec":{"payload":"p"}}`)
	old, err := encodeCustom(template, "object-1", "y")
	if err != nil {
		t.Fatal(err)
	}
	if e, kind, _ := migratestore.Envelope(old); e != CustomResources.old || kind != CustomResources.kind {
		t.Errorf("%s is a %s in %s", old, kind, e)
	}
	if text := string(old); strings.Contains(text, "template") || !strings.Contains(text, `"uid":"y"`) || !strings.Contains(text, `"payload":"p"`) {
		t.Errorf("got %s", text)
	}
	policies := []byte(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicy","metadata":{"name":"template"},"spec":{"variables":[{"name":"payload"}]}}`)
	if old, err = encodePolicy(policies, "object-1", "y"); err != nil {
		t.Fatal(err)
	}
	if e, kind, _ := migratestore.Envelope(old); e != Policies.old || kind != Policies.kind {
		t.Errorf("it is a %s in %s", kind, e)
	}
	if text := string(old); !strings.HasPrefix(text, "k8s\x00") || !strings.Contains(text, "object-1") || !strings.Contains(text, "payload") {
		t.Errorf("got %q", text)
	}
}
