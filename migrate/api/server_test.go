package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

// stored is an object of the test's server.
type stored struct {
	uid      string
	revision int
	// written counts the patches that the server took.
	written int
}

// testServer serves widgets over HTTP, as an API server would: consistent pages with
// tokens, and patches that compare uid and resourceVersion.
type testServer struct {
	t    *testing.T
	http *httptest.Server

	mu       sync.Mutex // guards the fields below
	revision int
	objects  map[types.NamespacedName]*stored
	// pages are the snapshots of lists that go on, by their revision.
	pages map[int][]metav1.PartialObjectMetadata
	// under and most are the patches under way, now and at most.
	under, most int
	asked       map[types.NamespacedName]int
	// broken objects cannot be read, for these reasons.
	broken map[types.NamespacedName]error
	// mended are those that can be read since a revision.
	mended map[types.NamespacedName]int
	// ownTokens are not of the API server library's format, and uncounted lists do not say
	// how much is left.
	ownTokens, uncounted bool
	lists                int
	// answer, if not nil, answers a request instead; nil from it lets it through.
	answer func(r *http.Request, name types.NamespacedName) error
}

func startServer(t *testing.T, n int) *testServer {
	t.Helper()
	s := newTestServer(t)
	for i := range n {
		s.create(name(i))
	}
	return s
}

// newTestServer returns one without objects that does not listen.
func newTestServer(t *testing.T) *testServer {
	return &testServer{
		t: t, objects: map[types.NamespacedName]*stored{}, pages: map[int][]metav1.PartialObjectMetadata{}, asked: map[types.NamespacedName]int{},
		broken: map[types.NamespacedName]error{}, mended: map[types.NamespacedName]int{},
	}
}

func name(i int) types.NamespacedName {
	return types.NamespacedName{Namespace: fmt.Sprint("ns-", i%3), Name: fmt.Sprintf("o-%04d", i)}
}

func (s *testServer) create(name types.NamespacedName) {
	s.revision++
	s.objects[name] = &stored{uid: fmt.Sprint("uid-", s.revision), revision: s.revision}
}

func (s *testServer) engine() *Engine {
	s.t.Helper()
	s.http = httptest.NewServer(s)
	s.t.Cleanup(s.http.Close)
	client, err := NewClient(&rest.Config{Host: s.http.URL})
	if err != nil {
		s.t.Fatal(err)
	}
	return New(client)
}

var target = Target{GroupResource: widgets, Versions: []string{"v2", "v1"}}

// run returns when no request is being served any more: one may be that nobody waits for.
func (s *testServer) run(o Options) (Result, error) {
	s.t.Helper()
	result, err := s.engine().Run(s.t.Context(), target, impatient(o), nil)
	s.http.Close()
	return result, err
}

// impatient are options of a run that hardly waits for a webhook.
func impatient(o Options) Options {
	o.WebhookPatience = cmp.Or(o.WebhookPatience, 10*time.Millisecond)
	return o
}

// ServeHTTP implements http.Handler.
func (s *testServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := nameIn(r.URL.Path)
	if !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
		s.t.Errorf("%s %s asks for %s", r.Method, r.URL, r.Header.Get("Accept"))
	}
	if r.Method == http.MethodPatch {
		s.mu.Lock()
		s.under++
		s.most = max(s.most, s.under)
		s.asked[name]++
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.under--
		}()
	}
	var reply any
	var err error
	s.mu.Lock()
	answer := s.answer
	s.mu.Unlock()
	if answer != nil {
		err = answer(r, name)
	}
	if err == nil {
		reply, err = s.serve(r, name)
	}
	status, _ := err.(apierrors.APIStatus)
	switch {
	case err == nil:
	case status == nil: // no answer at all
		panic(http.ErrAbortHandler)
	default:
		st := status.Status()
		st.Kind, st.APIVersion = "Status", "v1"
		if st.Details != nil && st.Details.RetryAfterSeconds > 0 {
			w.Header().Set("Retry-After", fmt.Sprint(st.Details.RetryAfterSeconds))
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(st.Code))
		reply = st
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(reply)
}

func nameIn(path string) types.NamespacedName {
	parts := strings.Split(strings.TrimPrefix(path, "/apis/example.com/"), "/")
	if len(parts) == 5 && parts[1] == "namespaces" {
		return types.NamespacedName{Namespace: parts[2], Name: parts[4]}
	}
	return types.NamespacedName{}
}

func (s *testServer) serve(r *http.Request, name types.NamespacedName) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodGet && name.Name == "" {
		return s.list(r)
	}
	o, ok := s.objects[name]
	if !ok {
		return nil, apierrors.NewNotFound(widgets, name.Name)
	}
	if err := s.broken[name]; err != nil && s.mended[name] == 0 {
		return nil, err
	}
	if r.Method == http.MethodPatch {
		var patch map[string]map[string]string
		if err := json.NewDecoder(r.Body).Decode(&patch); err != nil || r.Header.Get("Content-Type") != string(types.MergePatchType) || len(patch) != 1 || len(patch["metadata"]) != 2 {
			s.t.Errorf("a patch %v of type %s: %v", patch, r.Header.Get("Content-Type"), err)
		}
		if m := patch["metadata"]; m["uid"] != o.uid || m["resourceVersion"] != fmt.Sprint(o.revision) {
			return nil, apierrors.NewConflict(widgets, name.Name, fmt.Errorf("it has changed"))
		}
		s.revision++
		o.revision = s.revision
		o.written++
	}
	return metadataOf(name, o), nil
}

func metadataOf(name types.NamespacedName, o *stored) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}}
	m.Namespace, m.Name, m.UID, m.ResourceVersion = name.Namespace, name.Name, types.UID(o.uid), fmt.Sprint(o.revision)
	return m
}

// list serves pages. A token is the revision of the list and the key where it goes on.
func (s *testServer) list(r *http.Request) (any, error) {
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil {
		s.t.Errorf("a list without a limit: %s", r.URL)
	}
	from := token{Version: tokenVersion, Revision: int64(s.revision)}
	if text := r.URL.Query().Get("continue"); text != "" {
		if from, err = s.readToken(text); err != nil {
			return nil, err
		}
	} else {
		s.pages[s.revision] = s.snapshot()
	}
	s.lists++
	revision := int(from.Revision)
	if s.pages[revision] == nil { // the token goes on at the newest revision
		if revision = s.revision; s.pages[revision] == nil {
			s.pages[revision] = s.snapshot()
		}
	}
	all := s.pages[revision]
	all = all[sort.Search(len(all), func(i int) bool { return keyOf(&all[i]) >= from.Start }):]
	list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}}
	list.ResourceVersion = fmt.Sprint(revision)
	list.Items = all[:min(len(all), limit)]
	for _, m := range list.Items {
		n := types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
		if err := s.broken[n]; err != nil && (s.mended[n] == 0 || revision < s.mended[n]) {
			return nil, err
		}
	}
	if left := int64(len(all) - limit); left > 0 {
		from.Revision = int64(revision)
		list.Continue = from.at(keyOf(&list.Items[limit-1]) + "\x00")
		if list.RemainingItemCount = &left; s.uncounted {
			list.RemainingItemCount = nil
		}
		if s.ownTokens {
			list.Continue = "own:" + list.Continue
		}
	}
	return list, nil
}

func (s *testServer) readToken(text string) (token, error) {
	own, is := strings.CutPrefix(text, "own:")
	from, ok := readToken(own)
	if !ok || is != s.ownTokens || path.Clean("/"+from.Start) != "/"+from.Start {
		return token{}, apierrors.NewBadRequest("continue key is not valid")
	}
	return from, nil
}

func (s *testServer) snapshot() []metav1.PartialObjectMetadata {
	var all []metav1.PartialObjectMetadata
	for _, name := range slices.SortedFunc(maps.Keys(s.objects), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }) {
		all = append(all, *metadataOf(name, s.objects[name]))
	}
	return all
}

// unwritten returns the objects that were not written since they were created.
func (s *testServer) unwritten() []types.NamespacedName {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []types.NamespacedName
	for name, o := range s.objects {
		if o.written == 0 {
			names = append(names, name)
		}
	}
	return names
}
