package filters

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	"github.com/concord-dev/concord/compat"
)

var skewWindow = compat.Window{Emulation: version.MustParse("1.36"), MinCompatibility: version.MustParse("1.35")}

// counts is a counter metric in memory.
type counts struct {
	mu sync.Mutex
	of map[string]int
}

func (c *counts) add(component compat.Component, v compat.Verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.of[string(component)+" "+v.String()]++
}

// lines returns a logger that appends its lines to a slice.
func lines(to *[]string) logr.Logger {
	return funcr.New(func(_, args string) { *to = append(*to, args) }, funcr.Options{})
}

func sent(userAgent, header, by string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/api/v1/configmaps", nil)
	r.Header.Set("User-Agent", userAgent)
	if header != "" {
		r.Header.Set(compat.ComponentVersionHeader, header)
	}
	return r.WithContext(apirequest.WithUser(r.Context(), &user.DefaultInfo{Name: by}))
}

// TestSkewFilter: requests from components outside of the allowed skew are counted, each such
// component is logged once, and every request is served.
func TestSkewFilter(t *testing.T) {
	counted, logged, served := &counts{}, []string{}, 0
	h := newSkewFilter(skewWindow, counted.add, lines(&logged)).
		wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	requests := []*http.Request{
		sent("kubectl/v1.36.4 (linux/amd64) kubernetes/6ae0e6f", "", "admin"),
		sent("kubectl/v1.37.0 (linux/amd64) kubernetes/6ae0e6f", "", "admin"),
		sent("kubelet/v1.33.1 (linux/amd64) kubernetes/6ae0e6f", "", "system:node:a"),
		sent("kubelet/v1.32.1 (linux/amd64) kubernetes/6ae0e6f", "", "system:node:b"),
		sent("kubelet/v1.32.9 (linux/amd64) kubernetes/6ae0e6f", "", "system:node:b"),
		sent("kubelet/v1.32.1 (linux/amd64) kubernetes/6ae0e6f", "", "system:node:c"),
		sent("kube-scheduler/v1.37.0 (linux/amd64) kubernetes/6ae0e6f/leader-election", "", "system:kube-scheduler"),
		sent("kube-scheduler/v1.37.0 (linux/amd64) kubernetes/6ae0e6f", "kube-scheduler/1.36", "system:kube-scheduler"),
		sent("concord-controllers/v1.37.0 (linux/amd64) kubernetes/concord", "concord-controllers/1.36", "controllers"),
		sent("concord-controllers/v1.37.0 (linux/amd64) kubernetes/concord", "mangled", "controllers"),
		sent("operator/v0.0.0 (linux/amd64) kubernetes/$Format", "", "operator"),
		sent("kubelet/v0.0.0 (linux/amd64) kubernetes/$Format", "", "system:node:d"),
		sent("\x00\xff{}", "", "nobody"),
		sent("", "", "nobody"),
	}
	for range 3 {
		for _, r := range requests {
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
	}
	want := map[string]int{
		"kubelet older": 9, "kube-scheduler newer": 3, "concord-controllers newer": 3,
		"other unknown": 3, "kubelet unknown": 3, "unknown unknown": 6,
	}
	if !maps.Equal(counted.of, want) {
		t.Errorf("counted %v, want %v", counted.of, want)
	}
	if served != 3*len(requests) {
		t.Errorf("served %d of %d", served, 3*len(requests))
	}
	var named []string
	for _, l := range logged {
		_, l, _ = strings.Cut(l, `"component"=`)
		named = append(named, l)
	}
	if want := []string{
		`"kubelet" "version"="1.32" "allowed"="1.33..1.36" "user"="system:node:b"`,
		`"kubelet" "version"="1.32" "allowed"="1.33..1.36" "user"="system:node:c"`,
		`"kube-scheduler" "version"="1.37" "allowed"="1.35..1.36" "user"="system:kube-scheduler"`,
		`"concord-controllers" "version"="1.37" "allowed"="1.35..1.36" "user"="controllers"`,
	}; !slices.Equal(named, want) {
		t.Errorf("named:\n%s\nwant:\n%s", strings.Join(named, "\n"), strings.Join(want, "\n"))
	}
}

// TestSkewOfItself: requests that Kubernetes' code in this process sends have no version and are
// not counted. Requests under the same user name from elsewhere are.
func TestSkewOfItself(t *testing.T) {
	counted := &counts{}
	h := newSkewFilter(skewWindow, counted.add, logr.Discard()).wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, groups := range [][]string{{user.SystemPrivilegedGroup}, nil} {
		r := sent("concord/v0.0.0 (linux/amd64) kubernetes/$Format", "", user.APIServerUser)
		r = r.WithContext(apirequest.WithUser(r.Context(), &user.DefaultInfo{Name: user.APIServerUser, Groups: groups}))
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	if want := map[string]int{"concord unknown": 1}; !maps.Equal(counted.of, want) {
		t.Errorf("counted %v, want %v", counted.of, want)
	}
}

// TestSkewFilterIsBounded: clients that invent headers and user names fill neither memory nor the
// log, and all their requests are counted.
func TestSkewFilterIsBounded(t *testing.T) {
	counted, logged := &counts{}, []string{}
	f := newSkewFilter(skewWindow, counted.add, lines(&logged))
	const requests = 3 * maxOffenders
	for i := range requests {
		f.observe(sent(fmt.Sprintf("kubectl/v1.%d.0 (linux/amd64) kubernetes/%d", 100+i, i), "", fmt.Sprint("user", i)))
		f.observe(sent("kubectl/v1.36.0 "+strings.Repeat("x", 512+i), "", "admin"))
	}
	if len(f.offenders) > maxOffenders {
		t.Errorf("%d offenders are remembered", len(f.offenders))
	}
	if !maps.Equal(counted.of, map[string]int{"kubectl newer": requests}) {
		t.Errorf("counted %v", counted.of)
	}
	if len(logged) != maxOffenders+1 || !strings.Contains(logged[maxOffenders], "No more components") {
		t.Errorf("%d lines are logged, the last one is %s", len(logged), logged[len(logged)-1])
	}
}

func TestSkewFilterConcurrently(t *testing.T) {
	counted := &counts{}
	f := newSkewFilter(skewWindow, counted.add, logr.Discard())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 500 {
				f.observe(sent(fmt.Sprintf("kubectl/v1.%d.0", i), "", fmt.Sprint("user", i%3)))
			}
		})
	}
	wg.Wait()
	// Of the minor versions 0 to 499, the three from 1.35 to 1.37 are allowed.
	if want := map[string]int{"kubectl older": 8 * 35, "kubectl newer": 8 * 462}; !maps.Equal(counted.of, want) {
		t.Errorf("counted %v, want %v", counted.of, want)
	}
}

func TestSkewMetric(t *testing.T) {
	h := WithSkew(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), skewWindow)
	skewRequests.Reset()
	defer skewRequests.Reset()
	for _, agent := range []string{"kubelet/v1.20.0", "kubelet/v1.20.0", "kube-proxy/v1.37.0", "kubectl/v1.36.0", "\n"} {
		h.ServeHTTP(httptest.NewRecorder(), sent(agent, "", "admin"))
	}
	metric, err := testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, "concord_component_skew_requests_total", map[string]string{"component": "kubelet"}, "direction")
	if err != nil || !maps.Equal(metric, map[string]float64{"older": 2}) {
		t.Errorf("kubelet: %v, %v", metric, err)
	}
	metric, err = testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, "concord_component_skew_requests_total", nil, "component")
	if want := map[string]float64{"kubelet": 2, "kube-proxy": 1, "unknown": 1}; err != nil || !maps.Equal(metric, want) {
		t.Errorf("by component: %v, want %v, %v", metric, want, err)
	}
}
