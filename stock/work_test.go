package stock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
)

// logged keeps what is logged.
type logged struct {
	mu  sync.Mutex
	all []string
}

func (l *logged) logger() logr.Logger {
	return funcr.New(func(_, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all = append(l.all, args)
	}, funcr.Options{})
}

// lines returns the lines with a text.
func (l *logged) lines(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.all), func(line string) bool { return !strings.Contains(line, text) })
}

// TestNotInstalled: controllers that find no CRDs of their own, and may not install them, say what
// to do.
func TestNotInstalled(t *testing.T) {
	c := &controllers{objects: definedIn(t).Build()}
	err := c.installed(t.Context())
	if err == nil || !strings.Contains(err.Error(), `migration.k8s.io" not found: apply the manifests`) || strings.Contains(err.Error(), "\n") {
		t.Errorf("without definitions: %v", err)
	}
}

// besideConcord are controllers in a cluster where Concord servers come and go.
type besideConcord struct {
	*controllers
	t   *testing.T
	log *logged
	// requests counts the requests about objects.
	requests atomic.Int64
}

func newBesideConcord(t *testing.T) *besideConcord {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"kind":"APIServiceList","apiVersion":"apiregistration.k8s.io/v1","items":[]}`)
	}))
	t.Cleanup(server.Close)
	b := &besideConcord{t: t, log: &logged{}}
	var err error
	b.controllers, err = newControllers(Config{Rest: &rest.Config{Host: server.URL}, Instance: "x", Poll: time.Millisecond, Mirror: MirrorNever, Logger: b.log.logger()})
	must(t, err)
	stock := lease("stock", "")
	stock.Spec.RenewTime = ptr.To(metav1.NowMicro())
	b.kube = fake.NewClientset(stock)
	objects := definedIn(t, migrationv1alpha1.AddToScheme, coordinationv1.AddToScheme)
	for _, crd := range migrationv1alpha1.CRDs() {
		crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
		objects.WithObjects(crd)
	}
	b.objects = interceptor.NewClient(objects.Build(), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			b.requests.Add(1)
			return c.Get(ctx, key, o, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			b.requests.Add(1)
			return c.List(ctx, list, options...)
		},
	})
	return b
}

// come makes a Concord server be there.
func (b *besideConcord) come(name string) {
	b.t.Helper()
	l := lease(name, "")
	l.Annotations[storageversion.EmulationVersionAnnotation] = "1.37"
	_, err := b.kube.CoordinationV1().Leases(l.Namespace).Create(b.t.Context(), l, metav1.CreateOptions{})
	must(b.t, err)
}

func (b *besideConcord) eventually(what string, is func() bool) {
	b.t.Helper()
	if err := wait.PollUntilContextTimeout(b.t.Context(), time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return is(), nil }); err != nil {
		b.t.Fatalf("%s: %v; the log says %q", what, err, b.log.lines(""))
	}
}

// TestLeftToConcord: while there are Concord servers, which are known by their Leases, the controllers do nothing, and log that
// the stock kube-apiserver beside them keeps them from agreeing. When Concord servers are gone the controllers work, and
// when one comes again they stop.
func TestLeftToConcord(t *testing.T) {
	b := newBesideConcord(t)
	b.come("first")
	ctx, cancel := context.WithCancel(t.Context())
	var leading sync.WaitGroup
	leading.Go(func() {
		if err := b.lead(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	defer leading.Wait()
	defer cancel()
	left := func(to string) func() bool {
		return func() bool {
			return len(b.log.lines("everything is left to them: "+to+"; beside them stock reports nothing, so that they agree on nothing")) == 1
		}
	}
	b.eventually("it is logged that everything is left to the first", left("first"))
	if n := b.requests.Load(); n > 0 || b.working.Load() != nil || b.ready() != nil {
		t.Errorf("beside a Concord server they sent %d requests, they work: %t, %v", n, b.working.Load() != nil, b.ready())
	}
	must(t, b.kube.CoordinationV1().Leases(storageversion.IdentityNamespace).Delete(ctx, "first", metav1.DeleteOptions{}))
	b.eventually("without Concord servers they have asked the stock one", func() bool { return b.working.Load() != nil && b.ready() == nil })
	b.come("second")
	b.eventually("it is logged that everything is left to the second", left("second"))
	if b.working.Load() != nil {
		t.Error("they work beside it")
	}
}
