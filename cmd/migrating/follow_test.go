package migrating

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/concord-dev/concord/api/census"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// terminal keeps the lines that are written to it. Lines that have scrolled out of it cannot be
// changed any more.
type terminal struct {
	t             *testing.T
	width, height int
	lines         []string // all lines; the cursor stands behind the last
	gone          int      // how many lines have scrolled out
}

var upAndErase = regexp.MustCompile("^\x1b\\[([0-9]+)A\r\x1b\\[J")

// Write implements io.Writer.
func (s *terminal) Write(p []byte) (int, error) {
	text := string(p)
	if up := upAndErase.FindStringSubmatch(text); up != nil {
		n, err := strconv.Atoi(up[1])
		must(s.t, err)
		s.lines = s.lines[:max(s.gone, len(s.lines)-n)]
		text = text[len(up[0]):]
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		for runes := []rune(line); len(runes) > s.width; runes = []rune(line) {
			s.lines, line = append(s.lines, string(runes[:s.width])), string(runes[s.width:])
		}
		s.lines = append(s.lines, line)
	}
	s.gone = max(s.gone, len(s.lines)+1-s.height)
	return len(p), nil
}

// TestLook: a migration counts as deleted only if the NotFound error names it; a server that is
// still starting answers 404 for the whole path.
func TestLook(t *testing.T) {
	m := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "1"}}
	named := apierrors.NewNotFound(migrationv1alpha1.StorageVersionMigrations, "m")
	path := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", migrationv1alpha1.StorageVersionMigrations, "m", "404 page not found", 0, true)
	for name, test := range map[string]struct {
		answer  error
		deleted bool
		fails   bool
	}{
		"there":                 {nil, false, false},
		"deleted":               {named, true, false},
		"a server that starts":  {path, false, true},
		"a server that is away": {errors.New("connection refused"), false, true},
	} {
		cluster, err := newFake(interceptor.Funcs{Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, found client.Object, _ ...client.GetOption) error {
			if test.answer == nil {
				if got, ok := found.(*migrationv1alpha1.StorageVersionMigration); ok {
					*got = *m.DeepCopy()
				}
			}
			return test.answer
		}})
		must(t, err)
		a := &asked{resource: schema.GroupResource{Resource: "secrets"}, migration: m}
		if err := look(t.Context(), cluster, []*asked{a}); (err != nil) != test.fails || a.deleted != test.deleted {
			t.Errorf("%s: deleted %v, %v", name, a.deleted, err)
		}
	}
}

// TestLookWaits: a migration that waits for agreement is shown with the reason in its status.
func TestLookWaits(t *testing.T) {
	m := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "1"}}
	cluster, err := newFake(interceptor.Funcs{Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, found client.Object, _ ...client.GetOption) error {
		if got, ok := found.(*migrationv1alpha1.StorageVersionMigration); ok {
			*got = *m.DeepCopy()
		}
		return nil
	}})
	must(t, err)
	a := &asked{resource: schema.GroupResource{Resource: "secrets"}, migration: m}
	for _, step := range []struct{ why, want string }{
		{"x does not report", "secrets: waiting: x does not report"},
		{"", "secrets: waiting for a server"},
	} {
		migrationv1alpha1.SetWaiting(m, step.why, metav1.Now())
		if err := look(t.Context(), cluster, []*asked{a}); err != nil || a.line(8) != step.want {
			t.Errorf("shown %q, %v, want %q", a.line(8), err, step.want)
		}
	}
}

// TestLineRetrying: a migration that makes no progress is shown with the reason, and without a
// rate.
func TestLineRetrying(t *testing.T) {
	m := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	m.Status.Progress = &migrationv1alpha1.MigrationProgress{Total: 4, Done: 1, ObjectsPerSecond: 2}
	migrationv1alpha1.SetCondition(m, migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRetrying, "the webhook is down", metav1.Now())
	a := &asked{resource: schema.GroupResource{Resource: "secrets"}, migration: m}
	if got, want := a.line(0), "secrets: retrying: 1 of 4 objects (25 %), the webhook is down"; got != want {
		t.Errorf("shown %q, want %q", got, want)
	}
}

func newFake(funcs interceptor.Funcs) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(migrationv1alpha1.AddToScheme(scheme), apiserverinternalv1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(funcs).Build(), nil
}

// TestMigrateViewOnTerminal: however many migrations there are, and however small the terminal,
// each migration that ended leaves one line, and below these lines is only the present state of the
// others.
func TestMigrateViewOnTerminal(t *testing.T) {
	for _, size := range []struct{ width, height int }{{80, 24}, {80, 40}, {44, 5}, {44, 2}} {
		screen := &terminal{t: t, width: size.width, height: size.height}
		view := newMigrateView(screen)
		view.size = func() (int, int) { return size.width, size.height }
		var all []*asked
		for i := range 30 {
			a := &asked{resource: schema.GroupResource{Resource: fmt.Sprintf("r%02d", i)}, migration: &migrationv1alpha1.StorageVersionMigration{}}
			all = append(all, a)
		}
		now := metav1.NewTime(time.Now())
		var ended []string
		view.show(all)
		for _, a := range slices.Backward(all) {
			migrationv1alpha1.SetCondition(a.migration, migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRewriting, "", now)
			a.migration.Status.Progress = &migrationv1alpha1.MigrationProgress{Total: 10, Done: 5, ObjectsPerSecond: 1}
			view.show(all)
			running := a.resource.String() + ": [###############.................."
			if below := screen.lines[len(ended):]; size.height > 2 && !slices.ContainsFunc(below, func(line string) bool { return strings.HasPrefix(line, running[:18]) }) {
				t.Errorf("%v: %s, which runs, is not among\n%s", size, a.resource, strings.Join(below, "\n"))
			}
			a.deleted = true
			a.migration.Name = "m"
			ended = append(ended, fmt.Sprintf("%s: cancelled: the migration m was deleted", a.resource))
			view.show(all)
			wantOnTerminal(t, screen, ended, len(all)-len(ended))
		}
	}
}

// wantOnTerminal expects the lines of the migrations that ended, below them as many of the others
// as have room, and then the number of the rest.
func wantOnTerminal(t *testing.T, screen *terminal, ended []string, left int) {
	t.Helper()
	n := min(len(ended), len(screen.lines))
	if !slices.Equal(screen.lines[:n], ended) {
		t.Fatalf("%d columns, %d rows: ended are\n%s\nand shown is\n%s", screen.width, screen.height, strings.Join(ended, "\n"), strings.Join(screen.lines, "\n"))
	}
	below := screen.lines[n:]
	told := 0
	for i, line := range below {
		more, found := strings.CutPrefix(line, "… and ")
		switch {
		case found && i == len(below)-1:
			hidden, err := strconv.Atoi(strings.TrimSuffix(more, " more"))
			if err != nil || hidden < 2 {
				t.Errorf("the last line is %q", line)
			}
			told += hidden
		case strings.HasPrefix(line, "r"):
			told++
		default:
			t.Errorf("below the ended ones is %q", line)
		}
	}
	if told != left || len(below) > screen.height-1 {
		t.Errorf("%d columns, %d rows: %d have not ended, and below the others is\n%s", screen.width, screen.height, left, strings.Join(below, "\n"))
	}
}

// TestDiscover: the name of a resource may contain a version, as with kubectl.
func TestDiscover(t *testing.T) {
	resources := func(version string) string {
		return `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"example.com/` + version + `","resources":[{"name":"widgets","singularName":"widget","kind":"Widget","verbs":["list"]}]}`
	}
	answers := map[string]string{
		"/api": `{"kind":"APIVersions","versions":[]}`,
		"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"example.com","versions":[{"groupVersion":"example.com/v1","version":"v1"},
			{"groupVersion":"example.com/v2","version":"v2"}],"preferredVersion":{"groupVersion":"example.com/v2","version":"v2"}}]}`,
		"/apis/example.com/v1": resources("v1"), "/apis/example.com/v2": resources("v2"),
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, found := answers[r.URL.Path]
		if !found {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(text))
	}))
	defer api.Close()
	for name, version := range map[string]string{"widgets.v1.example.com": "v1", "widgets.v3.example.com": "", "widgets.example.com": "v2", "widget": "v2"} {
		gvr, err := discover(&rest.Config{Host: api.URL}, name)
		if (err == nil) != (version != "") || gvr.Version != version {
			t.Errorf("%s is %v, %v", name, gvr, err)
		}
	}
}

// TestEstimateElsewhere: a dry run says of a resource that another API server stores that nothing is counted, beside the
// rows of other resources.
func TestEstimateElsewhere(t *testing.T) {
	widgets := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == census.Path+"secrets" {
			_ = json.NewEncoder(w).Encode(census.Resource{Resource: "secrets"}) // an error means that the client has gone
			return
		}
		status := census.NotStored(widgets).(*apierrors.StatusError).Status()
		status.Kind, status.APIVersion = "Status", "v1"
		w.WriteHeader(int(status.Code))
		_ = json.NewEncoder(w).Encode(status)
	}))
	defer server.Close()
	for output, want := range map[string]string{
		"table": "widgets.example.com\n          - objects: the server asked does not store it\nnothing is stored of 1 resources\n",
		"json":  `"bytes": null, "rewrite": null, "encodings": [], "expectedSeconds": null, "objectsPerSecond": null, "basis": "unknown"`,
	} {
		var out strings.Builder
		err := (&migrateOptions{output: output}).estimate(t.Context(), &rest.Config{Host: server.URL}, []schema.GroupResource{widgets, {Resource: "secrets"}}, &out)
		got := out.String()
		if output == "json" {
			got = regexp.MustCompile(`\s+`).ReplaceAllString(got, " ")
		}
		if err != nil || !strings.Contains(got, want) || strings.Count(got, "null") > 5 || output == "json" && strings.Count(got, `"elsewhere"`) != 1 {
			t.Errorf("shown\n%s%v", got, err)
		}
	}
}

// TestNoCensus: a dry run goes on without a census only if the server says that it does not store
// the resource. All other errors end the dry run.
func TestNoCensus(t *testing.T) {
	gr := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	censuses := schema.GroupResource{Group: "concord.dev", Resource: "census"}
	for name, test := range map[string]struct {
		answer *apierrors.StatusError
		want   bool
	}{
		"no store":            {apierrors.NewNotFound(censuses, gr.String()), true},
		"no store of another": {apierrors.NewNotFound(censuses, "gadgets.example.com"), false},
		"another thing":       {apierrors.NewNotFound(gr, gr.String()), false},
		"forbidden":           {apierrors.NewForbidden(censuses, gr.String(), errors.New("no")), false},
		"broken":              {apierrors.NewInternalError(errors.New("etcd")), false},
		"no such path":        {nil, false},
	} {
		asked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if test.answer == nil {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			status := test.answer.Status()
			status.Kind, status.APIVersion = "Status", "v1"
			w.WriteHeader(int(status.Code))
			_ = json.NewEncoder(w).Encode(status) // an error means that the client has gone
		}))
		_, err := TakeCensus(t.Context(), &rest.Config{Host: asked.URL}, gr, Envelopes)
		if err == nil || census.IsNotStored(err, gr) != test.want {
			t.Errorf("%s: %v is taken for no store: %v", name, err, !test.want)
		}
		asked.Close()
	}
}
