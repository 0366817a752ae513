package stock

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/fake"
	testclock "k8s.io/utils/clock/testing"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/stock/observed"
	"github.com/concord-dev/concord/stock/replicas"
)

// newTestObserver returns an observer that has these definitions.
func newTestObserver(t *testing.T, crds ...*apiextensionsv1.CustomResourceDefinition) *observer {
	t.Helper()
	o := &observer{
		definitions: newDefinitions(), clock: testclock.NewFakeClock(now), logger: logr.Discard(),
		broadcast: watch.NewLongQueueBroadcaster(queued, watch.WaitIfChannelFull),
		memory:    observed.NewMemory(observed.Config{}), known: knownVersions{}, kinds: map[schema.GroupResource]string{}, unheard: map[schema.GroupResource]string{},
	}
	t.Cleanup(o.broadcast.Shutdown)
	for _, crd := range crds {
		o.definitions.take(crd)
	}
	return o
}

// observing runs a round in which one kube-apiserver shows a resource stored in this version; "" shows none.
func (o *observer) observing(gr schema.GroupResource, kind, gv string, age time.Duration) {
	p := observed.Process{Lease: "a", Holder: "1"}
	answer := observed.Answer{Release: "1.37", Shown: map[schema.GroupResource]observed.Shown{}}
	if parsed, err := schema.ParseGroupVersion(gv); err == nil && gv != "" {
		answer.Shown[gr] = observed.Shown{Hash: migrationv1alpha1.StorageVersionHash(parsed.WithKind(kind)), Kind: kind, Served: []string{gv}}
	}
	r := observed.Round{
		Began: now.Add(age), Asked: now.Add(age), Before: []observed.Replica{{Process: p}}, After: []observed.Replica{{Process: p}},
		Answers: map[observed.Process]observed.Answer{p: answer}, Defined: o.definitions.defined(),
	}
	r.Versions = versionsOf(r.Answers)
	o.observe(r)
}

// TestTold: the StorageVersion that controllers get for a resource has the newest history. For a custom resource it also
// names the definition.
func TestTold(t *testing.T) {
	o := newTestObserver(t, widgetDefinition("a", 1, "v1", "v1"))
	for i, gv := range []string{"example.com/v1", "example.com/v2"} {
		o.observing(widgets, "Widget", gv, time.Duration(i)*time.Minute)
		history, err := storageversion.History(o.known[widgets])
		must(t, err)
		if _, ok := history.Last[agree.Encoding(gv)]; !ok || !custom(o.known[widgets]) || o.known[widgets].Annotations[storageversion.DefinitionAnnotation] != "a/1" {
			t.Errorf("%s is stored, and what is told of a custom resource is %v", gv, o.known[widgets].Annotations)
		}
	}
	o.definitions.forget(widgetDefinition("a", 1, "v1", "v1"))
	o.observing(widgets, "Widget", "example.com/v1", 2*time.Minute)
	if !custom(o.known[widgets]) {
		t.Errorf("its definition is forgotten before the resource is: %v", o.known[widgets].Annotations)
	}
	jobs := schema.GroupResource{Group: "batch", Resource: "cronjobs"}
	for i, gv := range []string{"batch/v1", "batch/v1beta1", "batch/v1"} {
		o.observing(jobs, "CronJob", gv, time.Duration(i)*time.Minute)
		is, _ := o.memory.Of(jobs)
		if history, err := storageversion.History(o.known[jobs]); err != nil || history.Epoch != is.History.Epoch {
			t.Errorf("at epoch %d is told %d, %v", is.History.Epoch, history.Epoch, err)
		}
	}
}

// TestForgottenKind: the kind of a custom resource is forgotten with the resource, so that a user's migration of it is told
// that it is not served. The kind of a built-in resource is kept, for its StorageState.
func TestForgottenKind(t *testing.T) {
	o := newTestObserver(t, widgetDefinition("a", 1, "v1", "v1"))
	jobs := schema.GroupResource{Group: "batch", Resource: "cronjobs"}
	o.observing(widgets, "Widget", "example.com/v1", 0)
	o.observing(jobs, "CronJob", "batch/v1", time.Minute)
	o.definitions.forget(widgetDefinition("a", 1, "v1", "v1"))
	o.observing(widgets, "Widget", "", 2*time.Minute)
	if kind, err := o.Kind(t.Context(), widgets); !meta.IsNoMatchError(err) {
		t.Errorf("its kind is %q, %v", kind, err)
	}
	if kind, err := o.Kind(t.Context(), jobs); kind != "CronJob" || err != nil {
		t.Errorf("the kind of %s is %q, %v", jobs, kind, err)
	}
}

// TestNobodyAnswers: while a kube-apiserver does not answer, a resource that none has shown does not count as gone.
// Otherwise, its StorageState from before the start would get Unknown, and everything would be migrated.
func TestNobodyAnswers(t *testing.T) {
	o := newTestObserver(t)
	is := func(when, want string) {
		t.Helper()
		sv, err := o.of(t.Context(), widgets)
		if sv != nil || (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s it is told as %v, %v", when, sv, err)
		}
	}
	is("before the first round", "have not been asked yet")
	p := observed.Replica{Process: observed.Process{Lease: "a", Holder: "1"}}
	o.observe(observed.Round{Began: now, Asked: now, Before: []observed.Replica{p}, After: []observed.Replica{p},
		Answers: map[observed.Process]observed.Answer{p.Process: {Failed: "does not answer"}}, Versions: versionsOf(nil)})
	is("when nobody answered", "1 kube-apiservers did not say what widgets.example.com is")
	o.observing(schema.GroupResource{Group: "batch", Resource: "cronjobs"}, "CronJob", "batch/v1", time.Minute)
	is("when all answered", "")
}

// TestPolicyRemembers: the storedVersions of a definition are not believed if it was made again, or its StorageState was
// deleted: the former definition may have been deleted without its objects.
func TestPolicyRemembers(t *testing.T) {
	crd := widgetDefinition("a", 1, "v1", "v1")
	defined := &evolve.CRD{Name: crd.Name, StoredVersions: []agree.Encoding{"example.com/v1"}}
	seen := evolve.Observation{Resource: widgets, State: &evolve.State{}, StorageVersion: &evolve.StorageVersion{}, CRD: defined}
	anew := evolve.Observation{Resource: widgets, StorageVersion: &evolve.StorageVersion{}, CRD: defined}
	p := newPolicy(observed.Settings{})
	if initial := p.of(anew, crd).Initial; !slices.Equal(initial, defined.StoredVersions) {
		t.Errorf("seen for the first time, it begins with %v", initial)
	}
	p.of(seen, crd)
	if initial := p.of(anew, crd).Initial; initial != nil {
		t.Errorf("its StorageState was deleted, and begins with %v", initial)
	}
	p.of(evolve.Observation{Resource: widgets}, nil)
	if initial := p.of(anew, crd).Initial; initial != nil || len(p.looked) > 0 {
		t.Errorf("made anew, it begins with %v, and %v is remembered", initial, p.looked)
	}
}

// TestSilentReplica: while a full round waits for a kube-apiserver that hangs, rounds for single resources do not wait, and
// nothing is agreed on. When it answers, it is asked once more.
func TestSilentReplica(t *testing.T) {
	hung, goOn := make(chan struct{}, 1), make(chan struct{})
	var broken atomic.Bool
	broken.Store(true)
	var asked atomic.Int32
	a := startDiscovery(t, nil)
	b := startDiscovery(t, func(w http.ResponseWriter) bool {
		if broken.Swap(false) {
			http.Error(w, "broken", http.StatusInternalServerError)
			return false
		}
		if asked.Add(1) == 1 {
			hung <- struct{}{}
			<-goOn
		}
		return true
	})
	o := newTestObserver(t)
	o.services = aggregator.NewSimpleClientset().ApiregistrationV1()
	o.asking = replicas.New(replicas.Config{
		Kube: fake.NewClientset(lease("a", a), lease("b", b)), Rest: &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}},
		Timeout: time.Minute, Clock: o.clock,
	})
	why := func(when string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		told := make(chan string, 1)
		go func() {
			sv, err := o.of(ctx, widgets)
			if err != nil || sv == nil {
				told <- fmt.Sprintf("no answer: %v", err)
				return
			}
			told <- messageOf(sv)
		}()
		select {
		case w := <-told:
			return w
		case <-ctx.Done():
			close(goOn)
			t.Fatalf("%s: a round for one resource waits for the replica that hangs", when)
			return ""
		}
	}
	must(t, o.round(t.Context()))
	full := make(chan error, 1)
	go func() { full <- o.round(t.Context()) }()
	<-hung
	if got := why("while it hangs"); !strings.Contains(got, "b does not answer") {
		t.Errorf("while one hangs: %q", got)
	}
	close(goOn)
	must(t, <-full)
	if got := why("after that"); got != "" || asked.Load() != 3 {
		t.Errorf("it is not agreed on, %q, after it was asked %d times", got, asked.Load())
	}
}

// TestSharedRounds: callers that come while kube-apiservers are being asked wait for another round, which they share, since
// the answers of the present round may be older than the change for which they ask. A caller whose context ends does not
// fail the others.
func TestSharedRounds(t *testing.T) {
	const looks = 20
	for name, givenUp := range map[string]int{"all wait": 0, "all but one give up": looks - 1} {
		t.Run(name, func(t *testing.T) {
			hung, goOn := make(chan struct{}), make(chan struct{})
			var asked atomic.Int32
			o := newTestObserver(t)
			o.services = aggregator.NewSimpleClientset().ApiregistrationV1()
			o.asking = replicas.New(replicas.Config{
				Kube: fake.NewClientset(lease("a", startDiscovery(t, func(http.ResponseWriter) bool {
					if asked.Add(1) == 1 {
						close(hung)
						<-goOn
					}
					return true
				}))), Rest: &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, Timeout: time.Minute, Clock: o.clock,
			})
			full := make(chan error, 1)
			go func() { full <- o.round(t.Context()) }()
			<-hung
			ctx, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			gaveUp, waited := make(chan error, looks), make(chan error, looks)
			for i := range looks {
				ctx, done := ctx, gaveUp
				if i >= givenUp {
					ctx, done = t.Context(), waited
				}
				go func() {
					done <- o.round(ctx, schema.GroupResource{Group: widgets.Group, Resource: fmt.Sprintf("w%d", i)})
				}()
			}
			must(t, wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
				o.mu.Lock()
				defer o.mu.Unlock()
				return o.next != nil && len(o.next.only) == looks, nil
			}))
			giveUp()
			close(goOn)
			must(t, <-full)
			for range looks - givenUp {
				must(t, <-waited)
			}
			for range givenUp {
				<-gaveUp
			}
			if got := asked.Load(); got != 2 {
				t.Errorf("for %d looks that began during a round it is asked %d times in all", looks, got)
			}
		})
	}
}

// startDiscovery starts a kube-apiserver that shows widgets, of which there are none, and returns its address. before is
// called before it answers for its version; if it returns false, it has answered itself.
func startDiscovery(t *testing.T, before func(http.ResponseWriter) bool, down ...schema.GroupVersion) (address string) {
	t.Helper()
	group := metav1.APIGroup{Name: widgets.Group, Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: "example.com/v1", Version: "v1"}}}
	groups := []metav1.APIGroup{group}
	for _, gv := range down {
		groups = append(groups, metav1.APIGroup{Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: gv.String(), Version: gv.Version}}})
	}
	replies := map[string]any{
		"/version": version.Info{Major: "1", Minor: "37"},
		"/api":     metav1.APIVersions{},
		"/apis":    metav1.APIGroupList{Groups: groups},
		"/apis/example.com/v1": metav1.APIResourceList{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{{
			Name: widgets.Resource, Kind: "Widget", StorageVersionHash: migrationv1alpha1.StorageVersionHash(schema.GroupVersionKind{Group: widgets.Group, Version: "v1", Kind: "Widget"}),
		}}},
		"/apis/example.com/v1/widgets": metav1.PartialObjectMetadataList{},
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" && before != nil && !before(w) {
			return
		}
		if slices.ContainsFunc(down, func(gv schema.GroupVersion) bool { return strings.HasPrefix(r.URL.Path, "/apis/"+gv.String()) }) {
			http.Error(w, "service unavailable", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(replies[r.URL.Path]); err != nil {
			t.Errorf("answer %s: %v", r.URL, err)
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "https://")
}

// TestBuiltInAnew: the log says why all built-in resources begin anew, for example after a kube-apiserver came and went.
// What users changed or asked for is then migrated first.
func TestBuiltInAnew(t *testing.T) {
	o := newTestObserver(t, widgetDefinition("a", 1, "v1", "v1"))
	var log strings.Builder
	o.logger = funcr.New(func(_, args string) { log.WriteString(args + "\n") }, funcr.Options{})
	a, b := observed.Process{Lease: "a", Holder: "1"}, observed.Process{Lease: "b", Holder: "2"}
	jobs := schema.GroupResource{Group: "batch", Resource: "cronjobs"}
	shown := map[schema.GroupResource]observed.Shown{jobs: {Hash: migrationv1alpha1.StorageVersionHash(schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "CronJob"}), Kind: "CronJob", Served: []string{"batch/v1"}}}
	for i, there := range [][]observed.Replica{{{Process: a}}, {{Process: a}, {Process: b}}, {{Process: a}}, {{Process: a}}} {
		r := observed.Round{Began: now.Add(time.Duration(i) * time.Minute), Asked: now.Add(time.Duration(i) * time.Minute), Before: there, After: there,
			Answers: map[observed.Process]observed.Answer{a: {Release: "1.37", Shown: shown}, b: {Failed: "does not answer"}}}
		r.Versions = versionsOf(r.Answers)
		o.observe(r)
	}
	if said := log.String(); strings.Count(said, "Built-in resources begin anew") != 1 || !strings.Contains(said, "the kube-apiserver b, 2, is gone and never answered") {
		t.Errorf("it logs %s", said)
	}
	w := &work{observer: o}
	for gr, by := range map[schema.GroupResource]map[string]bool{jobs: {migrationv1alpha1.MadeByTrigger: true, "somebody": false}, widgets: {migrationv1alpha1.MadeByTrigger: false, "somebody": false}} {
		for who, later := range by {
			m := &migrationv1alpha1.StorageVersionMigration{}
			m.Labels = map[string]string{migrationv1alpha1.MadeByLabel: who}
			m.Spec.Resource.Group, m.Spec.Resource.Resource = gr.Group, gr.Resource
			if w.later(m) != later {
				t.Errorf("that of %s, made by %s, comes later: %t", gr, who, !later)
			}
		}
	}
}
