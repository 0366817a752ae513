package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/api/storageversion"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
	"github.com/concord-dev/concord/e2e/cluster"
)

// testSkew: an administrator is told that servers have different emulation versions: in their
// Leases, in the ClusterVersion's conditions, by events and by gauges (KEP-4330, "Risk:
// Unintended and out-of-allowance version skew").
func testSkew(t *testing.T) {
	c := cluster.New(t)
	one := c.Start(cluster.Options{}, "one")[0]
	waitConditions(t, one, metav1.ConditionTrue, metav1.ConditionTrue, "1.37")
	if events := skewEvents(t, one); len(events) > 0 {
		t.Errorf("a new cluster tells of skew: %v", events)
	}
	two := c.Start(cluster.Options{Emulation: "1.36"}, "two")[0]
	waitConditions(t, one, metav1.ConditionFalse, metav1.ConditionTrue, "1.36", "1.37")
	waitEvents(t, one, "Normal ServerSkewBegan")
	three := c.Start(cluster.Options{Emulation: "1.35", MinCompatibility: "1.34"}, "three")[0]
	waitConditions(t, two, metav1.ConditionFalse, metav1.ConditionFalse, "1.35", "1.36", "1.37")
	waitEvents(t, three, "Normal ServerSkewBegan", "Warning ServerSkewNotAllowed")
	servers := []*cluster.Server{one, two, three}
	t.Run("Leases", func(t *testing.T) {
		wantLease(t, one, "1.37", "1.37", "1.36")
		wantLease(t, two, "1.37", "1.36", "1.35")
		wantLease(t, three, "1.37", "1.35", "1.34")
	})
	t.Run("Table", func(t *testing.T) { clusterVersionTable(t, two) })
	waitGauges(t, servers, map[string]string{
		`concord_server_skew_servers{emulation_version="1.35"}`: "1",
		`concord_server_skew_servers{emulation_version="1.36"}`: "1",
		`concord_server_skew_servers{emulation_version="1.37"}`: "1",
		`concord_server_skew_releases`:                          "2",
		`concord_server_skew_allowed`:                           "0",
	})

	for _, s := range servers[1:] {
		s.Restart(cluster.Options{})
	}
	waitConditions(t, three, metav1.ConditionTrue, metav1.ConditionTrue, "1.37")
	waitEvents(t, three, "Normal ServerSkewBegan", "Warning ServerSkewNotAllowed", "Normal ServerSkewAllowed", "Normal ServerSkewEnded")
	waitGauges(t, servers, map[string]string{
		`concord_server_skew_servers{emulation_version="1.37"}`: "3",
		`concord_server_skew_releases`:                          "0",
		`concord_server_skew_allowed`:                           "1",
	})
	wantSafe(t, c, "--back-to", "1.36")
	for _, s := range servers {
		for sample := range samplesOf(t, s, skewedRequests) {
			if strings.Contains(sample, `component="concord`) {
				t.Errorf("%s counts requests of Concord's own: %s", s.Name, sample)
			}
		}
	}
	c.WaitSettled()
	c.Check()
}

// waitConditions waits until the ClusterVersion says whether all servers have the same versions
// and whether these versions allow each other, and names their emulation versions.
func waitConditions(t *testing.T, s *cluster.Server, agree, allowed metav1.ConditionStatus, emulations ...string) {
	t.Helper()
	cluster.Eventually(t, 60*time.Second, "the ClusterVersion shows "+strings.Join(emulations, ", "), func(ctx context.Context) error {
		cluster := &versionv1alpha1.ClusterVersion{}
		if err := s.Objects().Get(ctx, client.ObjectKey{Name: versionv1alpha1.ClusterVersionName}, cluster); err != nil {
			return err
		}
		status := cluster.Status
		var found []string
		for _, server := range status.Servers {
			found = append(found, server.Emulation)
		}
		slices.Sort(found)
		switch {
		case !slices.Equal(slices.Compact(found), emulations),
			status.OldestEmulation != emulations[0], status.NewestEmulation != emulations[len(emulations)-1],
			!meta.IsStatusConditionPresentAndEqual(status.Conditions, versionv1alpha1.ConditionVersionsAgree, agree),
			!meta.IsStatusConditionPresentAndEqual(status.Conditions, versionv1alpha1.ConditionSkewAllowed, allowed):
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
}

// skewEvents returns the type, reason and message of each event about the ClusterVersion.
func skewEvents(t *testing.T, s *cluster.Server) (found []string) {
	t.Helper()
	list, err := s.Kube().CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=ClusterVersion"})
	must(t, err)
	for _, e := range list.Items {
		found = append(found, fmt.Sprintf("%s %s: %s", e.Type, e.Reason, e.Message))
	}
	return found
}

// waitEvents waits until there are events about the ClusterVersion with these types and
// reasons, and no others.
func waitEvents(t *testing.T, s *cluster.Server, reasons ...string) {
	t.Helper()
	slices.Sort(reasons)
	cluster.Eventually(t, time.Minute, fmt.Sprintf("the events are %v", reasons), func(context.Context) error {
		events := skewEvents(t, s)
		var found []string
		for _, e := range events {
			reason, message, _ := strings.Cut(e, ": ")
			if message != "" {
				found = append(found, reason)
			}
		}
		slices.Sort(found)
		if !slices.Equal(slices.Compact(found), reasons) {
			return fmt.Errorf("they are %v", events)
		}
		return nil
	})
}

// wantLease fails unless the server's identity Lease tells these versions.
func wantLease(t *testing.T, s *cluster.Server, binary, emulation, minCompatibility string) {
	t.Helper()
	id, _ := s.ID()
	lease, err := s.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace).Get(t.Context(), string(id), metav1.GetOptions{})
	must(t, err)
	for annotation, want := range map[string]string{
		storageversion.BinaryVersionAnnotation:           binary,
		storageversion.EmulationVersionAnnotation:        emulation,
		storageversion.MinCompatibilityVersionAnnotation: minCompatibility,
	} {
		if got := lease.Annotations[annotation]; got != want {
			t.Errorf("the Lease of %s has %s=%s, want %s", s.Name, annotation, got, want)
		}
	}
}

// clusterVersionTable checks what kubectl get prints of the ClusterVersion.
func clusterVersionTable(t *testing.T, s *cluster.Server) {
	_, body := request(t, s.Config(), "/apis/"+versionv1alpha1.SchemeGroupVersion.String()+"/clusterversions", "application/json;as=Table;g=meta.k8s.io;v=v1")
	for _, want := range []string{`"name":"Versions-Agree"`, `"name":"Skew-Allowed"`, `"cells":["cluster",3,"1.35","1.37","False","False",`} {
		if !strings.Contains(body, want) {
			t.Errorf("there is no %s in the table %s", want, body)
		}
	}
}

// samplesOf returns the samples of a metric: their values by name and labels.
func samplesOf(t *testing.T, s *cluster.Server, metric string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, line := range strings.Split(fetch(t, s, "/metrics", ""), "\n") {
		if sample, value, ok := strings.Cut(line, " "); ok && strings.HasPrefix(sample, metric) {
			found[sample] = value
		}
	}
	return found
}

// waitGauges waits until one of the servers, the elected one, shows exactly these gauges
// and the others none.
func waitGauges(t *testing.T, servers []*cluster.Server, want map[string]string) {
	t.Helper()
	cluster.Eventually(t, time.Minute, "one server shows the gauges", func(context.Context) error {
		shown := 0
		for _, s := range servers {
			found := samplesOf(t, s, "concord_server_skew_")
			if len(found) == 0 {
				continue
			}
			shown++
			for sample, value := range want {
				if found[sample] != value {
					return fmt.Errorf("%s shows %v, want %v", s.Name, found, want)
				}
			}
			if len(found) != len(want) {
				return fmt.Errorf("%s shows %v, want %v", s.Name, found, want)
			}
		}
		if shown != 1 {
			return fmt.Errorf("%d servers show gauges", shown)
		}
		return nil
	})
}

const skewedRequests = "concord_component_skew_requests_total"
