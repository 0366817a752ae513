package collect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/listwatch/replay"
)

var errBroken = errors.New("connection refused")

// world is an API with one collector; the calls that go over the wire are recorded and can fail.
type world struct {
	t      *testing.T
	client client.WithWatch
	clock  *clocktesting.FakeClock
	c      *Collector

	mu    sync.Mutex
	calls []string
	// before runs before a call, and its error replaces the call.
	before func(call string) error
}

func newWorld(t *testing.T, edit ...func(*Config)) *world {
	t.Helper()
	w := &world{t: t, clock: clocktesting.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithGlobalResourceVersionCounter().
		WithStatusSubresource(&v1alpha1.StorageVersion{}).WithInterceptorFuncs(interceptor.Funcs{
		Watch: replay.Watch,
		List: func(ctx context.Context, c client.WithWatch, o client.ObjectList, opts ...client.ListOption) error {
			return w.call("list", o, "", func() error { return c.List(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return w.call("delete", o, o.GetName()+preconditions(opts), func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return w.call("update "+sub, o, o.GetName(), func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
	}).Build()
	cfg := Config{Client: w.client, Workers: 1, Clock: w.clock}
	for _, e := range edit {
		e(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.c = c
	return w
}

func preconditions(opts []client.DeleteOption) string {
	var o client.DeleteOptions
	o.ApplyOptions(opts)
	if o.Preconditions == nil {
		return ""
	}
	return fmt.Sprintf(" if uid=%s and it is unchanged=%t", *o.Preconditions.UID, o.Preconditions.ResourceVersion != nil)
}

func (w *world) call(verb string, o any, name string, do func() error) error {
	_, kind, _ := strings.Cut(fmt.Sprintf("%T", o), ".")
	call := strings.TrimSpace(verb + " " + kind + " " + name)
	w.mu.Lock()
	w.calls = append(w.calls, call)
	before := w.before
	w.mu.Unlock()
	if before != nil {
		if err := before(call); err != nil {
			return err
		}
	}
	return do()
}

func (w *world) took() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	calls := strings.Join(w.calls, "; ")
	w.calls = nil
	return calls
}

// renew creates or renews a Lease of 15 s. The fake API checks no uids.
func (w *world) renew(id agree.ServerID, reported bool) {
	w.t.Helper()
	seconds, now := int32(15), metav1.NewMicroTime(w.clock.Now())
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: string(id), Namespace: "kube-system", UID: types.UID("uid-" + id),
		Labels:            map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue},
		CreationTimestamp: metav1.NewTime(w.clock.Now()),
	}}
	err := w.client.Get(w.t.Context(), client.ObjectKeyFromObject(lease), lease)
	lease.Spec = coordinationv1.LeaseSpec{LeaseDurationSeconds: &seconds, RenewTime: &now}
	lease.Annotations = map[string]string{storageversion.BinaryVersionAnnotation: "1.37"}
	if reported {
		lease.Annotations[storageversion.ReportedAnnotation] = "true"
	}
	if err != nil {
		err = w.client.Create(w.t.Context(), lease)
	} else {
		err = w.client.Update(w.t.Context(), lease)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) setReports(name string, servers ...agree.ServerID) {
	w.t.Helper()
	sv := &v1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
	err := w.client.Get(w.t.Context(), client.ObjectKeyFromObject(sv), sv)
	var reports []agree.Report
	for _, s := range servers {
		enc := agree.Encoding("v1")
		if strings.HasPrefix(string(s), "old") {
			enc = "v0"
		}
		reports = append(reports, agree.Report{Server: s, Encoding: enc, Decodable: []string{string(enc)}})
	}
	storageversion.SetReports(sv, reports, metav1.NewTime(w.clock.Now()))
	if err != nil {
		err = w.client.Create(w.t.Context(), sv)
	} else {
		err = w.client.Status().Update(w.t.Context(), sv)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// servers returns the servers that report, and the agreement; "none" if there is no StorageVersion.
func (w *world) servers(name string) string {
	w.t.Helper()
	sv := &v1alpha1.StorageVersion{}
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: name}, sv); err != nil {
		if apierrors.IsNotFound(err) {
			return "none"
		}
		w.t.Fatal(err)
	}
	var ids []string
	for _, r := range storageversion.Reports(sv) {
		ids = append(ids, string(r.Server))
	}
	common, _ := storageversion.Agreement(sv)
	return strings.Join(ids, ",") + "=" + string(common)
}

func (w *world) expectServers(name, want string) {
	w.t.Helper()
	if got := w.servers(name); got != want {
		w.t.Errorf("%s: reported by %s, want %s", name, got, want)
	}
}

func (w *world) hasLease(id agree.ServerID) bool {
	return w.client.Get(w.t.Context(), client.ObjectKey{Namespace: "kube-system", Name: string(id)}, &coordinationv1.Lease{}) == nil
}

// pass lets time go by in steps of a second; those named renew in each.
func (w *world) pass(seconds int, leader bool, alive ...agree.ServerID) {
	w.t.Helper()
	for range seconds {
		w.clock.Step(time.Second)
		for _, id := range alive {
			w.renew(id, true)
		}
		if err := w.c.Step(w.t.Context(), leader); err != nil {
			w.t.Fatalf("Step: %v", err)
		}
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, 20*time.Second, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("never: %s", what)
	}
}
