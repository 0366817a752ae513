package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/concord-dev/concord/status"
)

// TestDraw: with --watch, a text replaces the last one on a terminal; elsewhere it is printed below the last
// one, and only if it differs.
func TestDraw(t *testing.T) {
	const clear = "\x1b[H\x1b[2J"
	for name, test := range map[string]struct {
		watch, tty bool
		want       string
	}{
		"once":                   {want: "a\nb\nb\na\n"},
		"once, on a terminal":    {tty: true, want: "a\nb\nb\na\n"},
		"watched":                {watch: true, want: "a\n\nb\n\na\n"},
		"watched, on a terminal": {watch: true, tty: true, want: clear + "a\n" + clear + "b\n" + clear + "b\n" + clear + "a\n"},
	} {
		var out strings.Builder
		var last string
		for _, text := range []string{"a\n", "b\n", "b\n", "a\n"} {
			must(t, draw(&out, text, &last, test.watch, test.tty))
		}
		if out.String() != test.want {
			t.Errorf("%s: %q, not %q", name, out.String(), test.want)
		}
	}
	var last string
	if err := draw(closed{}, "a", &last, true, true); !errors.Is(err, errClosed) {
		t.Errorf("a terminal that is gone: %v", err)
	}
}

// kubeconfigOf writes a kubeconfig that names the server, and returns its path.
func kubeconfigOf(t *testing.T, server string) string {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("{clusters: [{name: a, cluster: {server: %q}}], contexts: [{name: a, context: {cluster: a}}], current-context: a}", server)
	must(t, os.WriteFile(kubeconfig, []byte(text), 0o600))
	return kubeconfig
}

// TestComplete: shell completion offers the resources of the cluster that the flags name.
func TestComplete(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/migration.k8s.io/v1alpha1/storagestates" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"StorageStateList","apiVersion":"migration.k8s.io/v1alpha1","metadata":{},"items":[
			{"metadata":{"name":"widgets.example.com"},"spec":{"resource":{"group":"example.com","resource":"widgets"}}},
			{"metadata":{"name":"secrets"},"spec":{"resource":{"resource":"secrets"}}}]}`))
	}))
	defer api.Close()
	for want, args := range map[string][]string{
		"secrets\nwidgets.example.com\n:4\n": {"why", ""}, "widgets.example.com\n:4\n": {"migrate", "secrets", "wid"}, "text\njson\n:4\n": {"status", "-o", ""},
	} {
		cmd, out := newCommand(), &strings.Builder{}
		cmd.SetOut(out)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(append([]string{"__complete", "--kubeconfig", kubeconfigOf(t, api.URL)}, args...))
		if err := cmd.ExecuteContext(t.Context()); err != nil || out.String() != want {
			t.Errorf("%v is completed to %q, %v", args, out.String(), err)
		}
	}
}

// pluginOf returns a plugin whose kubeconfig names the cluster at a URL.
func pluginOf(t *testing.T, url string) *plugin {
	t.Helper()
	kubeconfig := kubeconfigOf(t, url)
	flags := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}, &clientcmd.ConfigOverrides{})
	return &plugin{flags: flags}
}

var errClosed = errors.New("closed")

type closed struct{}

// Write implements io.Writer.
func (closed) Write([]byte) (int, error) { return 0, errClosed }

// TestStyleOf: colours are used on terminals only, and NO_COLOR turns them off.
func TestStyleOf(t *testing.T) {
	var out strings.Builder
	if style, is := terminal(&out); is || style.Color || style.Width != plainWidth {
		t.Errorf("what is no terminal has %+v", style)
	}
	for name, test := range map[string]struct {
		width int
		env   map[string]string
		want  status.Style
	}{
		"a terminal":         {120, nil, status.Style{Width: 120, Color: true}},
		"one without a size": {0, nil, status.Style{Width: plainWidth, Color: true}},
		"a narrow one":       {10, nil, status.Style{Width: leastWidth, Color: true}},
		"NO_COLOR":           {120, map[string]string{"NO_COLOR": "1"}, status.Style{Width: 120}},
		"NO_COLOR, empty":    {120, map[string]string{"NO_COLOR": ""}, status.Style{Width: 120, Color: true}},
		"a dumb one":         {120, map[string]string{"TERM": "dumb"}, status.Style{Width: 120}},
		"another one":        {120, map[string]string{"TERM": "xterm"}, status.Style{Width: 120, Color: true}},
	} {
		style := styleOf(test.width, func(name string) string { return test.env[name] })
		if style != test.want {
			t.Errorf("%s: %+v, not %+v", name, style, test.want)
		}
	}
}

// TestUnreachable: the dashboard says at once if the cluster does not answer; an answer of any kind, such as
// 403, counts.
func TestUnreachable(t *testing.T) {
	forbids := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }))
	t.Cleanup(forbids.Close)
	if text := unreachable(t.Context(), &rest.Config{Host: forbids.URL}); text != "" {
		t.Errorf("of one that answers it says %q", text)
	}
	if text := unreachable(t.Context(), &rest.Config{Host: "https://127.0.0.1:1"}); !strings.HasPrefix(text, "It does not answer now") || !strings.Contains(text, "connection refused") {
		t.Errorf("of one that is not there it says %q", text)
	}
}

// TestRefusals: a user that may not list the objects is told so once, with the ClusterRole that is needed.
func TestRefusals(t *testing.T) {
	if got := refusals(nil); got != nil {
		t.Errorf("of nothing there are %q", got)
	}
	got := refusals(map[string]error{"StorageStates": errors.New("forbidden: b"), "Leases": errors.New("forbidden: a")})
	if want := "Leases, StorageStates may not be listed: forbidden: a; readers need, for the whole cluster, the ClusterRole view, "; len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("they are %q", got)
	}
}

// TestNobodyLooks: if no StorageStates exist, the error about an unknown name also says which program makes
// them.
func TestNobodyLooks(t *testing.T) {
	c := &cluster{config: &rest.Config{Host: "https://127.0.0.1:1"}}
	if _, err := c.resolve(status.Observed{}, "deployments"); err == nil || !strings.Contains(err.Error(), "concord controllers make them") {
		t.Errorf("without StorageStates: %v", err)
	}
}

// TestReaders: the ClusterRole for readers, which is aggregated to Kubernetes' role view, allows to list all
// that a status is made from.
func TestReaders(t *testing.T) {
	text, err := os.ReadFile("../../deploy/controllers/base/readers.yaml")
	must(t, err)
	var role rbacv1.ClusterRole
	must(t, yaml.UnmarshalStrict(text, &role))
	if !strings.Contains(refusals(map[string]error{"": nil})[0], role.Name) || role.Labels["rbac.authorization.k8s.io/aggregate-to-view"] != "true" {
		t.Errorf("the role is %s, with the labels %v", role.Name, role.Labels)
	}
	for _, name := range []string{
		"leases.coordination.k8s.io", "storagestates.migration.k8s.io", "storageversions.internal.apiserver.k8s.io", "storageversionmigrations.migration.k8s.io",
		"storageversionmigrations.storagemigration.k8s.io", "customresourcedefinitions.apiextensions.k8s.io",
	} {
		gr := schema.ParseGroupResource(name)
		if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.APIGroups, gr.Group) && slices.Contains(r.Resources, gr.Resource) && slices.Contains(r.Verbs, "list")
		}) {
			t.Errorf("readers may not list %s", name)
		}
	}
}
