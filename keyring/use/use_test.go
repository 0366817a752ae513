package use

import (
	"encoding/json"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kmstypes "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2/v2"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/stored/storedtest"
)

var (
	secretsResource = schema.GroupResource{Resource: "secrets"}
	widgetsResource = schema.GroupResource{Group: "example.com", Resource: "widgets"}
)

// lease is an identity Lease that lists these keys.
func lease(t *testing.T, keys string) string {
	t.Helper()
	l := &coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}, ObjectMeta: metav1.ObjectMeta{
		Name: "s1", Labels: map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue}, Annotations: map[string]string{storageversion.EncryptionKeysAnnotation: keys},
	}}
	raw, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestIdentityFirst: while a server's configuration has identity first, identity is no removable key, also if no resource
// was ever encrypted.
func TestIdentityFirst(t *testing.T) {
	etcd := storedtest.Start(t)
	v := storedtest.Agreed(t)
	v["leases/kube-system/s1"] = lease(t, `{"*.*":["","aescbc:v1:a:1"]}`)
	report, err := Read(t.Context(), migratestore.NewEtcd(etcd.Client), etcd.Fill(t, v))
	if err != nil || len(report.Keys) != 1 || report.Keys[0].Name != "identity" || report.Keys[0].Removable {
		t.Errorf("got %+v, %v", report, err)
	}
}

// TestJudgeKeys: a key is removable only if no stored value has it, no server reports it or has it first, and all
// servers report.
func TestJudgeKeys(t *testing.T) {
	etcd := storedtest.Start(t)
	a, b := agree.Encoding("v1").Sealed("aescbc:v1:a:1"), agree.Encoding("v1").Sealed("aescbc:v1:b:2")
	history := agree.History{Epoch: 2, Last: map[agree.Encoding]int64{a: 1, b: 2}}
	for name, test := range map[string]struct {
		add  map[string]string
		want string // of key a
	}{
		"no value":                        {nil, ""},
		"a value":                         {map[string]string{"secrets/default/x": "k8s:enc:aescbc:v1:a:xx"}, "1 value still uses it: 1 of secrets"},
		"another's":                       {map[string]string{"configmaps/default/x": "k8s:enc:aescbc:v1:a:xx"}, "1 value still uses it: 1 of configmaps"},
		"an unnamed key":                  {map[string]string{"configmaps/default/x": "k8s:enc:kms:v1:my kms:xx"}, "nobody can tell: 1 of configmaps are encrypted and do not tell with what"},
		"first for what is not there yet": {map[string]string{"leases/kube-system/s1": lease(t, `{"*.example.org":["aescbc:v1:a:1",""]}`)}, "no value uses it, and 1 server writes with it"},
		"behind another key":              {map[string]string{"leases/kube-system/s1": lease(t, `{"*.example.org":["aescbc:v1:b:2","aescbc:v1:a:1"]}`)}, ""},
		"damaged Lease":                   {map[string]string{"leases/kube-system/s1": lease(t, `{`)}, "nobody can tell: the annotation concord.dev/encryption-keys of identity Lease s1 cannot be read: unexpected end of JSON input"},
		"damaged report":                  {map[string]string{storedtest.VersionKey(widgetsResource): "nonsense"}, "nobody can tell: the StorageVersion of widgets.example.com cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			v := storedtest.Agreed(t)
			v[storedtest.VersionKey(secretsResource)] = storedtest.Version(t, secretsResource, history)
			v["secrets/default/y"] = "k8s:enc:aescbc:v1:b:xx"
			for key, text := range test.add {
				v[key] = text
			}
			report, err := Read(t.Context(), migratestore.NewEtcd(etcd.Client), etcd.Fill(t, v))
			report.Keys = slices.DeleteFunc(report.Keys, func(u Key) bool { return u.Name == migratestore.Unnamed && !u.Removable })
			if err != nil || len(report.Keys) != 2 {
				t.Fatalf("got %+v, %v", report, err)
			}
			if got := report.Keys[0]; got.Name != "aescbc:v1:a" || got.Removable != (test.want == "") || test.want != "" && got.Reason != test.want {
				t.Errorf("got %+v, want %q", got, test.want)
			}
			if report.Keys[1].Removable {
				t.Errorf("got %+v", report.Keys[1])
			}
		})
	}
}

// TestJudgeKMSKeys: each key of a KMS plugin is judged by itself. None is removable while a server
// does not know which of them it uses.
func TestJudgeKMSKeys(t *testing.T) {
	etcd := storedtest.Start(t)
	sealed := func(id string) string {
		raw, err := proto.Marshal(&kmstypes.EncryptedObject{EncryptedData: []byte("x"), KeyID: id})
		if err != nil {
			t.Fatal(err)
		}
		return "k8s:enc:kms:v2:p:" + string(raw)
	}
	of := func(id string) agree.Encoding {
		name, _ := migratestore.Encryption([]byte(sealed(id)))
		return agree.Encoding("v1").Sealed(agree.Seal(name))
	}
	old, now, unknown := of("old"), of("now"), agree.Encoding("v1").Sealed("kms:v2:p:"+agree.UnknownKey)
	history := agree.History{Epoch: 3, Last: map[agree.Encoding]int64{old: 1, now: 3, unknown: 2}}
	report := func(server agree.ServerID, e agree.Encoding) agree.Report {
		return agree.Report{Server: server, Encoding: e, Decodable: []string{"v1"}}
	}
	const key = "secrets/default/x"
	for name, test := range map[string]struct {
		value   string
		reports []agree.Report
		want    string
	}{
		"no value":       {sealed("now"), []agree.Report{report("a", now), report("b", now)}, ""},
		"a value":        {sealed("old"), []agree.Report{report("a", now), report("b", now)}, "1 value still uses it: 1 of secrets"},
		"a writer":       {sealed("now"), []agree.Report{report("a", now), report("b", old)}, "no value uses it, and 1 server writes with it"},
		"no answer":      {sealed("now"), []agree.Report{report("a", now), report("b", unknown)}, "nobody can tell: b has not learned from its KMS plugin with which key it encrypts secrets"},
		"no answer, all": {sealed("now"), []agree.Report{report("a", unknown), report("b", unknown)}, "nobody can tell: a has not learned from its KMS plugin with which key it encrypts secrets"},
	} {
		t.Run(name, func(t *testing.T) {
			v := storedtest.Agreed(t)
			v[storedtest.VersionKey(secretsResource)] = storedtest.Version(t, secretsResource, history, test.reports...)
			v[key] = test.value
			report, err := Read(t.Context(), migratestore.NewEtcd(etcd.Client), etcd.Fill(t, v))
			if err != nil || len(report.Keys) != 2 {
				t.Fatalf("got %+v, %v", report, err)
			}
			i := slices.IndexFunc(report.Keys, func(k Key) bool { return k.Name == string(old.Seal()) })
			if i < 0 || report.Keys[i].Removable != (test.want == "") || test.want != "" && report.Keys[i].Reason != test.want {
				t.Errorf("got %+v, want %q", report.Keys, test.want)
			}
			if now := report.Keys[1-i]; now.Removable {
				t.Errorf("got %+v", now)
			}
		})
	}
}
