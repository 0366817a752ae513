package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	testbed "github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

// migrating is a cluster that migrates a resource while clients update, delete and create its
// objects without end, and a test injects faults.
type migrating struct {
	t        *testing.T
	c        *cluster.Cluster
	servers  []*cluster.Server
	resource load.Resource
	churn    *load.Churn
	random   *rand.Rand
	// version is the version in which parcels are stored; tests of other resources do not set it.
	version string
}

// seeded returns the test's random numbers, and logs how to have the same again.
func seeded(t *testing.T) (*rand.Rand, uint64) {
	t.Helper()
	start := *seed
	if start == 0 {
		start = rand.Uint64()
	}
	t.Logf("again: go test ./e2e -run %s -args -slow -seed %d", t.Name(), start)
	return rand.New(rand.NewPCG(start, 0)), start
}

// newMigrating creates objects of the resource and starts clients that change them. The servers
// already run, and already serve the resource.
func newMigrating(t *testing.T, c *cluster.Cluster, resource load.Resource, objects int, servers ...*cluster.Server) *migrating {
	t.Helper()
	return newMigratingUnder(t, c, resource, objects, load.ChurnConfig{}, servers...)
}

// newMigratingUnder is newMigrating with a configuration of the clients.
func newMigratingUnder(t *testing.T, c *cluster.Cluster, resource load.Resource, objects int, clients load.ChurnConfig, servers ...*cluster.Server) *migrating {
	t.Helper()
	m := &migrating{t: t, c: c, servers: servers, resource: resource}
	m.random, clients.Seed = seeded(t)
	fill(t, servers[0], resource, objects)
	c.WaitSettled()
	m.loose(clients)
	return m
}

// loose starts the clients that change the objects.
func (m *migrating) loose(config load.ChurnConfig) {
	m.t.Helper()
	config.Resource = m.resource
	for _, s := range m.servers {
		config.Endpoints = append(config.Endpoints, load.Endpoint{Name: s.Name, Client: s.Dynamic()})
	}
	// A watch cache of many objects takes a while to fill, in which they cannot be listed.
	cluster.Eventually(m.t, cluster.SettleTimeout, "clients list the objects", func(ctx context.Context) (err error) {
		m.churn, err = load.StartChurn(ctx, config)
		return err
	})
	m.t.Cleanup(func() { m.churn.Stop() })
}

// rewrites counts the rewrites that have reached etcd.
func (m *migrating) rewrites() (n int) {
	m.c.Audit.With(func(l *audit.Ledger) { n = l.Rewrites() })
	return n
}

// awaitRewrites waits until there are this many more rewrites.
func (m *migrating) awaitRewrites(more int) {
	m.t.Helper()
	want := m.rewrites() + more
	cluster.Eventually(m.t, cluster.SettleTimeout, fmt.Sprintf("%d more objects are rewritten", more), func(context.Context) error {
		if have := m.rewrites(); have < want {
			return fmt.Errorf("%d to go", want-have)
		}
		return nil
	})
}

// awaitChurn waits until clients have made this many more writes.
func (m *migrating) awaitChurn(more int) {
	m.t.Helper()
	want := m.churn.Result().Writes() + more
	cluster.Eventually(m.t, cluster.SettleTimeout, fmt.Sprintf("clients make %d more writes", more), func(context.Context) error {
		if have := m.churn.Result().Writes(); have < want {
			return fmt.Errorf("%d to go", want-have)
		}
		return nil
	})
}

// underWay fails the test unless there are objects left to migrate to the version.
func (m *migrating) underWay(to string) {
	m.t.Helper()
	gr := m.resource.GroupResource()
	found := m.c.Encodings(gr)
	if len(found) < 2 {
		m.t.Errorf("objects of %s are stored as %v: the migration to %s is not under way, and nothing was tested", gr, found, to)
	}
}

// claimer waits until one of the running servers, except those in but, has claimed the live
// migration of the resource, and returns this server.
func (m *migrating) claimer(but ...*cluster.Server) (claimer *cluster.Server) {
	m.t.Helper()
	cluster.Eventually(m.t, cluster.SettleTimeout, "a server claims the migration", func(ctx context.Context) (err error) {
		claimer, err = m.findClaimer(ctx, but...)
		return err
	})
	return claimer
}

// findClaimer returns the running server, except those in but, that has claimed the live migration of the resource.
func (m *migrating) findClaimer(ctx context.Context, but ...*cluster.Server) (*cluster.Server, error) {
	asked := errors.New("no server runs that can be asked")
	for _, s := range m.servers {
		if s.Ended() || slices.Contains(but, s) {
			continue
		}
		var all []*migrationv1alpha1.StorageVersionMigration
		if all, asked = migrationsOf(ctx, s, m.resource.GroupResource()); asked != nil {
			continue
		}
		for _, live := range all {
			if migrationv1alpha1.Final(live) {
				continue
			}
			by := live.Annotations[migrationv1alpha1.ClaimedByAnnotation]
			for _, candidate := range m.servers {
				if id, ok := candidate.ID(); ok && string(id) == by && !candidate.Ended() && !slices.Contains(but, candidate) {
					return candidate, nil
				}
			}
			return nil, fmt.Errorf("%s is claimed by %q", live.Name, by)
		}
		return nil, errors.New("there is no live migration")
	}
	return nil, asked
}

// migrationsOf returns the migrations of a resource.
func migrationsOf(ctx context.Context, s *cluster.Server, gr schema.GroupResource) (of []*migrationv1alpha1.StorageVersionMigration, err error) {
	var list migrationv1alpha1.StorageVersionMigrationList
	err = s.Objects().List(ctx, &list)
	for i := range list.Items {
		if migrationv1alpha1.Resource(&list.Items[i]) == gr {
			of = append(of, &list.Items[i])
		}
	}
	return of, err
}

// ended waits until the migration is over, stops the clients, and checks everything: all objects are
// in the version, and are those, with the content, that the answers to the clients imply.
func (m *migrating) ended(to string) {
	m.t.Helper()
	m.t.Logf("settled after %v", m.c.WaitSettled().Round(time.Millisecond))
	result := m.churn.Stop()
	m.t.Logf("clients: %d updates, %d deletions, %d creations, %d attempts made again; %d rewrites",
		result.Updates, result.Deletes, result.Creates, result.Again, m.rewrites())
	if result.Updates == 0 || result.Deletes == 0 || result.Creates == 0 {
		m.t.Error("clients have not updated, deleted and created anything: nothing was tested")
	}
	gr := m.resource.GroupResource()
	encoding := m.encoding(to)
	wantEncoding(m.t, m.c, gr, encoding, len(result.Want))
	standing := m.c.Standing(gr)
	if standing.Common() != encoding || !slices.Equal(standing.Stored(), []string{string(encoding)}) {
		m.t.Errorf("the agreement is %s and the stored set %v, want %s alone", standing.Common(), standing.Stored(), encoding)
	}
	if standing.StoredVersions() != nil && !slices.Equal(standing.StoredVersions(), []string{to}) {
		m.t.Errorf("storedVersions are %v, want %s alone", standing.StoredVersions(), to)
	}
	var stored map[string]string
	m.c.Ledger(func(l *audit.Ledger) { stored = l.Hashes(gr) })
	m.wantContents("etcd", result, stored)
	for _, s := range m.servers {
		if !s.Ended() {
			m.wantContents(s.Name, result, m.read(s))
		}
	}
	m.c.Check()
}

// maxTold bounds how many differences of one kind are printed.
const maxTold = 10

func (m *migrating) wantContents(where string, want load.ChurnResult, found map[string]string) {
	m.t.Helper()
	differences := want.Differ(found)
	for _, d := range differences[:min(len(differences), maxTold)] {
		m.t.Errorf("in %s: %s", where, d)
	}
	if len(differences) > maxTold {
		m.t.Errorf("in %s: %d objects differ", where, len(differences))
	}
}

// read returns the hashes of all objects as a server returns them.
func (m *migrating) read(s *cluster.Server) map[string]string {
	m.t.Helper()
	list, err := s.Dynamic().Resource(m.resource.GroupVersionResource).List(m.t.Context(), metav1.ListOptions{})
	must(m.t, err)
	found := map[string]string{}
	for i := range list.Items {
		u := &list.Items[i]
		found[u.GetNamespace()+"/"+u.GetName()] = load.Hash(u.Object)
	}
	return found
}

func (m *migrating) encoding(version string) agree.Encoding {
	return agree.Encoding(m.resource.Group + "/" + version)
}

// testStorageVersionFlips: a CRD's storage version is changed again and again under load. No client
// sees an error, every object is migrated, and the CRD ends with one stored version.
func testStorageVersionFlips(t *testing.T) {
	c := cluster.New(t)
	servers := c.Start(cluster.Options{}, "one", "two", "three")
	createWidgets(t, "v1", servers...)
	fill(t, servers[0], widgetsV1, stored)
	c.WaitSettled()
	writes := c.Load(load.Config{
		Resources: []load.Resource{widgetsV1, load.Custom(widgets.WithVersion("v2"), "Widget", "default")},
		Pause:     100 * time.Millisecond,
	}, servers...)
	for i, to := range []string{"v2", "v1", "v2"} {
		storeWidgetsIn(t, servers[i], to)
		t.Logf("settled %v after the change to %s", c.WaitSettled().Round(time.Millisecond), to)
		wantEncoding(t, c, widgets, widgetEncoding(to), stored)
		if standing := c.Standing(widgets); !slices.Equal(standing.StoredVersions(), []string{to}) {
			t.Errorf("storedVersions are %v, want %s alone", standing.StoredVersions(), to)
		}
	}
	wantNoFailures(t, c, writes)
	c.Check()
}

// testHastyFlips: a CRD's storage version changes again before anything has settled. A change from
// v1 to v2 and back, between two looks of a controller, leaves objects in v2 behind.
func testHastyFlips(t *testing.T) {
	c := cluster.New(t)
	servers := c.Start(cluster.Options{}, "one", "two", "three")
	createWidgets(t, "v1", servers...)
	fill(t, servers[0], widgetsV1, stored)
	writes := c.Load(load.Config{Resources: []load.Resource{widgetsV1}, Pause: 5 * time.Millisecond}, servers...)
	const flips = 20
	for i := range flips {
		cluster.Eventually(t, time.Minute, "every server takes writes", acked(writes, servers))
		storeWidgetsIn(t, servers[i%3], fmt.Sprint("v", 2-i%2))
	}
	t.Logf("settled %v after the last of %d changes", c.WaitSettled().Round(time.Millisecond), flips)
	c.CheckLoad(writes.Stop(), nil)
	wantEncoding(t, c, widgets, widgetEncoding("v1"), stored)
	wantFenceCounted(t, servers)
	c.Check()
}

// wantFenceCounted fails unless servers show all counters of the fence, and have tried writes again.
func wantFenceCounted(t *testing.T, servers []*cluster.Server) {
	t.Helper()
	counted := map[string]float64{}
	for _, s := range servers {
		for _, match := range fenceCounter.FindAllStringSubmatch(fetch(t, s, "/metrics", ""), -1) {
			n, err := strconv.ParseFloat(match[2], 64)
			must(t, err)
			counted[match[1]] += n
		}
	}
	if _, forwards := counted["forwards"]; !forwards || counted["mismatches"] == 0 || counted["retries"] == 0 {
		t.Errorf("the fence's counters are %v", counted)
	}
	t.Logf("the fence has counted %v", counted)
}

var fenceCounter = regexp.MustCompile(`(?m)^concord_fence_(mismatches|retries|forwards)_total\{\S* (\S+)$`)

// waitFailedMigration waits for a migration of the resource that has ended with objects that could
// not be migrated, and with the wanted progress.
func waitFailedMigration(t *testing.T, s *cluster.Server, gr schema.GroupResource, wanted func(migrationv1alpha1.MigrationProgress) bool) (found *migrationv1alpha1.StorageVersionMigration) {
	t.Helper()
	took := cluster.Eventually(t, cluster.SettleTimeout, "the migration ends with failures", func(ctx context.Context) error {
		all, err := migrationsOf(ctx, s, gr)
		if err != nil {
			return err
		}
		var seen []string
		for _, m := range all {
			seen = append(seen, fmt.Sprintf("%s: %+v", m.Name, m.Status))
			failed := migrationv1alpha1.True(m, migrationv1alpha1.MigrationFailed)
			if failed != nil && failed.Reason == migrationv1alpha1.ReasonObjectsFailed && m.Status.Progress != nil && wanted(*m.Status.Progress) {
				found = m
				return nil
			}
		}
		return fmt.Errorf("migrations: %s", strings.Join(seen, "; "))
	})
	t.Logf("the migration had ended with failures after %v: %s", took.Round(time.Millisecond), found.Status.Failures[0].Message)
	return found
}

// wantNoFailures stops clients, and fails if they lost a write, or one was refused.
func wantNoFailures(t *testing.T, c *cluster.Cluster, writes *load.Load) {
	t.Helper()
	report := writes.Stop()
	c.CheckLoad(report, nil)
	for _, f := range report.Failures {
		t.Errorf("a write failed: %v", f)
	}
}

// The custom resource of the tests: two versions that differ in nothing but their names.
const widgetGroup = "e2e.concord.dev"

var (
	widgets   = schema.GroupResource{Group: widgetGroup, Resource: "widgets"}
	policies  = load.Policies().GroupResource()
	widgetsV1 = load.Custom(widgets.WithVersion("v1"), "Widget", metav1.NamespaceDefault)

	policyV1      = agree.Encoding("admissionregistration.k8s.io/v1")
	policyV1beta1 = agree.Encoding("admissionregistration.k8s.io/v1beta1")
)

func widgetEncoding(version string) agree.Encoding {
	return agree.Encoding(widgetGroup + "/" + version)
}

// widgetCRD returns the CRD of widgets with this storage version.
func widgetCRD(storage string) *apiextensionsv1.CustomResourceDefinition {
	return widgetLike(widgets, storage)
}

// widgetLike returns a CRD like that of widgets for another resource.
func widgetLike(gr schema.GroupResource, storage string) *apiextensionsv1.CustomResourceDefinition {
	crd := testbed.Definition(gr, storage)
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{
			Type:       "object",
			Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"text": text, "padding": text}}},
		}
	}
	return crd
}

// createWidgets makes the CRD and waits until every server serves it.
func createWidgets(t *testing.T, storage string, servers ...*cluster.Server) {
	t.Helper()
	createCRD(t, widgetCRD(storage), servers...)
}

// createCRD makes a CRD whose versions are v1 and v2 and waits until every server serves it.
func createCRD(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, servers ...*cluster.Server) {
	t.Helper()
	must(t, servers[0].Objects().Create(t.Context(), crd))
	for _, s := range servers {
		cluster.Eventually(t, time.Minute, s.Name+" serves the custom resource", func(ctx context.Context) error {
			_, err := s.Dynamic().Resource(schema.ParseGroupResource(crd.Name).WithVersion("v2")).List(ctx, metav1.ListOptions{Limit: 1})
			return err
		})
	}
}

// storeWidgetsIn changes the CRD's storage version.
func storeWidgetsIn(t *testing.T, s *cluster.Server, version string) {
	t.Helper()
	storeIn(t, s, widgets, version)
}

// storeIn changes the storage version of a custom resource.
func storeIn(t *testing.T, s *cluster.Server, gr schema.GroupResource, version string) {
	t.Helper()
	must(t, cluster.ChangeDefinition(t.Context(), s.Objects(), gr.String(), cluster.Store(version)))
}

// fill creates n objects of the resource through a server.
func fill(t *testing.T, s *cluster.Server, resource load.Resource, n int) {
	t.Helper()
	must(t, load.Fill(t.Context(), load.Endpoint{Name: s.Name, Client: s.Dynamic()}, resource, "fill", n))
}

// wantEncoding fails unless all stored objects of the resource are in the encoding, and there are at
// least so many of them.
func wantEncoding(t *testing.T, c *cluster.Cluster, gr schema.GroupResource, encoding agree.Encoding, atLeast int) {
	t.Helper()
	if err := encodedAs(c, gr, encoding, atLeast); err != nil {
		t.Error(err)
	}
}

func encodedAs(c *cluster.Cluster, gr schema.GroupResource, encoding agree.Encoding, atLeast int) error {
	found := c.Encodings(gr)
	if found[encoding] < atLeast || len(found) != 1 {
		return fmt.Errorf("objects of %s are stored as %v, want at least %d, all in %s", gr, found, atLeast, encoding)
	}
	return nil
}
