package join

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/member/hosting"
)

// TestServedMigrations: of several versions of storagemigration.k8s.io the best one that is enabled is mirrored.
func TestServedMigrations(t *testing.T) {
	t.Parallel()
	const group = "/apis/storagemigration.k8s.io/"
	for _, test := range []struct {
		name  string
		paths []string
		off   string
		want  string
	}{
		{"nothing is served", []string{"/apis", "/api/v1", "/apis/apps/v1"}, "", ""},
		{"the group alone", []string{"/apis/storagemigration.k8s.io"}, "", ""},
		{"one", []string{"/apis/apps/v1", group + "v1alpha1"}, "", "v1alpha1"},
		{"the newest first", []string{group + "v1", group + "v1beta1"}, "", "v1"},
		{"the newest last", []string{group + "v1alpha1", group + "v1beta1", group + "v1"}, "", "v1"},
		{"a beta before an alpha of a higher number", []string{group + "v2alpha1", group + "v1beta1"}, "", "v1beta1"},
		{"the newest is off", []string{group + "v1", group + "v1beta1"}, "v1", "v1beta1"},
		{"the only one is off", []string{group + "v1"}, "v1", ""},
		{"another group's", []string{"/apis/storagemigration.k8s.io.example.com/v1", "/apis/migration.k8s.io/v1alpha1"}, "", ""},
	} {
		got, ok := servedMigrations(test.paths, func(gvr schema.GroupVersionResource) bool {
			if gvr.Group != "storagemigration.k8s.io" || gvr.Resource != "storageversionmigrations" {
				t.Errorf("%s: it is asked whether %s is on", test.name, gvr)
			}
			return gvr.Version != test.off
		})
		if got.Version != test.want || ok != (test.want != "") || ok && got.Group != "storagemigration.k8s.io" {
			t.Errorf("%s: %s, %t", test.name, got, ok)
		}
	}
}

// TestNewLeading: servers that report nothing, and aggregated servers, have elections of their own and run only some of
// the controllers, so that they do not keep the protocol's controllers from running.
func TestNewLeading(t *testing.T) {
	made, err := newClients(Config{Loopback: &rest.Config{Host: "https://127.0.0.1:1"}, RBAC: true, Emulation: version.MustParse("1.2")})
	must(t, err)
	for _, test := range []struct {
		name           string
		silent         bool
		hosting        *hosting.Host
		lock           string
		skew, protocol bool
	}{
		{"a cluster's own server", false, nil, "concord-controllers", true, true},
		{"one that reports nothing", true, nil, "concord-controllers-without-storage-versions", true, false},
		{"an aggregated one", false, &hosting.Host{}, "concord-aggregated", false, false},
	} {
		l, err := newLeading(Config{Address: "me", Silent: test.silent}, made, nil, test.hosting, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if l.election.Lock != test.lock || !strings.HasPrefix(l.election.Identity, "me_") || l.election.Client != l.elector {
			t.Errorf("%s runs for %s as %s", test.name, l.election.Lock, l.election.Identity)
		}
		if (l.skew != nil) != test.skew || (l.trigger != nil) != test.protocol || (l.tally != nil) != test.protocol || l.mirror != nil {
			t.Errorf("%s: skew %v, trigger %v, tally %v, mirror %v", test.name, l.skew, l.trigger, l.tally, l.mirror)
		}
	}
}
