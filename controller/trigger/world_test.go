package trigger

import (
	"context"
	"fmt"
	"testing"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
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
)

// world is a fake API that records calls. A test can run code before or after a call.
type world struct {
	*fakeapi.API
	t      *testing.T
	client client.WithWatch // the API
	clock  *clocktesting.FakeClock
	// ended has "name status" of each migration that the trigger reported as ended.
	ended []string
}

// newWorld returns the API and a Controller over it.
func newWorld(t *testing.T, kinds Kinds) (*world, *Controller) {
	t.Helper()
	w := &world{t: t, clock: clocktesting.NewFakeClock(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))}
	w.API = fakeapi.New(t, fakeapi.Config{
		Types: []func(*runtime.Scheme) error{
			corev1.AddToScheme, coordinationv1.AddToScheme, apiserverinternalv1alpha1.AddToScheme, apiextensionsv1.AddToScheme, migrationv1alpha1.AddToScheme,
		},
		Statuses: []client.Object{
			&migrationv1alpha1.StorageState{}, &migrationv1alpha1.StorageVersionMigration{}, &apiserverinternalv1alpha1.StorageVersion{}, &apiextensionsv1.CustomResourceDefinition{},
		},
		Unnamed: true, Conditional: true, Clock: w.clock,
	})
	w.client = w.API
	c := New(Config{Client: w.client, Kinds: kinds, Clock: w.clock, Instance: "apiserver-a", Ended: func(m *migrationv1alpha1.StorageVersionMigration, status string) {
		w.Mu.Lock()
		defer w.Mu.Unlock()
		w.ended = append(w.ended, m.Name+" "+status)
	}})
	return w, c
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// report writes the StorageVersion as if one server reported each encoding, and served it.
func (w *world) report(encodings ...agree.Encoding) {
	w.t.Helper()
	w.reportAs(true, encodings...)
}

// reportAs writes the StorageVersion as if one server reported each encoding.
func (w *world) reportAs(served bool, encodings ...agree.Encoding) {
	w.t.Helper()
	w.Quietly(func() {
		sv := &apiserverinternalv1alpha1.StorageVersion{}
		sv.Name = storageversion.Name(cronJobs)
		if err := w.client.Get(context.Background(), client.ObjectKeyFromObject(sv), sv); apierrors.IsNotFound(err) {
			w.must(w.client.Create(context.Background(), sv))
		}
		var reports []agree.Report
		for i, e := range encodings {
			gv := string(e)
			r := agree.Report{Server: agree.ServerID(fmt.Sprint("apiserver-", i)), Encoding: e, Decodable: []string{gv}}
			if served {
				r.Served = r.Decodable
			}
			reports = append(reports, r)
		}
		history, err := storageversion.History(sv)
		w.must(err)
		storageversion.SetHistory(sv, history.Next(reports))
		w.must(w.client.Update(context.Background(), sv))
		storageversion.SetReports(sv, reports, metav1.NewTime(w.clock.Now()))
		w.must(w.client.Status().Update(context.Background(), sv))
	})
}

// state reads the StorageState; it returns nil if there is none.
func (w *world) state() *migrationv1alpha1.StorageState {
	w.t.Helper()
	var state *migrationv1alpha1.StorageState
	w.Quietly(func() {
		var err error
		state, err = get(context.Background(), w.client, migrationv1alpha1.StateName(cronJobs), &migrationv1alpha1.StorageState{})
		w.must(err)
	})
	return state
}

func (w *world) migrations() []migrationv1alpha1.StorageVersionMigration {
	w.t.Helper()
	var list migrationv1alpha1.StorageVersionMigrationList
	w.Quietly(func() { w.must(w.client.List(context.Background(), &list)) })
	return list.Items
}

// end sets a condition of the migration, as a migrator does.
func (w *world) end(name string, t migrationv1alpha1.MigrationConditionType) {
	w.t.Helper()
	w.Quietly(func() {
		m := &migrationv1alpha1.StorageVersionMigration{}
		w.must(w.client.Get(context.Background(), client.ObjectKey{Name: name}, m))
		migrationv1alpha1.SetCondition(m, t, "Test", "", metav1.NewTime(w.clock.Now()))
		w.must(w.client.Status().Update(context.Background(), m))
	})
}

func (w *world) crd(stores string, stored ...string) *apiextensionsv1.CustomResourceDefinition {
	w.t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = cronJobs.String()
	crd.Spec.Group = cronJobs.Group
	crd.Spec.Names.Kind = "CronJob"
	for _, v := range []string{"v1", "v2"} {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: v, Storage: v == stores})
	}
	w.Quietly(func() {
		w.must(w.client.Create(context.Background(), crd))
		crd.Status.StoredVersions = stored
		w.must(w.client.Status().Update(context.Background(), crd))
	})
	return crd
}

func (w *world) lease(name string, reported bool) *coordinationv1.Lease {
	w.t.Helper()
	lease := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: ptr.To[int32](15)}}
	lease.Name, lease.Namespace = name, storageversion.IdentityNamespace
	lease.Labels = map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue}
	lease.Annotations = map[string]string{storageversion.BinaryVersionAnnotation: "1.37", storageversion.ReportedAnnotation: fmt.Sprint(reported)}
	w.Quietly(func() { w.must(w.client.Create(context.Background(), lease)) })
	return lease
}

// newMigrating returns a world in which all servers report v1, and the migration to v1 was made.
func newMigrating(t *testing.T) (*world, *Controller) {
	t.Helper()
	w, c := newWorld(t, served)
	w.report(v1)
	w.settle(c)
	return w, c
}

// toPrune returns a world in which the migration of a custom resource from v1 to v2 has succeeded.
func toPrune(t *testing.T) (*world, *Controller) {
	t.Helper()
	w, c := newWorld(t, kinds{})
	w.crd("v2", "v1", "v2")
	w.report(v2)
	w.settle(c)
	w.end(w.migrations()[0].Name, migrationv1alpha1.MigrationSucceeded)
	return w, c
}

// user makes a migration to a version, as a user does.
func (w *world) user(name, version string) {
	w.t.Helper()
	m := &migrationv1alpha1.StorageVersionMigration{Spec: migrationv1alpha1.StorageVersionMigrationSpec{
		Resource: migrationv1alpha1.GroupVersionResource{Group: cronJobs.Group, Version: version, Resource: cronJobs.Resource},
	}}
	m.Name = name
	w.Quietly(func() { w.must(w.client.Create(context.Background(), m)) })
}

// newMigrated returns a world in which everything was migrated to v1.
func newMigrated(t *testing.T) (*world, *Controller) {
	t.Helper()
	w, c := newMigrating(t)
	w.end(w.migrations()[0].Name, migrationv1alpha1.MigrationSucceeded)
	w.settle(c)
	return w, c
}

// step runs one step of the controller, which must succeed.
func (w *world) step(c *Controller) Result {
	w.t.Helper()
	result, err := c.Step(context.Background(), cronJobs)
	w.must(err)
	return result
}

// settle runs steps until there is nothing more to do, and returns what was done.
func (w *world) settle(c *Controller) (done []string) {
	w.t.Helper()
	for range 10 {
		result := w.step(c)
		for _, a := range result.Done {
			done = append(done, a.String())
		}
		if !result.Again {
			return done
		}
	}
	w.t.Fatalf("does not settle: %v", done)
	return nil
}

// kinds is a fixed discovery document.
type kinds map[schema.GroupResource]string

func (k kinds) Kind(_ context.Context, gr schema.GroupResource) (string, error) {
	if kind, ok := k[gr]; ok {
		return kind, nil
	}
	return "", &meta.NoResourceMatchError{PartialResource: gr.WithVersion("")}
}

// storageVersion reads the StorageVersion.
func (w *world) storageVersion() *apiserverinternalv1alpha1.StorageVersion {
	w.t.Helper()
	sv := &apiserverinternalv1alpha1.StorageVersion{}
	w.Quietly(func() {
		w.must(w.client.Get(context.Background(), client.ObjectKey{Name: storageversion.Name(cronJobs)}, sv))
	})
	return sv
}

func target(w *world, epoch int64, e agree.Encoding) evolve.Target {
	return evolve.Target{Ref: evolve.Ref{UID: string(w.storageVersion().UID), Epoch: epoch}, Encoding: e}
}
