package keyring

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/stored/storedtest"
)

// A key is not put first before every server that lives reads it.
func TestUnreadableByOthers(t *testing.T) {
	etcd := storedtest.Start(t)
	a := keysFrom(t, encryptionYAML("secrets: aescbc a, identity", "*.example.com: secretbox b"))
	lease := func(name, reads string) string {
		l := &coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}}
		l.Name, l.Namespace = name, storageversion.IdentityNamespace
		l.Labels = map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue}
		if reads != "" {
			l.Annotations = map[string]string{storageversion.EncryptionKeysAnnotation: reads}
		}
		l.Spec.LeaseDurationSeconds = new(int32)
		*l.Spec.LeaseDurationSeconds = 1
		raw, err := json.Marshal(l)
		must(t, err)
		return string(raw)
	}
	behind := keysFrom(t, encryptionYAML("secrets: identity, aescbc a", "widgets.example.com: identity, secretbox b", "*.example.com: secretbox b"))
	all, apart := keysFrom(t, encryptionYAML("*.*: aescbc a, identity")), keysFrom(t, encryptionYAML("widgets.example.com: identity", "*.*: aescbc a, identity"))
	for name, test := range map[string]struct {
		keys    *Keys
		reads   string
		refused string
	}{
		"the same":                       {a, a.reading(), ""},
		"behind another":                 {a, behind.reading(), ""},
		"without":                        {a, "", "secrets that are encrypted with aescbc:v1:a"},
		"another secret":                 {a, strings.ReplaceAll(a.reading(), string(a.Writes(secretsResource)), "aescbc:v1:a:0"), "secrets that are encrypted with aescbc:v1:a"},
		"unreadable":                     {a, "{", "s1 cannot read "},
		"plain":                          {&Keys{}, "", ""},
		"plain without":                  {&Keys{}, keysFrom(t, encryptionYAML("secrets: aescbc a")).reading(), "secrets that are not encrypted"},
		"a custom resource apart":        {all, apart.reading(), "widgets.example.com that are encrypted with aescbc:v1:a"},
		"a custom resource of its group": {all, keysFrom(t, encryptionYAML("*.example.com: identity", "*.*: aescbc a, identity")).reading(), "*.example.com that are encrypted with aescbc:v1:a"},
		"a custom resource both apart":   {apart, all.reading(), ""},
		"a plugin's next key":            {&Keys{providers: map[schema.GroupResource][]*provider{secretsResource: {{seal: "kms:v2:p:1"}}}}, `{"secrets":["kms:v2:p:"]}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			prefix := etcd.Fill(t, map[string]string{"leases/kube-system/s1": lease("s1", test.reads), "leases/kube-system/other": `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease"}`})
			known := storedtest.Target(t).Resources()
			check := func(self agree.ServerID, poll time.Duration) error {
				return test.keys.CheckOthers(t.Context(), migratestore.NewEtcd(etcd.Client), stored.Layout{Prefix: prefix}, known, self, poll)
			}
			if err := check("", 0); (err != nil) != (test.refused != "") || err != nil && !strings.Contains(err.Error(), "s1 cannot read") || err != nil && !strings.Contains(err.Error(), test.refused) {
				t.Errorf("got %v, want %q", err, test.refused)
			}
			if err := check("s1", 0); err != nil {
				t.Errorf("it is its own: %v", err)
			}
			// A server that does not renew its Lease while that lasts is dead.
			if err := check("", 20*time.Millisecond); err != nil {
				t.Errorf("a Lease that nobody renews: %v", err)
			}
		})
	}
}
