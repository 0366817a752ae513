package dashboard

import (
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/concord-dev/concord/status"
	"github.com/concord-dev/concord/verdict"
)

func request(t *testing.T, h http.Handler, method, url string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func newHandler(t *testing.T) *Handler {
	t.Helper()
	h, err := New(t.Context(), Config{Cluster: &rest.Config{Host: "http://127.0.0.1:1"}, Lifecycles: verdict.Lifecycles})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestPages: the page consists of its own files, each file that it asks for is served, and its
// headers forbid everything from elsewhere.
func TestPages(t *testing.T) {
	h := newHandler(t)
	index := request(t, h, http.MethodGet, "/").Body.String()
	for _, file := range []string{"page/page.js", "page/page.css", "page/icon.svg"} {
		if !strings.Contains(index, `"`+file+`"`) {
			t.Errorf("the page does not ask for %s", file)
		}
	}
	names, err := fs.Glob(files, "page/*")
	if err != nil || len(names) < 4 {
		t.Errorf("the files are %v, %v", names, err)
	}
	for _, name := range names {
		path := strings.TrimSuffix("/"+name, "page/index.html")
		w := request(t, h, http.MethodGet, path)
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") == "" || w.Body.Len() == 0 {
			t.Errorf("%s: %d, %v", path, w.Code, w.Header())
		}
		if csp := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none';") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: the policy is %q", path, csp)
		}
		for _, elsewhere := range []string{"https://", "//cdn", "innerHTML", "eval("} {
			if strings.Contains(w.Body.String(), elsewhere) {
				t.Errorf("%s has %q", path, elsewhere)
			}
		}
	}
	for _, c := range []struct {
		method, path string
		want         int
	}{{http.MethodGet, "/page/nothing.js", http.StatusNotFound}, {http.MethodGet, "/page/", http.StatusNotFound}, {http.MethodGet, "/page", http.StatusNotFound}, {http.MethodPost, "/", http.StatusMethodNotAllowed}, {http.MethodHead, "/", http.StatusOK}} {
		if w := request(t, h, c.method, c.path); w.Code != c.want {
			t.Errorf("%s %s is answered with %d, want %d", c.method, c.path, w.Code, c.want)
		}
	}
}

// TestLocal: only a client that has the URL with its token gets the page; a page of another site
// does not, even if the name of that site resolves to this address.
func TestLocal(t *testing.T) {
	served := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte("at " + r.URL.Path)) })
	l := NewLocal(served, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4000})
	if other := NewLocal(served, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4000}); other.URL() == l.URL() || len(l.token) < 20 {
		t.Errorf("the URLs are %s and %s", l.URL(), other.URL())
	}
	if w := request(t, l, http.MethodGet, l.URL()+"page/page.js"); w.Code != http.StatusOK || w.Body.String() != "at /page/page.js" {
		t.Errorf("the page is answered with %d %s", w.Code, w.Body)
	}
	if w := request(t, l, http.MethodGet, strings.Replace(l.URL(), "127.0.0.1", "localhost", 1)); w.Code != http.StatusOK {
		t.Errorf("by the name localhost it is answered with %d", w.Code)
	}
	if w := request(t, l, http.MethodGet, l.URL(), "Origin", "http://127.0.0.1:4000"); w.Code != http.StatusOK {
		t.Errorf("from itself it is answered with %d", w.Code)
	}
	for what, w := range map[string]*httptest.ResponseRecorder{
		"no token":      request(t, l, http.MethodGet, "http://127.0.0.1:4000/"),
		"a wrong token": request(t, l, http.MethodGet, "http://127.0.0.1:4000/"+strings.Repeat("A", 26)+"/"),
		"another name":  request(t, l, http.MethodGet, strings.Replace(l.URL(), "127.0.0.1", "evil.example.com", 1)),
		"another port":  request(t, l, http.MethodGet, strings.Replace(l.URL(), "4000", "80", 1)),
		"another site":  request(t, l, http.MethodGet, l.URL(), "Origin", "http://evil.example.com"),
	} {
		if w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), l.token) || strings.Contains(w.Body.String(), "at /") {
			t.Errorf("%s: answered with %d %s", what, w.Code, w.Body)
		}
	}
}

// story returns what is observed in a story of package status.
func story(t testing.TB, name string) status.Observed {
	t.Helper()
	archive, err := txtar.ParseFile("../status/testdata/" + name + ".txtar")
	if err != nil || archive.Files[0].Name != "observed.yaml" {
		t.Fatalf("%s: %v", name, err)
	}
	var o status.Observed
	if err := yaml.UnmarshalStrict(archive.Files[0].Data, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestAdvice: where nothing is migrated the headline says what to do.
func TestAdvice(t *testing.T) {
	p, _ := pictureOf(story(t, "stock-bare"), verdict.Lifecycles())
	if !strings.Contains(p.Headline, "nothing is migrated here. What to do: install concord controllers") {
		t.Errorf("the headline is %q", p.Headline)
	}
}

// TestReleases: the releases before and after those that servers run are judged by what is stored.
func TestReleases(t *testing.T) {
	p, rows := pictureOf(story(t, "roll"), verdict.Lifecycles())
	if len(rows) != 3 || len(p.Problems) == 0 || len(p.Releases) != 2 {
		t.Fatalf("%d rows, %d problems, %+v", len(rows), len(p.Problems), p.Releases)
	}
	for i, want := range []string{"1.38", "1.35"} {
		if p.Releases[i].Release != want || p.Releases[i].Back != (i == 1) {
			t.Errorf("the neighbours are %+v", p.Releases)
		}
	}
	back := p.Releases[1]
	if back.Verdict != "unsafe" || back.NotSafe != 2 || back.Resources[0].Resource != "mutatingadmissionpolicies.admissionregistration.k8s.io" {
		t.Errorf("1.35, which does not know admissionregistration.k8s.io/v1 of these, is judged %+v", back)
	}
	p, _ = pictureOf(story(t, "stock-cluster"), verdict.Lifecycles())
	if p.Releases[0].NotSafe == 0 || p.Releases[0].Verdict != "could not tell" || p.Releases[0].Do == "" {
		t.Errorf("where stored sets are not known the verdict is %+v", p.Releases[0])
	}
	if p, _ = pictureOf(story(t, "nothing"), verdict.Lifecycles()); len(p.Releases) != 0 {
		t.Errorf("of nothing there is a verdict %+v", p.Releases)
	}
}
