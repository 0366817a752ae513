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
	// written is the number of patches that were applied.
	written int
}

// testServer serves widgets over HTTP as an API server would: consistent pages with continue tokens, and
// patches that compare uid and resourceVersion.
type testServer struct {
	t    *testing.T
	http *httptest.Server

	mu       sync.Mutex // guards the fields below
	revision int
	objects  map[types.NamespacedName]*stored
	// pages are the snapshots of unfinished lists, by revision.
	pages map[int][]metav1.PartialObjectMetadata
	// under is the number of patches under way, most its maximum so far.
	under, most int
	asked       map[types.NamespacedName]int
	// broken are the objects that cannot be read, with the error for each.
	broken map[types.NamespacedName]error
	// mended are the broken objects that can be read again, with the revision since which they can.
	mended map[types.NamespacedName]int
	// nameless servers do not name the objects that they cannot read, like kube-apiserver before 1.37.
	// ownTokens have another format than k8s.io/apiserver's. uncounted lists do not say how many objects are
	// left.
	nameless, ownTokens, uncounted bool
	// withoutNamespaces makes the resource cluster-scoped.
	withoutNamespaces bool
	// annotations are the annotations of every object in a list.
	annotations map[string]string
	lists       int
	// answer, if not nil, is called first; its error is the answer to the request.
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

// newTestServer returns a server without objects that does not listen.
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
	must(s.t, err)
	return New(client)
}

var target = Target{GroupResource: widgets, Versions: []string{"v2", "v1"}}

// run runs a migration, and waits for the end of all requests, since the run may have given up some.
func (s *testServer) run(o Options) (Result, error) {
	s.t.Helper()
	result, err := s.engine().Run(s.t.Context(), target, impatient(o), nil)
	s.http.Close()
	return result, err
}

// impatient returns options with which a run hardly waits for a webhook.
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
	case status == nil: // closes the connection without an answer
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
	switch {
	case len(parts) == 5 && parts[1] == "namespaces":
		return types.NamespacedName{Namespace: parts[2], Name: parts[4]}
	case len(parts) == 3:
		return types.NamespacedName{Name: parts[2]}
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
	if s.withoutNamespaces && name.Namespace != "" {
		return nil, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, widgets, "", "404 page not found", 0, true)
	}
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

// list serves pages. A token has the revision of the list and the key at which it goes on.
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
	if s.pages[revision] == nil { // goes on at the newest revision
		if revision = s.revision; s.pages[revision] == nil {
			s.pages[revision] = s.snapshot()
		}
	}
	all := s.pages[revision]
	all = all[sort.Search(len(all), func(i int) bool { return keyOf(&all[i]) >= from.Start }):]
	list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}}
	list.ResourceVersion = fmt.Sprint(revision)
	var unread []metav1.StatusCause
	seen := 0
	for ; seen < len(all) && len(list.Items) < limit && len(unread) < maxCauses; seen++ {
		n := types.NamespacedName{Namespace: all[seen].Namespace, Name: all[seen].Name}
		switch err := s.broken[n]; {
		case err == nil, s.mended[n] > 0 && revision >= s.mended[n]:
			list.Items = append(list.Items, all[seen])
		case s.nameless:
			return nil, err
		default:
			unread = append(unread, metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse, Field: "/registry/example.com/widgets/" + keyOf(&all[seen]), Message: err.Error()})
		}
	}
	if len(unread) > 0 {
		return nil, unreadError(unread)
	}
	if left := int64(len(all) - limit); left > 0 {
		from.Revision = int64(revision)
		list.Continue = from.behind(types.NamespacedName{Namespace: list.Items[limit-1].Namespace, Name: list.Items[limit-1].Name}).text()
		if list.RemainingItemCount = &left; s.uncounted {
			list.RemainingItemCount = nil
		}
		if s.ownTokens {
			list.Continue = "own:" + list.Continue
		}
	}
	return list, nil
}

// maxCauses is the number of objects that kube-apiserver names at most.
const maxCauses = 100

// unreadError is the error of kube-apiserver 1.37 for a list with objects that it cannot read.
func unreadError(causes []metav1.StatusCause) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError,
		Message: "failed to read one or more widgets.example.com from the storage: " + causes[0].Message,
		Details: &metav1.StatusDetails{Group: "example.com", Kind: "widgets", Name: "list", Causes: causes},
	}}
}

// keyOf returns the key by which the list is sorted.
func keyOf(m *metav1.PartialObjectMetadata) string {
	return strings.TrimPrefix(m.Namespace+"/"+m.Name, "/")
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
		m := metadataOf(name, s.objects[name])
		m.Annotations = s.annotations
		all = append(all, *m)
	}
	return all
}

// unwritten returns the objects that have not been patched.
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

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
