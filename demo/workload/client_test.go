package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/testbed/load"
)

// fakeStore is the store that several fake servers share: the last mark of each object.
type fakeStore struct {
	mu    sync.Mutex
	marks map[string]load.Mark
}

// fakeServer answers as an API server does, with the faults in its script: each write uses up
// one word, and when there is none left the server answers normally.
//
//	refuse  503 with Retry-After in the body
//	drain   503 with Retry-After in the header
//	drop    break the connection without having written
//	lose    write, then break the connection
//	fail    500
type fakeServer struct {
	store  *fakeStore
	mu     sync.Mutex
	script []string
}

func (s *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	word := ""
	if len(s.script) > 0 && r.Method != http.MethodGet {
		word, s.script = s.script[0], s.script[1:]
	}
	s.mu.Unlock()
	switch word {
	case "refuse":
		err := apierrors.NewServiceUnavailable("closed")
		err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
		reply(w, http.StatusServiceUnavailable, &err.ErrStatus)
	case "drain":
		w.Header().Set("Retry-After", "1")
		reply(w, http.StatusServiceUnavailable, &apierrors.NewServiceUnavailable("shutting down").ErrStatus)
	case "fail":
		reply(w, http.StatusInternalServerError, &apierrors.NewInternalError(errors.New("etcd")).ErrStatus)
	case "drop":
		panic(http.ErrAbortHandler)
	case "lose":
		s.answer(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	default:
		s.answer(w, r)
	}
}

func reply(w http.ResponseWriter, code int, body any) {
	if status, ok := body.(*metav1.Status); ok {
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func (s *fakeServer) answer(w http.ResponseWriter, r *http.Request) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	gr := schema.GroupResource{Resource: "things"}
	name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	switch r.Method {
	case http.MethodGet:
		m, ok := s.store.marks[name]
		if !ok {
			reply(w, http.StatusNotFound, &apierrors.NewNotFound(gr, name).ErrStatus)
			return
		}
		reply(w, http.StatusOK, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations(m)}})
	case http.MethodPost:
		object, m, err := created(r, body)
		if err != nil {
			reply(w, http.StatusBadRequest, &apierrors.NewBadRequest(err.Error()).ErrStatus)
			return
		}
		if _, ok := s.store.marks[object]; ok {
			reply(w, http.StatusConflict, &apierrors.NewAlreadyExists(gr, object).ErrStatus)
			return
		}
		s.store.marks[object] = m
		reply(w, http.StatusCreated, struct{}{})
	case http.MethodPatch:
		var operations []struct{ Op, Path, Value string }
		if err := json.Unmarshal(body, &operations); err != nil || operations[0].Op != "test" {
			reply(w, http.StatusBadRequest, &apierrors.NewBadRequest("patch").ErrStatus)
			return
		}
		if operations[0].Value != fmt.Sprint(s.store.marks[name].Counter) {
			reply(w, http.StatusUnprocessableEntity, &apierrors.NewInvalid(schema.GroupKind{}, name, nil).ErrStatus)
			return
		}
		m, _ := readMark(map[string]string{counterAnnotation: operations[1].Value, attemptAnnotation: operations[2].Value, viaAnnotation: operations[3].Value})
		s.store.marks[name] = m
		reply(w, http.StatusOK, struct{}{})
	}
}

// created reads the name and the mark of the object to create.
func created(r *http.Request, body []byte) (string, load.Mark, error) {
	if r.Header.Get("Content-Type") == runtime.ContentTypeProtobuf && !bytes.HasPrefix(body, []byte("k8s\x00")) {
		return "", load.Mark{}, errors.New("not protobuf")
	}
	if m, err := StoredMark(body); err != nil || m.Counter != 1 {
		return "", m, fmt.Errorf("mark %v: %w", m, err)
	}
	if r.Header.Get("Content-Type") == runtime.ContentTypeProtobuf {
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			return "", load.Mark{}, err
		}
		m, err := StoredMark(body)
		return object.(metav1.Object).GetName(), m, err
	}
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(body, &object); err != nil {
		return "", load.Mark{}, err
	}
	m, err := readMark(object.Annotations)
	return object.Name, m, err
}

// fakeCluster starts one server for each script.
func fakeCluster(t *testing.T, scripts ...string) (*client, *fakeStore) {
	store := &fakeStore{marks: map[string]load.Mark{}}
	c := &client{name: "w", timeout: 10 * time.Second, work: load.NewJournal()}
	for i, script := range scripts {
		host := httptest.NewServer(&fakeServer{store: store, script: strings.Fields(script)})
		if script == "gone" {
			host.Close()
		} else {
			t.Cleanup(host.Close)
		}
		e, err := NewEndpoint(fmt.Sprintf("server-%d", i+1), &rest.Config{Host: host.URL}, false)
		if err != nil {
			t.Fatal(err)
		}
		c.endpoints = append(c.endpoints, e)
	}
	return c, store
}

func TestClientWrite(t *testing.T) {
	for _, tt := range []struct {
		name    string
		scripts []string
		// failed are the outcomes of the attempts of a creation and an update.
		failed string
	}{
		{"all is well", []string{"", ""}, ""},
		{"a 503 is asked again elsewhere", []string{"refuse", ""}, "503 with Retry-After"},
		{"the server is stopping", []string{"drain", ""}, "503 with Retry-After"},
		{"nobody listens", []string{"gone", ""}, "no connection, no connection"},
		{"the connection breaks before the write", []string{"drop", ""}, "broken connection"},
		{"the connection breaks after the write", []string{"lose", ""}, "broken connection"},
		{"an update's answer is lost", []string{"", "lose"}, "broken connection"},
		{"every server fails once", []string{"refuse", "drop"}, "503 with Retry-After, broken connection"},
		{"an answer that must not be", []string{"fail", ""}, "unexpected answer"},
	} {
		for _, gr := range Shown {
			t.Run(tt.name+"/"+gr.Resource, func(t *testing.T) {
				c, store := fakeCluster(t, tt.scripts...)
				o := &object{key: load.Key{Resource: gr, Name: "writer-a"}}
				for range 2 {
					if err := c.write(t.Context(), o); err != nil {
						t.Fatal(err)
					}
				}
				var failed []string
				failures, _ := c.work.Failures()
				for _, f := range failures {
					failed = append(failed, string(f.Outcome))
				}
				if got := strings.Join(failed, ", "); got != tt.failed {
					t.Errorf("failed attempts: %q, want %q", got, tt.failed)
				}
				m := store.marks["writer-a"]
				if m.Counter != 2 || o.last != m {
					t.Errorf("stored %+v, known %+v, want write 2", m, o.last)
				}
				lost, foreign := c.work.Check(map[load.Key]load.Stored{o.key: {Mark: m, Filler: filler("writer-a")}})
				if n, _, _ := c.work.Counts(); len(lost)+len(foreign) > 0 || n != 2 {
					t.Errorf("lost %q, foreign %q, %d acknowledged", lost, foreign, n)
				}
			})
		}
	}
}

func TestClientGivesUp(t *testing.T) {
	c, _ := fakeCluster(t, "refuse")
	c.stubborn = never
	if err := c.write(t.Context(), &object{key: load.Key{Resource: Gadgets, Name: "a"}}); !errors.Is(err, errGivenUp) {
		t.Errorf("error %v, want %v", err, errGivenUp)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c, _ = fakeCluster(t, "drop drop drop")
	if err := c.write(ctx, &object{key: load.Key{Resource: Gadgets, Name: "a"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
	if _, n, _ := c.work.Counts(); n != 0 {
		t.Errorf("%d failures are blamed on servers when the demo ends", n)
	}
}

func TestLoadFailsWithTheFirstWrongAnswer(t *testing.T) {
	c, store := fakeCluster(t, "refuse drop", "lose")
	var loaded atomic.Int64
	err := Load(t.Context(), 40, c.endpoints, c.work, &loaded)
	if n, _, _ := c.work.Counts(); err != nil || n != 40 || len(store.marks) != 40 || loaded.Load() != 40 {
		t.Errorf("error %v, %d acknowledged, %d stored, %d counted; want 40", err, n, len(store.marks), loaded.Load())
	}
	c, _ = fakeCluster(t, "fail")
	if err := Load(t.Context(), 4, c.endpoints, c.work, &loaded); !errors.Is(err, errGivenUp) {
		t.Errorf("error %v, want %v", err, errGivenUp)
	}
}

func TestHeldCountsWhatWasInFlight(t *testing.T) {
	h := &Held{answers: map[load.Outcome]int64{}}
	h.sent()
	h.sent()
	h.answered(time.Now(), load.Acknowledged) // before the server is resumed
	early := time.Now()
	if n := h.Resume(); n != 1 {
		t.Errorf("%d in flight, want 1", n)
	}
	h.sent()
	h.answered(early, load.Unavailable)
	h.answered(time.Now().Add(time.Second), load.Acknowledged)
	if len(h.answers) != 1 || h.answers[load.Unavailable] != 1 {
		t.Errorf("answers %v", h.answers)
	}
	var none *Held
	none.sent()
	none.answered(early, load.Broken)
}

func TestObjectsAreAboutOneKiB(t *testing.T) {
	protobufs := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	m := load.Mark{Counter: 7, Attempt: "w1-9", Via: "server-2"}
	for _, gr := range Shown {
		t.Run(gr.Resource, func(t *testing.T) {
			body, err := NewBody(load.Key{Resource: gr, Name: "load-000001"}, "v2", m)
			if err != nil {
				t.Fatal(err)
			}
			raw, custom := body.([]byte)
			asJSON := raw
			if !custom {
				encoder := scheme.Codecs.EncoderForVersion(protobufs, schema.GroupVersion{Group: gr.Group, Version: "v1"})
				if raw, err = runtime.Encode(encoder, body.(runtime.Object)); err != nil {
					t.Fatal(err)
				}
				if asJSON, err = json.Marshal(body); err != nil {
					t.Fatal(err)
				}
			}
			if len(raw) < 700 || len(raw) > 1300 {
				t.Errorf("%d bytes", len(raw))
			}
			if got, err := StoredMark(raw); err != nil || got != m {
				t.Errorf("mark %+v, %v", got, err)
			}
			var read listed
			if err := json.Unmarshal(asJSON, &read); err != nil {
				t.Fatal(err)
			}
			if got := read.stored(); got.Mark != m || got.Filler != filler("load-000001") {
				t.Errorf("read back: %+v", got)
			}
		})
	}
}

func TestHalfOfWhatIsLoadedAreCustomResources(t *testing.T) {
	counts := map[schema.GroupResource]int{}
	for i := range 100 {
		counts[LoadedResource(i)]++
	}
	if counts[Gadgets] != 50 || counts[Policies] != 1 || counts[Bindings] != 49 {
		t.Errorf("%v", counts)
	}
}

func TestWritersWriteAllResources(t *testing.T) {
	var own []*object
	seen := map[schema.GroupResource]int{}
	names := map[load.Key]bool{}
	for n := range 24 {
		o := next(&own, n, "w0")
		seen[o.key.Resource]++
		names[o.key] = true
	}
	if len(names) != 6 || len(seen) != 3 {
		t.Errorf("%d objects, writes by resource %v; want 6 objects", len(names), seen)
	}
}
