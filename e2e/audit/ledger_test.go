package audit_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	admissionv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	"k8s.io/api/apiserverinternal/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/testbed/ledger"
	"github.com/concord-dev/concord/testbed/load"
)

const (
	widgetKey = "/registry/e2e.concord.dev/widgets/default/a"
	group     = "e2e.concord.dev"
)

var (
	widgets  = schema.GroupResource{Group: group, Resource: "widgets"}
	policies = schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"}
	leases   = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	// judges are the resources whose objects describe others; no server reports them in these tests.
	judges = []schema.GroupResource{
		storageversion.Resource,
		{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
		{Group: "migration.k8s.io", Resource: "storagestates"},
	}
)

// store feeds a ledger with events at increasing revisions.
type store struct {
	t      *testing.T
	ledger *audit.Ledger
	at     int64
}

func newStore(t *testing.T) *store {
	return &store{t: t, ledger: audit.NewLedger("/registry", append(judges, leases)...)}
}

func (s *store) put(key string, value []byte) {
	s.at++
	s.ledger.Apply(ledger.Event{Revision: s.at, Key: key, Value: value})
}

func (s *store) putJSON(key string, object any) {
	raw, err := json.Marshal(object)
	if err != nil {
		s.t.Fatal(err)
	}
	s.put(key, raw)
}

func (s *store) remove(key string) {
	s.at++
	s.ledger.Apply(ledger.Event{Revision: s.at, Key: key})
}

// report writes the resource's StorageVersion. pairs are servers, each followed by its encoding.
func (s *store) report(gr schema.GroupResource, uid types.UID, epoch int64, pairs ...string) {
	sv := &v1alpha1.StorageVersion{TypeMeta: metav1.TypeMeta{APIVersion: "internal.apiserver.k8s.io/v1alpha1", Kind: "StorageVersion"}}
	sv.Name, sv.UID = storageversion.Name(gr), uid
	var reports []agree.Report
	for i := 0; i < len(pairs); i += 2 {
		reports = append(reports, agree.Report{Server: agree.ServerID(pairs[i]), Encoding: agree.Encoding(pairs[i+1]), Decodable: []string{pairs[i+1]}})
	}
	storageversion.SetReports(sv, reports, metav1.Time{})
	last := map[agree.Encoding]int64{}
	for _, r := range reports {
		last[r.Encoding] = epoch
	}
	storageversion.SetHistory(sv, agree.History{Epoch: epoch, Last: last})
	s.put("/registry/storageversions/"+sv.Name, protobufOf(s.t, sv))
}

func (s *store) state(gr schema.GroupResource, uid types.UID, epoch int64, stored ...string) {
	s.stateOfKeys(gr, uid, epoch, nil, stored...)
}

// stateOfKeys writes a StorageState that calls keys removable.
func (s *store) stateOfKeys(gr schema.GroupResource, uid types.UID, epoch int64, removable []string, stored ...string) {
	state := &migrationv1alpha1.StorageState{TypeMeta: metav1.TypeMeta{APIVersion: "migration.k8s.io/v1alpha1", Kind: "StorageState"}}
	state.Name = gr.String()
	state.Spec.Resource = migrationv1alpha1.GroupResource{Group: gr.Group, Resource: gr.Resource}
	state.Status.PersistedEncodings = stored
	state.Status.StorageVersionUID, state.Status.Epoch = uid, epoch
	if removable != nil {
		state.Status.Encryption = &migrationv1alpha1.StorageEncryption{RemovableKeys: removable}
	}
	s.putJSON("/registry/migration.k8s.io/storagestates/"+state.Name, state)
}

func (s *store) crd(storedVersions ...string) {
	crd := &apiextensionsv1.CustomResourceDefinition{TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}}
	crd.Name = "widgets." + group
	crd.Spec.Group, crd.Spec.Names.Plural = group, "widgets"
	crd.Status.StoredVersions = storedVersions
	s.putJSON("/registry/apiextensions.k8s.io/customresourcedefinitions/"+crd.Name, crd)
}

func (s *store) widget(key, version, write, text string) {
	s.putJSON(key, map[string]any{
		"apiVersion": group + "/" + version, "kind": "Widget",
		"metadata": map[string]any{"name": "a", "uid": "1", "annotations": map[string]any{load.WriteAnnotation: write}},
		"spec":     map[string]any{"text": text},
	})
}

// want expects that the violations since the last call begin like this after their key.
func (s *store) want(parts ...string) {
	s.t.Helper()
	found := s.ledger.Violations()
	if len(found) != len(parts) {
		s.t.Fatalf("violations are %q, want %d: %q", found, len(parts), parts)
	}
	for i, part := range parts {
		if !strings.Contains(found[i], part) {
			s.t.Errorf("violation %q does not contain %q", found[i], part)
		}
	}
}

func protobufOf(t *testing.T, object runtime.Object) []byte {
	t.Helper()
	raw, err := runtime.Encode(protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme), object)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestPutNeedsAReport(t *testing.T) {
	s := newStore(t)
	s.put("/registry/leases/kube-system/a", []byte(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"a"}}`))
	s.want()
	s.widget(widgetKey, "v1", "one/1", "x")
	s.want("I2: written in " + group + "/v1 without any StorageVersion")

	s = newStore(t)
	s.report(widgets, "u", 1, "apiserver-1", group+"/v1", "apiserver-2", group+"/v2")
	s.widget(widgetKey, "v1", "one/1", "x")
	s.widget(widgetKey, "v2", "two/2", "x")
	s.want()
	s.widget(widgetKey, "v3", "one/3", "x")
	s.want("I2: written in " + group + "/v3")
}

func TestPutInTheAgreement(t *testing.T) {
	s := newStore(t)
	s.report(widgets, "u", 1, "apiserver-1", group+"/v1", "apiserver-2", group+"/v2")
	s.widget(widgetKey, "v1", "one/1", "x")
	s.report(widgets, "u", 2, "apiserver-1", group+"/v2", "apiserver-2", group+"/v2")
	s.widget(widgetKey, "v2", "two/2", "x")
	s.want()
	s.widget(widgetKey, "v1", "one/3", "x")
	s.want("I2: written in " + group + "/v1, but the reports since revision 3")
}

func TestStrangers(t *testing.T) {
	s := newStore(t)
	ids := map[string][]agree.ServerID{"one": {"apiserver-1", "apiserver-1b"}, "two": {"apiserver-2"}}
	s.report(widgets, "u", 1, "apiserver-1", group+"/v1", "apiserver-2", group+"/v2")
	s.widget(widgetKey, "v1", "one/1", "x")
	s.widget(widgetKey, "v2", "two/2", "x")
	s.widget(widgetKey, "v2", "one/3", "x") // another server's encoding
	s.report(widgets, "u", 2, "apiserver-2", group+"/v2")
	s.widget(widgetKey, "v2", "one/4", "x") // buried
	s.report(widgets, "u", 2, "apiserver-2", group+"/v2", "apiserver-1b", group+"/v2")
	s.widget(widgetKey, "v2", "one/5", "x") // registered again
	s.want()
	var writes []string
	for _, stranger := range s.ledger.Strangers(ids) {
		_, rest, _ := strings.Cut(stranger, "write ")
		id, _, _ := strings.Cut(rest, " ")
		writes = append(writes, id)
	}
	if want := []string{"one/3", "one/4"}; !slices.Equal(writes, want) {
		t.Errorf("strangers are %v, want %v", writes, want)
	}
}

// TestSilentServer: a server whose Lease says that it does not report may write although no
// StorageVersion has a report of it, as long as the Lease exists. It may not write against an
// agreement of the other servers.
func TestSilentServer(t *testing.T) {
	s := newStore(t)
	lease := "/registry/leases/kube-system/apiserver-2"
	s.put(lease, []byte(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"apiserver-2","labels":{"`+storageversion.IdentityLabel+`":"`+storageversion.IdentityLabelValue+`"},"annotations":{"`+storageversion.APIAnnotation+`":"`+storageversion.APIOff+`"}}}`))
	s.widget(widgetKey, "v1", "two/1", "x")
	s.report(widgets, "u", 1, "apiserver-1", group+"/v1", "apiserver-2", string(agree.Unknown))
	s.widget(widgetKey, "v2", "two/2", "x")
	s.want()
	ids := map[string][]agree.ServerID{"one": {"apiserver-1"}, "two": {"apiserver-2"}}
	if found := s.ledger.Strangers(ids); len(found) != 0 {
		t.Errorf("strangers are %v", found)
	}
	s.report(widgets, "u", 2, "apiserver-1", group+"/v1")
	s.widget(widgetKey, "v2", "two/3", "x")
	s.want("I3: written in " + group + "/v2 while all servers agree on " + group + "/v1")
	s.report(widgets, "u", 3, "apiserver-1", group+"/v1", "apiserver-3", group+"/v3")
	s.remove(lease)
	s.widget(widgetKey, "v2", "two/4", "x")
	s.want("I3: written", "I2: written in "+group+"/v2, but the reports since")
	if found := s.ledger.Strangers(ids); len(found) != 1 || !strings.Contains(found[0], "two/4") {
		t.Errorf("strangers are %v, want the write after the Lease", found)
	}
}

func TestRewriteKeepsContentAndOrder(t *testing.T) {
	s := newStore(t)
	s.report(widgets, "u", 1, "apiserver-1", group+"/v1", "apiserver-2", group+"/v2")
	s.widget(widgetKey, "v1", "one/1", "x")
	s.report(widgets, "u", 2, "apiserver-2", group+"/v2")
	s.widget(widgetKey, "v2", "one/1", "x")
	s.want()
	if n := s.ledger.Rewrites(); n != 1 {
		t.Errorf("%d rewrites, want 1", n)
	}
	for range 2 {
		s.widget(widgetKey, "v2", "one/1", "x")
	}
	if n, needless := s.ledger.Rewrites(), s.ledger.NeedlessRewrites(); n != 3 || needless != 2 {
		t.Errorf("%d rewrites, %d of them needless, want 3 and 2", n, needless)
	}
	s.widget(widgetKey, "v2", "one/1", "changed")
	s.want("I5: the content of write one/1 changed without a client's write: .spec.text: x became changed")
	s.widget(widgetKey, "v2", "one/2", "y")
	s.widget(widgetKey, "v2", "one/1", "x")
	s.want("I5: the content", "I5: write one/2 was undone: the object is back at one/1")
}

// TestRewriteNeedsAnAgreement: a rewrite is allowed if all servers agree on its encoding; a
// report of it is not enough.
func TestRewriteNeedsAnAgreement(t *testing.T) {
	s := newStore(t)
	s.report(widgets, "u", 1, "apiserver-1", group+"/v1", "apiserver-2", group+"/v2")
	s.widget(widgetKey, "v1", "one/1", "x")
	s.widget(widgetKey, "v2", "one/2", "y") // a client's
	s.want()
	s.widget(widgetKey, "v1", "one/2", "y")
	s.want("3.6: rewritten from " + group + "/v2 to " + group + "/v1")
}

// TestDeletedStaysDeleted: the last write of a deleted object must not come back; a new write
// may create the object again.
func TestDeletedStaysDeleted(t *testing.T) {
	s := newStore(t)
	s.report(widgets, "u", 1, "apiserver-1", group+"/v1")
	s.widget(widgetKey, "v1", "one/1", "x")
	s.remove(widgetKey)
	s.widget(widgetKey, "v1", "one/2", "x")
	s.want()
	if got := s.ledger.Hashes(widgets); len(got) != 1 || got["/a"] == "" {
		t.Errorf("hashes are %v, want that of one object", got)
	}
	s.remove(widgetKey)
	s.widget(widgetKey, "v1", "one/1", "x")
	s.want("I5: write one/1 is back")
}

// TestHash: the hash is that of the content, whatever the encoding is, and whether the object
// is read or stored.
func TestHash(t *testing.T) {
	object := func(apiVersion, resourceVersion, text string) map[string]any {
		return map[string]any{"apiVersion": apiVersion, "kind": "Widget",
			"metadata": map[string]any{"name": "a", "resourceVersion": resourceVersion}, "spec": map[string]any{"text": text}}
	}
	one := object(group+"/v1", "1", "x")
	if a, b := load.Hash(one), load.Hash(object(group+"/v2", "2", "x")); a != b {
		t.Errorf("an object and its rewrite have the hashes %s and %s", a, b)
	}
	if a, b := load.Hash(one), load.Hash(object(group+"/v1", "1", "y")); a == b {
		t.Error("objects with other contents have the same hash")
	}
	if one["kind"] == nil || one["metadata"].(map[string]any)["resourceVersion"] != "1" {
		t.Errorf("hashing has changed the object: %v", one)
	}
}

// TestRewriteThatConverts: a conversion may move fields, but must not change their values.
func TestRewriteThatConverts(t *testing.T) {
	s := newStore(t)
	s.ledger.Normalize(widgets, func(fields map[string]any) {
		spec := fields["spec"].(map[string]any)
		if text, ok := spec["message"]; ok {
			fields["spec"] = map[string]any{"text": text}
		}
	})
	s.report(widgets, "u", 1, "apiserver-1", group+"/v1", "apiserver-2", group+"/v2")
	s.widget(widgetKey, "v1", "one/1", "x")
	converted := func(text string) map[string]any {
		return map[string]any{
			"apiVersion": group + "/v2", "kind": "Widget",
			"metadata": map[string]any{"name": "a", "uid": "1", "annotations": map[string]any{load.WriteAnnotation: "one/1"}},
			"spec":     map[string]any{"message": text},
		}
	}
	s.report(widgets, "u", 2, "apiserver-2", group+"/v2")
	s.putJSON(widgetKey, converted("x"))
	s.want()
	s.putJSON(widgetKey, converted("y"))
	s.want(".spec.text: x became y")
}

// TestRewriteOfProtobuf: a rewrite of a built-in resource is compared across the Go types of its versions.
func TestRewriteOfProtobuf(t *testing.T) {
	s := newStore(t)
	s.report(policies, "u", 1, "apiserver-1", "admissionregistration.k8s.io/v1beta1", "apiserver-2", "admissionregistration.k8s.io/v1")
	meta := metav1.ObjectMeta{Name: "p", UID: "1", Annotations: map[string]string{load.WriteAnnotation: "one/1"}}
	old := &admissionv1beta1.MutatingAdmissionPolicy{ObjectMeta: meta}
	old.APIVersion, old.Kind = "admissionregistration.k8s.io/v1beta1", "MutatingAdmissionPolicy"
	old.Spec.ReinvocationPolicy = "Never"
	key := "/registry/mutatingadmissionpolicies/p"
	s.put(key, protobufOf(t, old))
	same := &admissionv1.MutatingAdmissionPolicy{ObjectMeta: meta}
	same.APIVersion, same.Kind = "admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy"
	same.Spec.ReinvocationPolicy = "Never"
	s.report(policies, "u", 2, "apiserver-2", "admissionregistration.k8s.io/v1")
	s.put(key, protobufOf(t, same))
	s.want()
	if got := s.ledger.Encodings(policies); got["admissionregistration.k8s.io/v1"] != 1 || len(got) != 1 {
		t.Errorf("encodings are %v, want one object in v1", got)
	}
	same.Spec.ReinvocationPolicy = ""
	s.put(key, protobufOf(t, same))
	s.want(".spec.reinvocationPolicy: Never became")
}

func TestStoredSet(t *testing.T) {
	s := newStore(t)
	s.report(widgets, "u", 1, "apiserver-1", group+"/v1")
	s.state(widgets, "u", 1, group+"/v1")
	s.widget(widgetKey, "v1", "one/1", "x")
	s.report(widgets, "u", 2, "apiserver-1", group+"/v2")
	s.widget(widgetKey+"b", "v2", "one/2", "x") // the stored set is of another epoch
	s.want()
	s.state(widgets, "u", 2, group+"/v2", migrationv1alpha1.Unknown)
	s.want()
	s.state(widgets, "u", 2, group+"/v2")
	s.want("I1: objects of widgets.e2e.concord.dev are in " + group + "/v1")
}

// TestRemovableKeys: a StorageState for the present epoch must not call a key removable while
// an object of the resource is encrypted with it, whatever the stored set says.
func TestRemovableKeys(t *testing.T) {
	const sealA, sealB = "aescbc:v1:a:0a", "aescbc:v1:b:0b"
	v1, a, b := group+"/v1", group+"/v1+"+sealA, group+"/v1+"+sealB
	s := newStore(t)
	seal := sealA
	s.ledger.Open(func(key string, value []byte) ([]byte, agree.Seal, error) {
		if strings.HasPrefix(key, "/registry/"+group) {
			return value, agree.Seal(seal), nil
		}
		return value, "", nil
	})
	s.report(widgets, "u", 1, "apiserver-1", a, "apiserver-2", b, "apiserver-3", v1)
	s.widget(widgetKey, "v1", "one/1", "x") // encrypted with a
	seal = sealB
	s.widget(widgetKey+"b", "v1", "two/2", "x")
	s.stateOfKeys(widgets, "u", 1, []string{"identity"}, v1, a, b)
	s.stateOfKeys(policies, "u", 1, []string{sealA}, a) // another resource's
	s.stateOfKeys(widgets, "other", 1, []string{sealA}, b)
	s.stateOfKeys(widgets, "u", 0, []string{sealA}, b)
	s.want()
	early := "keys: objects of widgets.e2e.concord.dev are in " + a + ", but " + sealA + " is called removable at epoch 1"
	s.stateOfKeys(widgets, "u", 1, []string{sealA}, a, b)
	s.want(early)
	s.stateOfKeys(widgets, "u", 1, nil, a, b)
	before := s.at
	s.widget(widgetKey, "v1", "two/3", "x") // encrypted with b
	s.stateOfKeys(widgets, "u", 1, []string{sealA}, b)
	s.want(early)
	for revision, want := range map[int64]bool{before: true, before + 1: false} {
		if since := s.ledger.StoredSince(widgets, revision); since.Has(agree.Encoding(a)) != want || !since.Has(agree.Encoding(b)) {
			t.Errorf("since revision %d objects are in %v, the old key's among them: %v", revision, since, want)
		}
	}
	seal = ""
	s.stateOfKeys(widgets, "u", 1, []string{"identity"}, b, v1)
	s.widget(widgetKey, "v1", "three/4", "x") // brought back by a write
	s.want(early, "keys: objects of widgets.e2e.concord.dev are in "+v1+", but identity is called removable")
}

func TestStoredVersions(t *testing.T) {
	s := newStore(t)
	s.report(widgets, "u", 1, "apiserver-1", group+"/v1", "apiserver-2", group+"/v2")
	s.crd("v1", "v2")
	s.widget(widgetKey, "v1", "one/1", "x")
	s.want()
	s.crd("v2")
	s.want("I8: objects of")
	s.crd("v2") // the same is not told again
	s.want("I8: objects of")
	s.crd("v1")
	s.crd("v2")
	s.want("I8: objects of", "I8: objects of")
}

func TestEpochNeverGoesBack(t *testing.T) {
	s := newStore(t)
	s.report(widgets, "u", 2, "apiserver-1", group+"/v1")
	s.report(widgets, "other", 1, "apiserver-1", group+"/v1")
	s.want()
	s.report(widgets, "other", 0, "apiserver-1", group+"/v1")
	s.want("goes back from 1 to 0")
}

func TestUnsettled(t *testing.T) {
	s := newStore(t)
	s.report(widgets, "u", 1, "apiserver-1", group+"/v1", "apiserver-2", group+"/v2")
	s.crd("v1", "v2")
	step := func(want string) {
		t.Helper()
		found := slices.DeleteFunc(s.ledger.Unsettled(), func(line string) bool { return !strings.HasPrefix(line, widgets.String()+":") })
		if want == "" && len(found) == 0 {
			return
		}
		if len(found) != 1 || !strings.Contains(found[0], want) {
			t.Errorf("unsettled: %q, want %q", found, want)
		}
	}
	step("servers report")
	s.report(widgets, "u", 2, "apiserver-1", group+"/v2")
	s.state(widgets, "u", 1, group+"/v2")
	step("for u/1, agreed on " + group + "/v2 at u/2")
	s.state(widgets, "u", 2, group+"/v1", group+"/v2")
	step("stored set [" + group + "/v1," + group + "/v2] for u/2, agreed on " + group + "/v2 at u/2")
	s.state(widgets, "u", 2, group+"/v2")
	step("storedVersions [v1 v2], stored in v2")
	s.crd("v2")
	step("")
	s.remove("/registry/storageversions/" + storageversion.Name(widgets))
	step("")
	s.want()
}

func TestUnreadableValues(t *testing.T) {
	s := newStore(t)
	s.ledger.Ignore(widgetKey + "ignored")
	s.put(widgetKey+"ignored", []byte("garbage"))
	s.put("/elsewhere", []byte("garbage"))
	s.want()
	s.put(widgetKey, []byte("garbage"))
	s.want("no readable envelope")
}
