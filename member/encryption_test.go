package member

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// TestSetEncryption: with a changed key, built-in and custom resources are reported again. Writes
// with the old key are superseded, writes with the new key wait for the report, and the gate stays
// open.
func TestSetEncryption(t *testing.T) {
	const a, b = agree.Seal("p:v1:a:1"), agree.Seal("p:v1:b:2")
	with := func(seal agree.Seal) func(schema.GroupResource) agree.Seal {
		return func(gr schema.GroupResource) agree.Seal {
			if gr == configMaps {
				return ""
			}
			return seal
		}
	}
	w := newWorld(t, []Resource{builtin(secrets), builtin(configMaps)})
	w.m.SetEncryption(Encryption{Config: "sha256:a", Seal: with(a)})
	w.m.ObserveCRD(w.setCRD("v1"))
	id := w.register()
	w.settle()
	w.expectOpen(secrets, agree.Encoding("v1").Sealed(a))
	w.expectOpen(widgets, agree.Encoding("example.com/v1").Sealed(a))
	w.expectOpen(configMaps, "v1")
	if got := w.lease(id).Annotations[storageversion.EncryptionConfigAnnotation]; got != "sha256:a" {
		t.Errorf("the Lease tells of configuration %q", got)
	}
	_, untouched := w.reports(configMaps)

	w.m.SetEncryption(Encryption{Config: "sha256:b", Keys: "{}", Seal: with(b)})
	inA, inB := agree.Encoding("v1").Sealed(a), agree.Encoding("v1").Sealed(b)
	// Until the report has changed, values may be written with the old key.
	w.expectOpen(secrets, inA)
	if _, err := w.m.Revision(t.Context(), secrets, inB); err == nil || errors.Is(err, agree.ErrSuperseded) {
		t.Errorf("with the new key, before its report: %v", err)
	}
	if err := w.m.Admit(Request{IsResource: true, Resource: secrets, Verb: "create"}); err != nil {
		t.Errorf("the gate closes: %v", err)
	}
	closed := false
	w.Before = func(call string) error {
		if call == "update status StorageVersion "+storageversion.Name(secrets) {
			// While the update is on its way, neither key may be written, but the gate refuses no
			// request.
			_, errA := w.m.Revision(t.Context(), secrets, inA)
			_, errB := w.m.Revision(t.Context(), secrets, inB)
			closed = errors.Is(errA, agree.ErrSuperseded) && errB != nil
			if err := errors.Join(w.m.Admit(Request{IsResource: true, Resource: secrets, Verb: "update"}), w.m.Ready()); err != nil {
				t.Errorf("while the report moves: %v", err)
			}
		}
		return nil
	}
	w.settle()
	if !closed {
		t.Error("a key had a permission while the report moved")
	}
	w.expectOpen(secrets, inB)
	w.expectOpen(widgets, agree.Encoding("example.com/v1").Sealed(b))
	for gr, old := range map[schema.GroupResource]agree.Encoding{secrets: inA, widgets: agree.Encoding("example.com/v1").Sealed(a)} {
		if _, err := w.m.Revision(t.Context(), gr, old); !errors.Is(err, agree.ErrSuperseded) {
			t.Errorf("%s with the old key: %v", gr, err)
		}
	}
	if _, revision := w.reports(configMaps); revision != untouched {
		t.Error("a resource whose key has not changed was reported anew")
	}
	must(t, w.m.Renew(t.Context()))
	if got := w.lease(id).Annotations[storageversion.EncryptionConfigAnnotation]; got != "sha256:b" {
		t.Errorf("the Lease tells of configuration %q", got)
	}
	if got := w.lease(id).Annotations[storageversion.EncryptionKeysAnnotation]; got != "{}" {
		t.Errorf("the Lease tells of keys %q", got)
	}
	// The report of a CRD that changes later has the new key, too.
	w.m.ObserveCRD(w.setCRD("v2"))
	w.settle()
	w.expectOpen(widgets, agree.Encoding("example.com/v2").Sealed(b))
}
