package member

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/testbed/fakeapi"
)

var (
	secrets    = schema.GroupResource{Resource: "secrets"}
	configMaps = schema.GroupResource{Resource: "configmaps"}
	widgets    = schema.GroupResource{Group: "example.com", Resource: "widgets"}
)

// world is a fake API with one member. The calls of the member are recorded, and a test can make them
// fail.
type world struct {
	*fakeapi.API
	t      testing.TB
	client client.WithWatch // the API
	clock  *clocktesting.FakeClock
	m      *Member
	buried []agree.ServerID
	// dropStatus makes the next update of a StorageVersion lose its status.
	dropStatus bool
}

func builtin(gr schema.GroupResource) Resource {
	gv := schema.GroupVersion{Group: gr.Group, Version: "v1"}.String()
	return Resource{GroupResource: gr, Encoding: agree.Encoding(gv), Decodable: []string{gv}, Served: []string{gv}}
}

// newWorld returns a member with these built-in resources. It is not registered yet. edit changes its
// configuration.
func newWorld(t testing.TB, builtins []Resource, edit ...func(*Config)) *world {
	t.Helper()
	w := &world{t: t, clock: clocktesting.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))}
	w.API = fakeapi.New(t, fakeapi.Config{
		Types:    []func(*runtime.Scheme) error{v1alpha1.AddToScheme, coordinationv1.AddToScheme, corev1.AddToScheme, apiextensionsv1.AddToScheme},
		Statuses: []client.Object{&v1alpha1.StorageVersion{}}, UpdateStatus: w.updateStatus,
	})
	w.client = w.API
	cfg := Config{
		Client:    w.client,
		Bury:      func(_ context.Context, id agree.ServerID) error { w.buried = append(w.buried, id); return nil },
		Versions:  Versions{Binary: "1.37", Emulation: "1.36", MinCompatibility: "1.35", Build: "0.3.0"},
		WaitLimit: -1,
		Workers:   1,
		Clock:     w.clock,
		Random:    rand.New(rand.NewPCG(1, 2)),
	}
	for _, e := range edit {
		e(&cfg)
	}
	m, err := New(cfg)
	must(t, err)
	must(t, m.SetBuiltins(builtins))
	w.m = m
	return w
}

// updateStatus keeps the annotation with the Seals when a status is updated, as the server's strategy
// does; the fake client writes no annotations with a status.
func (w *world) updateStatus(ctx context.Context, c client.Client, o client.Object, opts ...client.SubResourceUpdateOption) error {
	if sv, ok := o.(*v1alpha1.StorageVersion); ok && w.dropStatus {
		sv.Status, w.dropStatus = v1alpha1.StorageVersionStatus{}, false
	}
	seals, sealed := o.GetAnnotations()[storageversion.SealsAnnotation]
	if err := c.Status().Update(ctx, o, opts...); err != nil {
		return err
	}
	annotations := o.GetAnnotations()
	if now, is := annotations[storageversion.SealsAnnotation]; now == seals && is == sealed {
		return nil
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	if annotations[storageversion.SealsAnnotation] = seals; !sealed {
		delete(annotations, storageversion.SealsAnnotation)
	}
	o.SetAnnotations(annotations)
	return c.Update(ctx, o)
}

func (w *world) register() agree.ServerID {
	w.t.Helper()
	if err := w.m.Register(w.t.Context()); err != nil {
		w.t.Fatalf("Register: %v", err)
	}
	w.Took()
	return w.m.ID()
}

// Report reports one resource, once, whether that is due or not.
func (m *Member) Report(ctx context.Context, gr schema.GroupResource) error {
	m.mu.Lock()
	c, err := m.claim(gr)
	m.mu.Unlock()
	if err != nil {
		return fmt.Errorf("report %s: %w", gr, err)
	}
	return m.process(ctx, []claim{c})
}

// settle steps the member and the clock until nothing is due.
func (w *world) settle() {
	w.t.Helper()
	var err error
	for range 100 {
		var wait time.Duration
		wait, err = w.m.Step(w.t.Context())
		switch {
		case w.m.ID() == "":
			if err := w.m.Register(w.t.Context()); err != nil {
				w.t.Fatalf("Register: %v", err)
			}
		case wait < 0:
			return
		default:
			w.clock.Step(wait)
		}
	}
	w.t.Fatalf("the member does not settle; last error: %v; state: %v", err, w.m.Snapshot())
}

// reports returns the reports in the StorageVersion, and its revision.
func (w *world) reports(gr schema.GroupResource) (reports []agree.Report, revision int64) {
	w.t.Helper()
	w.Quietly(func() {
		sv := &v1alpha1.StorageVersion{}
		if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: storageversion.Name(gr)}, sv); err != nil {
			if client.IgnoreNotFound(err) != nil {
				w.t.Fatal(err)
			}
			return
		}
		reports = storageversion.Reports(sv)
		var err error
		if revision, err = revisionOf(sv); err != nil {
			w.t.Fatal(err)
		}
	})
	return reports, revision
}

// setReports writes the reports as another server would.
func (w *world) setReports(gr schema.GroupResource, reports ...agree.Report) {
	w.t.Helper()
	w.Quietly(func() {
		sv := &v1alpha1.StorageVersion{}
		err := w.client.Get(w.t.Context(), client.ObjectKey{Name: storageversion.Name(gr)}, sv)
		storageversion.SetReports(sv, reports, metav1.NewTime(w.clock.Now()))
		if err != nil {
			sv.Name = storageversion.Name(gr)
			err = w.client.Create(w.t.Context(), sv)
		} else {
			err = w.client.Status().Update(w.t.Context(), sv)
		}
		must(w.t, err)
	})
}

func (w *world) lease(id agree.ServerID) (lease *coordinationv1.Lease) {
	w.t.Helper()
	w.Quietly(func() {
		lease = &coordinationv1.Lease{}
		must(w.t, w.client.Get(w.t.Context(), client.ObjectKey{Namespace: "kube-system", Name: string(id)}, lease))
	})
	return lease
}

func (w *world) addLease(id agree.ServerID) {
	w.t.Helper()
	w.Quietly(func() {
		if err := w.client.Create(w.t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Name: string(id), Namespace: "kube-system", Labels: map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue},
			Annotations: map[string]string{storageversion.BinaryVersionAnnotation: "1.37"},
		}}); err != nil {
			w.t.Fatal(err)
		}
	})
}

func (w *world) deleteLease(id agree.ServerID) {
	w.t.Helper()
	w.Quietly(func() {
		must(w.t, w.client.Delete(w.t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: string(id), Namespace: "kube-system"}}))
	})
}

// accepted returns the spec and status of a CRD with these versions, one storage version and accepted
// names.
func accepted(plural, storage string, versions ...string) (spec apiextensionsv1.CustomResourceDefinitionSpec, status apiextensionsv1.CustomResourceDefinitionStatus) {
	spec.Group, spec.Names.Plural = "example.com", plural
	for _, v := range versions {
		spec.Versions = append(spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: v, Served: true, Storage: v == storage})
	}
	status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue}}
	return spec, status
}

// setCRD writes the CRD of widgets with versions v1 and v2, and returns it as an informer has it.
func (w *world) setCRD(storage string) *apiextensionsv1.CustomResourceDefinition {
	w.t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	w.Quietly(func() {
		err := w.client.Get(w.t.Context(), client.ObjectKey{Name: "widgets.example.com"}, crd)
		crd.Spec, crd.Status = accepted("widgets", storage, "v1", "v2")
		if err != nil {
			crd.Name = "widgets.example.com"
			err = w.client.Create(w.t.Context(), crd)
		} else {
			err = w.client.Update(w.t.Context(), crd)
		}
		must(w.t, err)
	})
	return crd.DeepCopy()
}

func (w *world) deleteCRD(crd *apiextensionsv1.CustomResourceDefinition) {
	w.t.Helper()
	w.Quietly(func() {
		must(w.t, w.client.Delete(w.t.Context(), crd.DeepCopy()))
	})
}

// status returns what the member says of a resource.
func (w *world) status(gr schema.GroupResource) Status {
	for _, s := range w.m.Snapshot() {
		if s.Resource == gr {
			return s
		}
	}
	return Status{}
}

// expectOpen asserts that the resource may be written in enc, and that the revision which the member
// returns for that is the StorageVersion's, with the member's report of enc.
func (w *world) expectOpen(gr schema.GroupResource, enc agree.Encoding) {
	w.t.Helper()
	revision, err := w.m.Revision(w.t.Context(), gr, enc)
	if err != nil {
		w.t.Fatalf("Revision(%s, %s): %v", gr, enc, err)
	}
	reports, at := w.reports(gr)
	own, ok := agree.Of(reports, w.m.ID())
	if !ok || own.Encoding != enc {
		w.t.Errorf("%s is open in %s with reports %v", gr, enc, reports)
	}
	if revision != at {
		w.t.Errorf("%s: revision %d was handed out, the StorageVersion is at %d", gr, revision, at)
	}
}

func expectHistogram(t *testing.T, registry metrics.KubeRegistry, name string, count uint64, sum float64) {
	t.Helper()
	families, err := registry.Gather()
	must(t, err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		if h := family.GetMetric()[0].GetHistogram(); h.GetSampleCount() != count || h.GetSampleSum() != sum {
			t.Errorf("%s: %d observations, %v s, want %d, %v s", name, h.GetSampleCount(), h.GetSampleSum(), count, sum)
		}
		return
	}
	t.Errorf("no metric %s", name)
}

func (w *world) exists(id agree.ServerID) (exists bool) {
	w.Quietly(func() {
		exists = w.client.Get(w.t.Context(), client.ObjectKey{Namespace: "kube-system", Name: string(id)}, &coordinationv1.Lease{}) == nil
	})
	return exists
}

// observe gives the member the watch event of a StorageVersion.
func (w *world) observe(gr schema.GroupResource) {
	w.Quietly(func() {
		sv := &v1alpha1.StorageVersion{}
		if w.client.Get(w.t.Context(), client.ObjectKey{Name: storageversion.Name(gr)}, sv) == nil {
			w.m.ObserveStorageVersion(sv, false)
		} else {
			w.m.ObserveStorageVersions(nil, 0)
		}
	})
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
