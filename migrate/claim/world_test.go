package claim

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/testbed/fakeapi"
)

var cronJobs = schema.GroupResource{Group: "batch.example.com", Resource: "cronjobs"}

const (
	v1 agree.Encoding = "batch.example.com/v1"
	v2 agree.Encoding = "batch.example.com/v2"

	self  agree.ServerID = "apiserver-self"
	other agree.ServerID = "apiserver-other"
)

// rewriter is a Rewriter from a function of the test.
type rewriter func(ctx context.Context, job Job, progress func(Progress)) (Result, error)

func (r rewriter) Rewrite(ctx context.Context, job Job, progress func(Progress)) (Result, error) {
	return r(ctx, job, progress)
}

// world is a fake API that records calls; two servers agree on v1.
type world struct {
	*fakeapi.API
	t       *testing.T
	client  client.WithWatch // the API
	clock   *clocktesting.FakeClock
	c       *Controller
	rewrite rewriter
	// api is the rewriter of the engine API; elsewhere is the answer of Config.Elsewhere.
	api       rewriter
	elsewhere string

	// Mu guards the fields below.
	log    strings.Builder
	before func(call string)
	broken map[string]error // errors by call; a call with an error is not made
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, clock: clocktesting.NewFakeClock(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))}
	w.API = fakeapi.New(t, fakeapi.Config{
		Types: []func(*runtime.Scheme) error{
			corev1.AddToScheme, coordinationv1.AddToScheme, apiserverinternalv1alpha1.AddToScheme, apiextensionsv1.AddToScheme, migrationv1alpha1.AddToScheme,
		},
		Statuses: []client.Object{&migrationv1alpha1.StorageVersionMigration{}, &apiserverinternalv1alpha1.StorageVersion{}}, Unnamed: true, Ignored: []string{"create", "delete"},
	})
	w.Before, w.client = w.answer, w.API
	w.rewrite = func(context.Context, Job, func(Progress)) (Result, error) {
		if err := w.Note("rewrite"); err != nil {
			return Result{}, err
		}
		return Result{Progress: Progress{Total: 3, Done: 3}}, nil
	}
	w.c = New(Config{
		Client: w.client,
		ID:     func() agree.ServerID { return self },
		Rewriter: rewriter(func(ctx context.Context, job Job, progress func(Progress)) (Result, error) {
			return w.rewrite(ctx, job, progress)
		}),
		API: rewriter(func(ctx context.Context, job Job, progress func(Progress)) (Result, error) {
			return w.api(ctx, job, progress)
		}),
		Elsewhere: func(context.Context, schema.GroupVersionResource) (string, error) { return w.elsewhere, nil },
		Clock:     w.clock,
		Logger:    funcr.New(w.logged, funcr.Options{}),
	})
	w.lease(self, "1.36")
	w.lease(other, "1.36")
	w.report(agree.Report{Server: self, Encoding: v1}, agree.Report{Server: other, Encoding: v1})
	return w
}

// newMigrating returns a world with a migration to v1 that is to be done.
func newMigrating(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.migration(nil)
	return w
}

func (w *world) logged(_, args string) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.log.WriteString(args + "\n")
}

// answer returns the error of a call; if it is not nil, the call is not made.
func (w *world) answer(call string) error {
	w.Mu.Lock()
	before, err := w.before, w.broken[call]
	w.Mu.Unlock()
	if before != nil {
		before(call)
	}
	return err
}

// once calls do just before the n-th call of that name.
func (w *world) once(call string, n int, do func()) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.before = func(c string) {
		if c != call {
			return
		}
		if n--; n > 0 {
			return
		}
		w.Mu.Lock()
		w.before = nil
		w.Mu.Unlock()
		do()
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) lease(id agree.ServerID, emulation string) {
	w.t.Helper()
	lease := &coordinationv1.Lease{}
	lease.Name, lease.Namespace = string(id), storageversion.IdentityNamespace
	lease.Labels = map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue}
	lease.Annotations = map[string]string{storageversion.EmulationVersionAnnotation: emulation}
	w.must(client.IgnoreNotFound(w.client.Delete(context.Background(), lease.DeepCopy())))
	w.must(w.client.Create(context.Background(), lease))
}

// report writes the StorageVersion as servers do, and returns it.
func (w *world) report(reports ...agree.Report) *apiserverinternalv1alpha1.StorageVersion {
	w.t.Helper()
	ctx := context.Background()
	sv := &apiserverinternalv1alpha1.StorageVersion{}
	sv.Name, sv.UID = storageversion.Name(cronJobs), "sv-uid"
	if err := w.client.Get(ctx, client.ObjectKeyFromObject(sv), sv); err != nil {
		w.must(client.IgnoreNotFound(err))
		w.must(w.client.Create(ctx, sv))
	}
	history, err := storageversion.History(sv)
	w.must(err)
	storageversion.SetHistory(sv, history.Next(reports))
	w.must(w.client.Update(ctx, sv))
	storageversion.SetReports(sv, reports, metav1.NewTime(w.clock.Now()))
	w.must(w.client.Status().Update(ctx, sv))
	return sv
}

// migration creates a migration with the target v1 at epoch 1.
func (w *world) migration(change func(*migrationv1alpha1.StorageVersionMigration)) {
	w.t.Helper()
	m := &migrationv1alpha1.StorageVersionMigration{Spec: migrationv1alpha1.StorageVersionMigrationSpec{
		Resource: migrationv1alpha1.GroupVersionResource{Group: cronJobs.Group, Version: "v1", Resource: cronJobs.Resource},
	}}
	m.Name, m.UID = "m", types.UID("m-uid")
	migrationv1alpha1.SetTarget(m, evolve.Target{Ref: evolve.Ref{UID: "sv-uid", Epoch: 1}, Encoding: v1})
	if change != nil {
		change(m)
	}
	w.must(w.client.Create(context.Background(), m))
}

func (w *world) crd(stores string, generation int64) {
	w.t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name, crd.UID, crd.Generation = cronJobs.String(), "crd-uid", generation
	crd.Spec.Group, crd.Spec.Names.Plural = cronJobs.Group, cronJobs.Resource
	for _, v := range []string{"v1", "v2"} {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: v, Storage: v == stores})
	}
	w.must(client.IgnoreNotFound(w.client.Delete(context.Background(), crd.DeepCopy())))
	w.must(w.client.Create(context.Background(), crd))
}

func (w *world) read() *migrationv1alpha1.StorageVersionMigration {
	w.t.Helper()
	m := &migrationv1alpha1.StorageVersionMigration{}
	w.must(w.client.Get(context.Background(), client.ObjectKey{Name: "m"}, m))
	return m
}

// edit changes the migration as a user or another server could, and returns it.
func (w *world) edit(change func(*migrationv1alpha1.StorageVersionMigration)) *migrationv1alpha1.StorageVersionMigration {
	w.t.Helper()
	m := w.read()
	change(m)
	w.must(w.client.Update(context.Background(), m))
	return m
}

// claimFor writes a server's claim on the migration.
func (w *world) claimFor(id agree.ServerID) {
	w.t.Helper()
	w.edit(func(m *migrationv1alpha1.StorageVersionMigration) {
		m.Annotations[migrationv1alpha1.ClaimedByAnnotation] = string(id)
	})
}

func (w *world) events() (reasons []string) {
	w.t.Helper()
	var list corev1.EventList
	w.must(w.client.List(context.Background(), &list))
	for _, e := range list.Items {
		reasons = append(reasons, e.Type+" "+e.Reason)
	}
	return reasons
}

// expectTrue asserts that this condition is true for this reason.
func (w *world) expectTrue(t migrationv1alpha1.MigrationConditionType, reason string) {
	w.t.Helper()
	m := w.read()
	if c := migrationv1alpha1.True(m, t); c == nil || c.Reason != reason {
		w.t.Errorf("conditions %+v, want %s because of %s", m.Status.Conditions, t, reason)
	}
}

func (w *world) claimedBy() agree.ServerID {
	w.t.Helper()
	return agree.ServerID(w.read().Annotations[migrationv1alpha1.ClaimedByAnnotation])
}

func leaseObject(t *testing.T, w *world, id agree.ServerID) *coordinationv1.Lease {
	t.Helper()
	lease := &coordinationv1.Lease{}
	w.must(w.client.Get(context.Background(), client.ObjectKey{Namespace: storageversion.IdentityNamespace, Name: string(id)}, lease))
	return lease
}
