package migrator

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// withoutDefinitions is a kube-apiserver without any CustomResourceDefinition.
func withoutDefinitions(w http.ResponseWriter, r *http.Request) {
	const definitions = "/apis/apiextensions.k8s.io/v1"
	missing := apierrors.NewNotFound(schema.GroupResource{Group: apiextensionsv1.GroupName, Resource: "customresourcedefinitions"}, "x").Status()
	missing.Kind, missing.APIVersion = "Status", "v1"
	version := metav1.GroupVersionForDiscovery{GroupVersion: "apiextensions.k8s.io/v1", Version: "v1"}
	var reply any
	switch {
	case r.URL.Query().Has("sendInitialEvents"):
		missing.Code, missing.Reason = http.StatusUnprocessableEntity, metav1.StatusReasonInvalid // does not know such lists
	case r.URL.Query().Has("watch"):
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	case r.URL.Path == "/api":
		reply = metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions", APIVersion: "v1"}}
	case r.URL.Path == "/apis":
		reply = metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{{
			Name: apiextensionsv1.GroupName, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
		}}}
	case r.URL.Path == definitions:
		reply = metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version.GroupVersion, APIResources: []metav1.APIResource{{
			Name: "customresourcedefinitions", Kind: "CustomResourceDefinition", Verbs: metav1.Verbs{"get", "list", "watch"},
		}}}
	case r.URL.Path == definitions+"/customresourcedefinitions" && strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList"):
		reply = metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	case r.URL.Path == definitions+"/customresourcedefinitions":
		reply = apiextensionsv1.CustomResourceDefinitionList{
			TypeMeta: metav1.TypeMeta{Kind: "CustomResourceDefinitionList", APIVersion: version.GroupVersion}, ListMeta: metav1.ListMeta{ResourceVersion: "1"},
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if reply == nil {
		w.WriteHeader(int(missing.Code))
		reply = missing
	}
	_ = json.NewEncoder(w).Encode(reply)
}

// TestAbsent: if there is no CRD of a name, for example because of a typing error, that is told at the start, once
// for each name, also if it is given twice. SetupWithManager cannot be called twice in a process, since the
// controller's name is taken, unless the manager says so.
func TestAbsent(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(withoutDefinitions))
	t.Cleanup(server.Close)
	mgr, err := ctrl.NewManager(&rest.Config{Host: server.URL}, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan string, 10)
	options := Options{CRDs: []string{"widgets.example.com", "gadgets.example.com", "widgets.example.com"}, Changed: func(crd string, s Standing) {
		if s.Done || !strings.Contains(s.Why, "there is no CustomResourceDefinition of this name") {
			t.Errorf("%s: %+v", crd, s)
		}
		told <- crd
	}}
	if err := SetupWithManager(mgr, options); err != nil {
		t.Fatal(err)
	}
	if err := SetupWithManager(mgr, options); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("a second time: %v", err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- mgr.Start(t.Context())
		close(ended)
	}()
	t.Cleanup(func() { <-ended })
	names := map[string]bool{}
	for len(names) < 2 {
		select {
		case crd := <-told:
			if names[crd] {
				t.Errorf("%s is told again", crd)
			}
			names[crd] = true
		case err := <-ended:
			t.Fatalf("the manager has ended: %v", err)
		}
	}
}

// newManager returns a manager with a kube-apiserver that answers so. Any number of managers can have a migrator.
func newManager(t *testing.T, answer http.HandlerFunc) manager.Manager {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	mgr, err := ctrl.NewManager(&rest.Config{Host: server.URL}, ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return mgr
}

// TestSideBySide: a definition whose step takes long does not keep another one from its own; what is told is told by one
// goroutine at a time.
func TestSideBySide(t *testing.T) {
	const first, second = "widgets.example.com", "gadgets.example.com"
	begun := map[string]chan struct{}{first: make(chan struct{}), second: make(chan struct{})}
	var once sync.Map
	mgr := newManager(t, func(w http.ResponseWriter, r *http.Request) {
		if name := path.Base(r.URL.Path); begun[name] != nil {
			if _, again := once.LoadOrStore(name, true); !again {
				close(begun[name])
			}
			for crd, c := range begun {
				select {
				case <-c:
				case <-r.Context().Done():
				case <-time.After(30 * time.Second):
					t.Errorf("%s waits until %s is done", crd, name)
				}
			}
		}
		withoutDefinitions(w, r)
	})
	told := make(chan string, 10)
	var busy atomic.Bool
	if err := SetupWithManager(mgr, Options{CRDs: []string{first, second}, Changed: func(crd string, _ Standing) {
		if !busy.CompareAndSwap(false, true) {
			t.Error("Changed is called by two goroutines at a time")
		}
		for range 1000 {
			runtime.Gosched() // the other one has the same answer, and would call now
		}
		busy.Store(false)
		told <- crd
	}}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	for range 2 {
		select {
		case <-told:
		case err := <-ended:
			t.Fatalf("the manager has ended: %v", err)
		}
	}
	stop()
	if err := <-ended; err != nil || len(told) > 0 {
		t.Errorf("%d more are told, and the manager ends with %v", len(told), err)
	}
}

// TestSelectedCache: a definition that the manager's cache leaves out, as one that selects by labels does, is noticed when
// it is made.
func TestSelectedCache(t *testing.T) {
	const crd = "widgets.example.com"
	made := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{Kind: "CustomResourceDefinition", APIVersion: "apiextensions.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Name: crd, UID: "u", ResourceVersion: "2", Generation: 1},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"}, Scope: apiextensionsv1.NamespaceScoped,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true}},
		},
	}
	raw, err := json.Marshal(made)
	if err != nil {
		t.Fatal(err)
	}
	begin := make(chan struct{})
	mgr := newManager(t, func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		w.Header().Set("Content-Type", "application/json")
		switch {
		case query.Get("fieldSelector") == "metadata.name="+crd && query.Has("watch") && !query.Has("sendInitialEvents"):
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			select {
			case <-begin:
				_ = json.NewEncoder(w).Encode(metav1.WatchEvent{Type: "ADDED", Object: apiruntime.RawExtension{Raw: raw}})
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			case <-r.Context().Done():
			}
			return
		case path.Base(r.URL.Path) == crd:
			select {
			case <-begin:
				_, _ = w.Write(raw)
				return
			default:
			}
		}
		withoutDefinitions(w, r)
	})
	told := make(chan Standing, 10)
	if err := SetupWithManager(mgr, Options{CRDs: []string{crd}, Changed: func(_ string, s Standing) { told <- s }}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	for _, missing := range []bool{true, false} {
		select {
		case s := <-told:
			if strings.Contains(s.Why, "there is no CustomResourceDefinition of this name") != missing {
				t.Errorf("missing %v: told is %+v", missing, s)
			}
		case <-time.After(time.Minute):
			t.Fatalf("missing %v: nothing is told", missing)
		}
		if missing {
			close(begin)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestOptions: options that cannot be meant are refused, each in the words of Options.
func TestOptions(t *testing.T) {
	crds := []string{"widgets.example.com"}
	if err := SetupWithManager(nil, Options{CRDs: crds}); err == nil {
		t.Error("no manager is needed")
	}
	for why, bad := range map[string]Options{
		"needs the name of a":     {},
		`"" is no name`:           {CRDs: []string{""}},
		`"widgets" is no name`:    {CRDs: []string{"widgets"}},
		`"Widgets.`:               {CRDs: []string{"Widgets.example.com"}},
		`" widgets.`:              {CRDs: []string{" widgets.example.com"}},
		`"example.com/widgets`:    {CRDs: []string{"example.com/widgets"}},
		"PruneAfter: -5s":         {CRDs: crds, PruneAfter: -5 * time.Second},
		"PruneAfter: 600ns":       {CRDs: crds, PruneAfter: 600},
		"MaxObjectsPerSecond: -1": {CRDs: crds, MaxObjectsPerSecond: -1},
		"Settle: 1ns":             {CRDs: crds, Settle: 1},
		"Settle: -1m0s":           {CRDs: crds, Settle: -time.Minute},
		"Poll: 30ns":              {CRDs: crds, Poll: 30},
		"Poll: -1s":               {CRDs: crds, Poll: -time.Second},
	} {
		if err := SetupWithManager(newManager(t, withoutDefinitions), bad); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%+v: %v, and not %q", bad, err, why)
		}
	}
	for _, good := range []Options{{CRDs: crds}, {CRDs: crds, PruneAfter: Never}, {CRDs: crds, Settle: 10 * time.Millisecond, Poll: shortest, MaxObjectsPerSecond: 1}} {
		if err := SetupWithManager(newManager(t, withoutDefinitions), good); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
}

// TestLeavesNothing: a migrator whose manager never starts leaves no goroutine that runs code of this module or was
// started by it, and no event broadcaster.
func TestLeavesNothing(t *testing.T) {
	left := func() int {
		stacks, n := make([]byte, 1<<20), 0
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			ours := strings.Contains(stack, "concord-dev/concord/") && !strings.Contains(stack, "testing.") && !strings.Contains(stack, "withoutDefinitions")
			if ours || strings.Contains(stack, "watch.(*Broadcaster).loop") {
				n++
			}
		}
		return n
	}
	mgr := newManager(t, withoutDefinitions)
	before := left()
	if err := SetupWithManager(mgr, Options{CRDs: []string{"widgets.example.com"}}); err != nil {
		t.Fatal(err)
	}
	if n := left() - before; n > 0 {
		t.Errorf("%d goroutines are left", n)
	}
}
