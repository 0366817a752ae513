package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/cluster"
	storedsets "github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/testbed/load"
)

const apiOff = "--feature-gates=StorageVersionAPI=false"

// expectNoStorageVersions expects that a server does not serve StorageVersions, and runs
// nothing that reads them.
func expectNoStorageVersions(t *testing.T, s *cluster.Server) {
	t.Helper()
	ctx := t.Context()
	for _, path := range []string{"/apis/internal.apiserver.k8s.io/v1alpha1", "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions"} {
		if status, body, err := s.Get(ctx, path); err != nil || status != http.StatusNotFound {
			t.Errorf("%s: %d %s, %v, want 404", path, status, body, err)
		}
	}
	groups, err := s.Kube().Discovery().ServerGroups() // by aggregated discovery
	must(t, err)
	for _, g := range groups.Groups {
		if g.Name == storageversion.Resource.Group {
			t.Errorf("discovery shows %+v", g)
		}
	}
	if status, body, err := s.Get(ctx, "/readyz?verbose"); err != nil || status != http.StatusOK || strings.Contains(body, "storage-version") || !strings.Contains(body, "[+]identity ok") {
		t.Errorf("/readyz: %d %s, %v", status, body, err)
	}
	id, ok := s.ID()
	if !ok {
		t.Fatalf("%s has no identity", s.Name)
	}
	lease, err := s.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace).Get(ctx, string(id), metav1.GetOptions{})
	must(t, err)
	if lease.Annotations[storageversion.APIAnnotation] != storageversion.APIOff {
		t.Errorf("the Lease says %v", lease.Annotations)
	}
	if status, body, err := s.Get(ctx, "/metrics"); err != nil || status != http.StatusOK || !strings.Contains(body, `kubernetes_feature_enabled{name="StorageVersionAPI",stage="BETA"} 0`) {
		t.Errorf("/metrics: %d, %v, without the gate", status, err)
	}
}

// keys lists etcd's keys under the prefix.
func keys(t *testing.T, c *cluster.Cluster, under string) (found []string) {
	t.Helper()
	response, err := c.Raw.Get(t.Context(), storedsets.DefaultPrefix+"/"+under, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	must(t, err)
	for _, kv := range response.Kvs {
		found = append(found, string(kv.Key))
	}
	return found
}

// testCompatibilityVersionsOff: without the gate CompatibilityVersions, /version is as it was before KEP-4330.
func testCompatibilityVersionsOff(t *testing.T) {
	c := cluster.New(t)
	servers := c.Start(cluster.Options{Args: "--feature-gates=CompatibilityVersions=false"}, "one")
	servers = append(servers, c.Start(cluster.Options{}, "two")...)
	for i, s := range servers {
		_, body, err := s.Get(t.Context(), "/version")
		must(t, err)
		var info version.Info
		must(t, json.Unmarshal([]byte(body), &info))
		if on := i == 1; info.Minor != "37" || strings.Contains(body, "emulation") != on || strings.Contains(body, "minCompatibility") != on {
			t.Errorf("%s: %s", s.Name, body)
		}
	}
	c.WaitSettled()
	c.Check()
}

// testGateOffAndOn: the gate is on, off and on again, on one etcd and with writes all the time.
// While it is off the release changes, so that what was known of the stored encodings is wrong
// when it is on again: the stored set starts from Unknown, and becomes right.
func testGateOffAndOn(t *testing.T) {
	c := cluster.New(t)
	s := c.Start(cluster.Options{Emulation: "1.37"}, "one")[0]
	createWidgets(t, "v1", s)
	fill(t, s, load.Policies(), stored)
	c.WaitSettled()
	wantEncoding(t, c, policies, policyV1, stored)
	writes := c.Load(load.Config{Resources: everything(), Pause: 20 * time.Millisecond}, s)
	states := len(keys(t, c, "migration.k8s.io/storagestates/"))

	s.Restart(cluster.Options{Emulation: "1.36", Args: apiOff})
	expectNoStorageVersions(t, s)
	if found := keys(t, c, "storageversions/"); len(found) > 0 {
		t.Errorf("there still are %v", found)
	}
	if found := keys(t, c, "migration.k8s.io/storagestates/"); len(found) != states {
		t.Errorf("there are %d StorageStates, there were %d", len(found), states)
	}
	cluster.Eventually(t, time.Minute, "the server takes writes", acked(writes, []*cluster.Server{s}))
	storeWidgetsIn(t, s, "v2")
	cluster.Eventually(t, time.Minute, "objects are stored in every encoding", func(context.Context) error {
		if p, w := c.Encodings(policies), c.Encodings(widgets); p[policyV1] == 0 || p[policyV1beta1] == 0 || w[widgetEncoding("v2")] == 0 {
			return fmt.Errorf("policies %v, widgets %v", p, w)
		}
		return nil
	})
	off := c.Revision()

	s.Restart(cluster.Options{Emulation: "1.37"})
	t.Logf("settled %v after the gate is on again", c.WaitSettled().Round(time.Millisecond))
	expectUnknownSince(t, c, off, policies)
	expectUnknownSince(t, c, off, widgets)
	c.CheckLoad(writes.Stop(), load.BrokenTo("one"))
	wantEncoding(t, c, policies, policyV1, stored)
	wantEncoding(t, c, widgets, widgetEncoding("v2"), 1)
	expectCensus(t, c)

	s.Kill() // its Lease stays
	s.Start()
	s.WaitReady()
	c.WaitSettled()
	c.Check()
}

// expectUnknownSince reads the StorageState's history in etcd: the stored set is one encoding
// now, and contained Unknown before.
func expectUnknownSince(t *testing.T, c *cluster.Cluster, since int64, gr schema.GroupResource) {
	t.Helper()
	key := storedsets.DefaultPrefix + "/migration.k8s.io/storagestates/" + migrationv1alpha1.StateName(gr)
	var seen [][]string
	for revision := int64(0); ; {
		response, err := c.Raw.Get(t.Context(), key, clientv3.WithRev(revision))
		must(t, err)
		if len(response.Kvs) == 0 || response.Kvs[0].ModRevision <= since {
			break
		}
		var state migrationv1alpha1.StorageState
		must(t, json.Unmarshal(response.Kvs[0].Value, &state))
		seen = append(seen, state.Status.PersistedEncodings)
		revision = response.Kvs[0].ModRevision - 1
	}
	if len(seen) == 0 || len(seen[0]) != 1 || !slices.ContainsFunc(seen, func(s []string) bool { return slices.Contains(s, migrationv1alpha1.Unknown) }) {
		t.Errorf("the stored set of %s was, newest first, %v", gr, seen)
	}
}

// expectCensus expects that, as counted in etcd, every resource is stored in one encoding.
func expectCensus(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	encodings := map[string]agree.Encoding{}
	for _, row := range census(t, c) {
		if other, ok := encodings[row.Resource]; ok {
			t.Errorf("%s is stored in %s and %s", row.Resource, other, row.Encoding)
		}
		encodings[row.Resource] = row.Encoding
	}
}

// testOneServerOff: one of three servers has the gate off and emulates another release. While
// it runs, no resource has an agreement, nothing is migrated, and no write is lost. When it has
// gone, stopped or killed, everything is migrated.
func testOneServerOff(t *testing.T) {
	c := cluster.New(t)
	servers := c.Start(cluster.Options{}, "one", "two", "three")
	off, others := servers[1], []*cluster.Server{servers[0], servers[2]}
	createWidgets(t, "v1", servers...)
	fill(t, servers[0], load.Policies(), stored)
	fill(t, servers[0], widgetsV1, stored)
	c.WaitSettled()
	writes := c.Load(load.Config{Resources: everything(), Pause: 20 * time.Millisecond}, servers...)
	for i, end := range []func(){off.Terminate, off.Kill} {
		to := fmt.Sprint("v", 2-i%2)
		storeWidgetsIn(t, servers[0], to) // a migration may be under way
		if i == 0 {
			off.Restart(cluster.Options{Emulation: "1.36", Args: apiOff})
		} else {
			off.Start()
			off.WaitReady()
		}
		expectNoStorageVersions(t, off)
		c.WaitReporters(graceful, servers...)
		before := off.IDs()
		cluster.Eventually(t, time.Minute, "every server takes writes", acked(writes, servers))
		cluster.Eventually(t, time.Minute, "it writes what the others do not", func(context.Context) error {
			if found := c.Encodings(policies); found[policyV1beta1] == 0 || found[policyV1] == 0 {
				return fmt.Errorf("policies are stored as %v", found)
			}
			return nil
		})
		expectNoAgreement(t, c, len(others))
		expectNoMigration(t, others[0])
		expectStorageVersionsListed(t, others...)
		if after := off.IDs(); len(after) != len(before) {
			t.Errorf("it registered anew while nothing was wrong: %v, %v", before, after)
		}
		end()
		t.Logf("settled %v after its end", c.WaitSettled().Round(time.Millisecond))
		wantEncoding(t, c, policies, policyV1, stored)
		wantEncoding(t, c, widgets, widgetEncoding(to), stored)
		c.WaitReporters(graceful, others...)
	}
	c.CheckLoad(writes.Stop(), load.BrokenTo("two"))
	c.WaitSettled()
	expectCensus(t, c)
	c.Check()
}

// testOffServerPaused: a server with the gate off is paused for longer than its Lease, and the
// others agree and migrate. When it is resumed, the others do not know it any more, and it
// takes no write before they all know it again.
func testOffServerPaused(t *testing.T) {
	c := cluster.New(t)
	off := c.Start(cluster.Options{Emulation: "1.36", Args: apiOff}, "off")[0]
	other := c.Start(cluster.Options{}, "one")[0]
	fill(t, off, load.Policies(), stored)
	wantEncoding(t, c, policies, policyV1beta1, stored)
	expectNoAgreement(t, c, 1)
	off.Pause()
	t.Logf("settled %v after the pause began, with Leases of %v", c.WaitSettled().Round(time.Millisecond), cluster.LeaseDuration)
	wantEncoding(t, c, policies, policyV1, stored)
	before := len(off.IDs())
	off.Resume()
	cluster.Eventually(t, restored, "it registers anew", func(context.Context) error {
		if n := len(off.IDs()); n == before {
			return fmt.Errorf("it has registered %d times", n)
		}
		return nil
	})
	off.WaitReady()
	writes := c.Load(load.Config{Resources: []load.Resource{load.Policies()}, Prefix: "later"}, off, other)
	cluster.Eventually(t, time.Minute, "both take writes", acked(writes, []*cluster.Server{off, other}))
	c.WaitReporters(graceful, off, other)
	expectNoAgreement(t, c, 1)
	off.Terminate()
	c.WaitSettled()
	c.CheckLoad(writes.Stop(), load.BrokenTo("off"))
	wantEncoding(t, c, policies, policyV1, stored)
	expectCensus(t, c)
	c.Check()
}

// expectStorageVersionsListed expects that the servers which serve StorageVersions have them in
// discovery, also if another server that started beside them does not serve them.
func expectStorageVersionsListed(t *testing.T, servers ...*cluster.Server) {
	t.Helper()
	for _, s := range servers {
		cluster.Eventually(t, restored, s.Name+" lists the API", func(context.Context) error {
			groups, err := s.Kube().Discovery().ServerGroups() // by aggregated discovery
			if err == nil && !slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == storageversion.Resource.Group }) {
				err = fmt.Errorf("the groups are %v", groups.Groups)
			}
			return err
		})
	}
}

// expectNoAgreement expects that no resource has an agreement, and that this many servers
// report beside the one that does not.
func expectNoAgreement(t *testing.T, c *cluster.Cluster, reporting int) {
	t.Helper()
	reported := keys(t, c, "storageversions/")
	for _, key := range reported {
		gr, err := storageversion.GroupResource(key[strings.LastIndex(key, "/")+1:])
		must(t, err)
		if standing := c.Standing(gr); standing.Common() != "" {
			t.Errorf("%s: servers agree on %s: %v", gr, standing.Common(), c.Reports(gr))
		}
		if reports := c.Reports(gr); len(agree.Silent(reports)) != 1 || len(agree.Made(reports)) == 0 || len(agree.Made(reports)) > reporting {
			t.Errorf("%s: reports are %v", gr, reports)
		}
	}
	if len(reported) == 0 {
		t.Error("nobody reports anything")
	}
}

// expectNoMigration waits until no migration is live.
func expectNoMigration(t *testing.T, s *cluster.Server) {
	t.Helper()
	cluster.Eventually(t, graceful, "no migration is live", func(ctx context.Context) error {
		var list migrationv1alpha1.StorageVersionMigrationList
		if err := s.Objects().List(ctx, &list); err != nil {
			return err
		}
		for i := range list.Items {
			if !migrationv1alpha1.Final(&list.Items[i]) {
				return fmt.Errorf("%s: %+v", list.Items[i].Name, list.Items[i].Status)
			}
		}
		return nil
	})
}
