package stock

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	migrateapi "github.com/concord-dev/concord/migrate/api"
	"github.com/concord-dev/concord/migrate/claim"
	"github.com/concord-dev/concord/stock/observed"
	"github.com/concord-dev/concord/stock/replicas"
)

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

// widget is a stored object.
type widget struct {
	revision int
	stored   string // the version in which it is stored
	fields   []metav1.ManagedFieldsEntry
}

// widgetServers are kube-apiservers that serve widgets over HTTP; each writes a version of its own. A page has the
// objects that are stored at the time of the request.
type widgetServers struct {
	t        *testing.T
	replicas []observed.Replica

	mu       sync.Mutex // guards the fields below
	revision int
	objects  []*widget // by number
	patches  int
	lists    int
	// asked are the numbers of requests, by the version in their path.
	asked map[string]int
	// listed, if not nil, is called for a list that begins at this object; its error is the answer. patched is the
	// same for patches.
	listed  func(from int) error
	patched func(i int) error
}

// startWidgets starts a server for each version, with n objects that are stored in the first version.
func startWidgets(t *testing.T, n int, versions ...string) *widgetServers {
	t.Helper()
	s := &widgetServers{t: t, asked: map[string]int{}}
	for range n {
		s.revision++
		s.objects = append(s.objects, &widget{revision: s.revision, stored: versions[0]})
	}
	for i, version := range versions {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, version) }))
		t.Cleanup(server.Close)
		id := agree.ServerID(string(rune('a' + i)))
		s.replicas = append(s.replicas, observed.Replica{Process: observed.Process{Lease: id, Holder: "1"}, Address: strings.TrimPrefix(server.URL, "https://")})
	}
	return s
}

func (s *widgetServers) config() *rest.Config {
	return &rest.Config{Host: "https://" + s.replicas[0].Address, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
}

// prover returns a prover that uses all servers.
func (s *widgetServers) prover(all bool) *prover {
	s.t.Helper()
	api, err := migrateapi.NewClient(s.config())
	must(s.t, err)
	return newProver(api, &observer{
		asking: replicas.New(replicas.Config{Rest: s.config()}), definitions: newDefinitions(), here: s.replicas,
	}, Config{VerifyAll: all})
}

// prove runs a proof with all servers.
func (s *widgetServers) prove(all bool, how exam) (observed.Proof, error) {
	if how.replicas = s.replicas; how.turn == nil {
		how.turn = atOnce
	}
	proof, _, err := s.prover(all).prove(s.t.Context(), widgetJob, how)
	return proof, err
}

// create stores one more object in this version.
func (s *widgetServers) create(version string) {
	s.revision++
	s.objects = append(s.objects, &widget{revision: s.revision, stored: version})
}

var widgetJob = claim.Job{GroupResource: widgets, Encoding: "example.com/v2", Versions: []string{"v2", "v1"}}

func widgetName(i int) string { return fmt.Sprintf("w%05d", i) }

func (s *widgetServers) answer(w http.ResponseWriter, r *http.Request, writes string) {
	s.mu.Lock()
	reply, err := s.serve(r, writes)
	s.mu.Unlock()
	s.reply(w, r, reply, err)
}

func (s *widgetServers) reply(w http.ResponseWriter, r *http.Request, reply any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if status, ok := err.(apierrors.APIStatus); ok {
		failed := status.Status()
		failed.Kind, failed.APIVersion = "Status", "v1"
		w.WriteHeader(int(failed.Code))
		reply = failed
	}
	if err := json.NewEncoder(w).Encode(reply); err != nil {
		s.t.Errorf("answer %s %s: %v", r.Method, r.URL, err)
	}
}

func (s *widgetServers) serve(r *http.Request, writes string) (any, error) {
	path := strings.Split(r.URL.Path, "/") // /apis/example.com/v2/namespaces/default/widgets/w00000
	s.asked[path[3]]++
	if !slices.Contains(path, "namespaces") {
		return s.list(r)
	}
	i, err := strconv.Atoi(strings.TrimPrefix(path[7], "w"))
	if err != nil || i >= len(s.objects) {
		return nil, apierrors.NewNotFound(widgets, path[7])
	}
	if r.Method == http.MethodGet {
		return s.metadata(i), nil
	}
	s.patches++
	if s.patched != nil {
		if err := s.patched(i); err != nil {
			return nil, err
		}
	}
	if r.Header.Get("Content-Type") == string(types.JSONPatchType) {
		return s.setFields(r, i)
	}
	var patch metav1.PartialObjectMetadata
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if patch.ResourceVersion != strconv.Itoa(s.objects[i].revision) {
		return nil, apierrors.NewConflict(widgets, path[7], errors.New("it was written"))
	}
	if o := s.objects[i]; o.stored != writes {
		s.revision++
		o.stored, o.revision = writes, s.revision
	}
	return s.metadata(i), nil
}

func (s *widgetServers) setFields(r *http.Request, i int) (any, error) {
	var patch []struct{ Value json.RawMessage }
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil || len(patch) != 2 {
		return nil, apierrors.NewBadRequest(fmt.Sprint(patch, err))
	}
	s.revision++
	s.objects[i].fields, s.objects[i].revision = nil, s.revision
	if err := json.Unmarshal(patch[0].Value, &s.objects[i].fields); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return s.metadata(i), nil
}

func (s *widgetServers) list(r *http.Request) (any, error) {
	s.lists++
	query := r.URL.Query()
	limit, err := strconv.Atoi(query.Get("limit"))
	if err != nil {
		s.t.Errorf("a list without a limit: %s", r.URL)
	}
	// A token is "<number>", or "<number>-fresh" if it is given in place of an expired one.
	from, _ := strconv.Atoi(strings.TrimSuffix(query.Get("continue"), "-fresh"))
	if s.listed != nil && !strings.HasSuffix(query.Get("continue"), "-fresh") {
		if err := s.listed(from); err != nil {
			return nil, err
		}
	}
	list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}}
	list.ResourceVersion = strconv.Itoa(s.revision)
	for i := from; i < min(from+limit, len(s.objects)); i++ {
		list.Items = append(list.Items, *s.metadata(i))
	}
	if from+limit < len(s.objects) {
		list.Continue = strconv.Itoa(from + limit)
	}
	return list, nil
}

func (s *widgetServers) metadata(i int) *metav1.PartialObjectMetadata {
	o := s.objects[i]
	m := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}}
	m.Namespace, m.Name, m.UID, m.ResourceVersion = "default", widgetName(i), types.UID(widgetName(i)), strconv.Itoa(o.revision)
	m.ManagedFields = o.fields
	return m
}

// tooOld returns a server's error for an expired continue token. It has a new token for the same place, unless goOn
// is "".
func tooOld(goOn string) error {
	err := apierrors.NewResourceExpired("the continue token is too old")
	err.ErrStatus.Continue = goOn
	return err
}

var now = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// lease is the identity Lease of a kube-apiserver, renewed now.
func lease(name, address string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: storageversion.IdentityNamespace, Labels: map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue},
			Annotations: map[string]string{corev1.AnnotationPeerAdvertiseAddress: address},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(name + "_1"), LeaseDurationSeconds: ptr.To[int32](3600), RenewTime: ptr.To(metav1.NewMicroTime(now))},
	}
}
