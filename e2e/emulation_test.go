package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/server/planning"
)

// TestEmulation starts one server at every release in range, by default and with the
// betas enabled, and compares it with what that release is known to do.
func TestEmulation(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	var s *cluster.Server
	for _, release := range compat.AllowedEmulation(compat.BinaryVersion()) {
		for _, betas := range []bool{false, true} {
			o := cluster.Options{Emulation: release.String()}
			if betas {
				o.Args = "--runtime-config=api/beta=true"
			}
			if s == nil {
				s = c.Start(o, "one")[0]
			} else {
				s.Restart(o)
			}
			t.Run(fmt.Sprintf("%s betas=%t", release, betas), func(t *testing.T) {
				t.Run("Discovery", func(t *testing.T) { testDiscoveryOfRelease(t, s, release, betas) })
				t.Run("Introspection", func(t *testing.T) { testIntrospection(t, s, release) })
				t.Run("MangledUserAgent", func(t *testing.T) { testMangledUserAgent(t, s) })
				t.Run("Skew", func(t *testing.T) { testKubeletSkew(t, s, release) })
				t.Run("Controllers", func(t *testing.T) { testControllers(t, s) })
			})
		}
	}
	c.Check()
	s.Terminate()
}

// testDiscoveryOfRelease compares the aggregated discovery of a server with the table of
// what the release that it emulates serves, testdata/served/<release>.txt, for the
// resources that Concord has.
//
// The tables were derived from what k8s.io/api v0.37.2 says of the lifecycle of its types,
// and verified against what the releases say of themselves, which gave the same lines:
// testdata/served/derive.go was run for each release on its own published modules (1.34
// on k8s.io/api, client-go, apiextensions-apiserver and kube-aggregator v0.34.13, 1.35 on
// v0.35.10, 1.36 on v0.36.6) and on those of v0.37.2, and the outputs were compared:
//
//	M=$(go env GOMODCACHE)/k8s.io
//	for m in api client-go apiextensions-apiserver kube-aggregator; do go mod download k8s.io/$m@v0.34.13; done
//	go run derive.go 1.34 $M/api@v0.34.13=$M/client-go@v0.34.13/kubernetes/typed \
//	  $M/apiextensions-apiserver@v0.34.13/pkg/apis=$M/apiextensions-apiserver@v0.34.13/pkg/client/clientset/clientset/typed \
//	  $M/kube-aggregator@v0.34.13/pkg/apis=$M/kube-aggregator@v0.34.13/pkg/client/clientset_generated/clientset/typed
//
// A running kube-apiserver of those releases was not asked.
//
// Versions behind a feature gate of their own are not compared.
func testDiscoveryOfRelease(t *testing.T, s *cluster.Server, release *version.Version, betas bool) {
	table, err := os.ReadFile(filepath.Join("testdata", "served", release.String()+".txt"))
	if err != nil {
		t.Fatalf("nobody has written down what %s serves: %v", release, err)
	}
	ours := planning.Generic()
	groups, want := map[string]bool{}, map[string]bool{
		// Alpha there, and off; the API that Concord stands on here.
		"internal.apiserver.k8s.io/v1alpha1/storageversions": true,
	}
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		gv, err := schema.ParseGroupVersion(f[0])
		if err != nil || len(f) != 3 || f[2] != "on" && f[2] != "off" {
			t.Fatalf("%s: line %q: %v", release, line, err)
		}
		groups[gv.Group] = true
		if ours.Has(schema.GroupResource{Group: gv.Group, Resource: f[1]}) && (f[2] == "on" || betas) {
			want[gv.Group+"/"+gv.Version+"/"+f[1]] = true
		}
	}
	if len(want) < 20 {
		t.Errorf("the table of %s has only %d versions of resources that Concord has", release, len(want))
	}
	groups["internal.apiserver.k8s.io"] = true
	cluster.Eventually(t, time.Minute, "discovery is current", func(context.Context) error {
		all := discovered(t, s)
		got := map[string]bool{}
		for _, gvr := range slices.Sorted(maps.Keys(all)) {
			// Concord's own groups are unknown to Kubernetes.
			if group, _, _ := strings.Cut(gvr, "/"); groups[group] {
				got[gvr] = true
			}
			if !all[gvr] {
				return fmt.Errorf("%s is not current", gvr)
			}
		}
		for _, gvr := range gated {
			delete(got, gvr)
			delete(want, gvr)
		}
		var errs []error
		for _, gvr := range slices.Sorted(maps.Keys(want)) {
			if !got[gvr] {
				errs = append(errs, fmt.Errorf("%s serves %s, this server does not", release, gvr))
			}
		}
		for _, gvr := range slices.Sorted(maps.Keys(got)) {
			if !want[gvr] {
				errs = append(errs, fmt.Errorf("this server serves %s, %s does not", gvr, release))
			}
		}
		return errors.Join(errs...)
	})
}

// testIntrospection: /version tells the versions (KEP-4330, "Version introspection");
// /statusz and /flagz are there from 1.36 on, where they are beta.
func testIntrospection(t *testing.T, s *cluster.Server, release *version.Version) {
	var v struct{ Minor, EmulationMajor, EmulationMinor, MinCompatibilityMajor, MinCompatibilityMinor string }
	must(t, json.Unmarshal([]byte(fetch(t, s, "/version", "")), &v))
	least := compat.DefaultMinCompatibility(compat.BinaryVersion(), release)
	if v.Minor != "37" || v.EmulationMajor+"."+v.EmulationMinor != release.String() || v.MinCompatibilityMajor+"."+v.MinCompatibilityMinor != least.String() {
		t.Errorf("/version of %s is %+v", release, v)
	}
	want := http.StatusOK
	if release.LessThan(version.MustParse("1.36")) {
		want = http.StatusNotFound
	}
	for path, line := range map[string]string{
		"/statusz": `(?m)^Emulation version[:= ]+` + regexp.QuoteMeta(release.String()) + `$`,
		"/flagz":   `(?m)^emulation-version[:= ]+` + regexp.QuoteMeta("["+release.String()+"]") + `$`,
	} {
		status, body := request(t, s.Config(), path, "")
		if status != want {
			t.Errorf("%s at %s: %d, want %d", path, release, status, want)
		} else if status == http.StatusOK && !regexp.MustCompile(line).MatchString(body) {
			t.Errorf("%s at %s does not match %s: %s", path, release, line, body)
		}
	}
}

// testMangledUserAgent: whatever a client says of itself, it is answered as all others and
// counted as unknown.
func testMangledUserAgent(t *testing.T, s *cluster.Server) {
	const counter = `concord_component_skew_requests_total{component="unknown",direction="unknown"}`
	_, plain := request(t, s.Config(), "/api/v1", "")
	before := skewCounts(t, s)[counter]
	mangled := []string{"/v1.36.0", `{component="kubelet"}/v1.36.0`, "ünï/v1.36.0", "-kubectl/v1.99.0", strings.Repeat("k", 64<<10)}
	for _, agent := range mangled {
		config := s.Config()
		config.UserAgent = agent
		if status, body := request(t, config, "/api/v1", ""); status != http.StatusOK || body != plain {
			t.Errorf("User-Agent %.40q is answered %d: %s", agent, status, body)
		}
	}
	if got := skewCounts(t, s)[counter] - before; got != len(mangled) {
		t.Errorf("%d of %d requests were counted as unknown", got, len(mangled))
	}
}

// testKubeletSkew: skew counts from what the server emulates (KEP-4330, "Skew"), whatever the
// binary's release is, and the server's own requests and its controllers' are never out.
func testKubeletSkew(t *testing.T, s *cluster.Server, release *version.Version) {
	const newer, older = `concord_component_skew_requests_total{component="kubelet",direction="newer"}`, `concord_component_skew_requests_total{component="kubelet",direction="older"}`
	oldest := compat.DefaultMinCompatibility(compat.BinaryVersion(), release).SubtractMinor(2)
	before := skewCounts(t, s)
	for _, v := range []*version.Version{release, release.AddMinor(1), oldest, oldest.SubtractMinor(1), oldest.SubtractMinor(2)} {
		config := s.Config()
		config.UserAgent = fmt.Sprintf("kubelet/v%s.1 (linux/amd64) kubernetes/93248f9", v)
		if status, body := request(t, config, "/api/v1", ""); status != http.StatusOK {
			t.Errorf("kubelet %s is answered %d: %s", v, status, body)
		}
	}
	after := skewCounts(t, s)
	if got := [2]int{after[newer] - before[newer], after[older] - before[older]}; got != [2]int{1, 2} {
		t.Errorf("at %s kubelets were counted newer and older %v times, want one and two", release, got)
	}
	for _, own := range []compat.Component{compat.ConcordServer, compat.ConcordControllers} {
		for line, n := range after {
			if strings.Contains(line, fmt.Sprintf("component=%q", own)) {
				t.Errorf("%s is out of skew with itself: %s %d", own, line, n)
			}
		}
	}
}

// testControllers: Kubernetes' controllers run at every release, and give a namespace what clients
// expect in it.
func testControllers(t *testing.T, s *cluster.Server) {
	kube := s.Kube().CoreV1()
	made, err := kube.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "new-"}}, metav1.CreateOptions{})
	must(t, err)
	cluster.Eventually(t, time.Minute, "a namespace has its ServiceAccount and the root CA", func(ctx context.Context) error {
		_, account := kube.ServiceAccounts(made.Name).Get(ctx, "default", metav1.GetOptions{})
		_, ca := kube.ConfigMaps(made.Name).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return errors.Join(account, ca)
	})
}

// skewCounts returns the values of the skew metric by the name and labels before them.
func skewCounts(t *testing.T, s *cluster.Server) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for sample, value := range samplesOf(t, s, skewedRequests+"{") {
		n, err := strconv.Atoi(value)
		must(t, err)
		counts[sample] = n
	}
	return counts
}

// gated are beta versions that are served with a feature gate only, which is off by default.
var gated = []string{"certificates.k8s.io/v1beta1/clustertrustbundles", "storagemigration.k8s.io/v1beta1/storageversionmigrations"}
