package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

// A custom resource that is converted by a webhook behind a Service, which is slow, is migrated with its help.
// Every tenth object is refused, is named and does not stop the others; a webhook that goes
// down in the middle, for a minute, stops nothing for good. Clients of both versions see the
// same as before.
func testConversionWebhook(t *testing.T) {
	const objects = 200
	hook := startConverter(t)
	c := cluster.New(t)
	c.Audit.With(func(l *audit.Ledger) { l.Normalize(convertibles, asV1) })
	servers := c.Start(cluster.Options{}, "one", "two", "three")
	createCRD(t, hook.behindService(servers[0], convertibleCRD(hook)), servers...)
	fill(t, servers[0], convertiblesV1, objects)
	c.WaitSettled()
	before := texts(t, servers[0], "v1")
	writes := c.Load(load.Config{Prefix: loadPrefix, Resources: []load.Resource{convertiblesV1}, Pause: 100 * time.Millisecond}, servers...)

	poisoned := everyTenth(before)
	hook.poison(poisoned...)
	hook.slow(30 * time.Millisecond)
	storeIn(t, servers[1], convertibles, "v2")
	m := waitFailedMigration(t, servers[2], convertibles, func(p migrationv1alpha1.MigrationProgress) bool { return p.Failed == int64(len(poisoned)) })
	if len(m.Status.Failures) != len(poisoned) {
		t.Errorf("the failures are %+v, want %v", m.Status.Failures, poisoned)
	}
	for _, f := range m.Status.Failures {
		if !slices.Contains(poisoned, f.Name) || f.Namespace != "default" ||
			f.Reason != migrationv1alpha1.FailureConversionWebhook || !strings.Contains(f.Message, f.Name+" is poisoned") {
			t.Errorf("the failure %+v, want one of %v, and what the webhook says of it", f, poisoned)
		}
	}
	if found := c.Encodings(convertibles); found[widgetEncoding("v1")] != len(poisoned) || found[widgetEncoding("v2")] < objects-len(poisoned) {
		t.Errorf("convertibles are stored as %v, want %d in v1", found, len(poisoned))
	}
	if standing := c.Standing(convertibles); !slices.Contains(standing.StoredVersions(), "v1") || !slices.Contains(standing.Stored(), string(widgetEncoding("v1"))) {
		t.Errorf("storedVersions are %v and the stored set is %v, though objects are in v1", standing.StoredVersions(), standing.Stored())
	}
	hook.poison()
	hook.slow(0)
	t.Logf("settled %v after the webhook converts everything", c.WaitSettled().Round(time.Millisecond))
	wantEncoding(t, c, convertibles, widgetEncoding("v2"), objects)
	c.CheckLoad(writes.Stop(), nil)
	wantTexts(t, before, servers...)

	hook.goDownAfter(objects / 4)
	storeIn(t, servers[2], convertibles, "v1")
	waitFailedMigration(t, servers[0], convertibles, func(p migrationv1alpha1.MigrationProgress) bool {
		return p.Failed > 0 && p.FailedByReason[migrationv1alpha1.FailureConversionWebhook] == p.Failed
	})
	select {
	case <-hook.down:
	default:
		t.Error("the webhook is not down: nothing was tested")
	}
	if found := c.Encodings(convertibles); found[widgetEncoding("v2")] == 0 {
		t.Errorf("with the webhook down, convertibles are stored as %v", found)
	}
	servers[1].Restart(cluster.Options{}) // which needs no webhook
	hook.awaitDown(time.Minute)
	hook.start()
	t.Logf("settled %v after the webhook is up again", c.WaitSettled().Round(time.Millisecond))
	wantEncoding(t, c, convertibles, widgetEncoding("v1"), objects)
	wantTexts(t, before, servers...)
	c.Check()
}

// texts reads the convertibles that were filled in through a version, and their texts by name.
func texts(t *testing.T, s *cluster.Server, version string) map[string]string {
	t.Helper()
	path := map[string][]string{"v1": {"spec", "text"}, "v2": {"spec", "message", "text"}}[version]
	list, err := s.Dynamic().Resource(convertibles.WithVersion(version)).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	found := map[string]string{}
	for _, u := range list.Items {
		if strings.HasPrefix(u.GetName(), "fill-") {
			text, _, _ := unstructured.NestedString(u.Object, path...)
			found[u.GetName()] = fmt.Sprint(u.GetUID(), " ", text)
		}
	}
	return found
}

// everyTenth returns those whose names end in 0.
func everyTenth(texts map[string]string) (names []string) {
	for name := range texts {
		if strings.HasSuffix(name, "0") {
			names = append(names, name)
		}
	}
	return names
}

func wantTexts(t *testing.T, want map[string]string, servers ...*cluster.Server) {
	t.Helper()
	for _, s := range servers {
		for _, version := range []string{"v1", "v2"} {
			if got := texts(t, s, version); !maps.Equal(got, want) {
				t.Errorf("in %s convertibles are read through %s as %v, and were %v", version, s.Name, got, want)
			}
		}
	}
}
