package registry

import (
	"context"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/testbed/etcdtest"
)

// served has StorageVersions in an etcd of its own, as the API serves them.
type served struct {
	t            *testing.T
	main, status rest.Storage
}

func serve(t *testing.T) *served {
	t.Helper()
	etcd, err := etcdtest.Start(etcdtest.Config(t.TempDir()))
	must(t, err)
	t.Cleanup(etcd.Close)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcdtest.Endpoint(etcd)}, Logger: zap.NewNop()})
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	config := storagebackend.NewDefaultConfig("/registry", nil)
	config.Transport.ServerList = []string{etcdtest.Endpoint(etcd)}
	group, err := Group(func(gr schema.GroupResource, codec runtime.Codec) (generic.RESTOptions, error) {
		of := config.ForResource(gr)
		of.Codec = codec
		return generic.RESTOptions{StorageConfig: of, Decorator: generic.UndecoratedStorage, ResourcePrefix: gr.Group + "/" + gr.Resource}, nil
	}, client, config.Prefix)
	must(t, err)
	storage := group.VersionedResourcesStorageMap["v1alpha1"]
	s := &served{t, storage["storageversions"], storage["storageversions/status"]}
	t.Cleanup(s.main.Destroy)
	return s
}

func (s *served) context() context.Context { return request.WithNamespace(s.t.Context(), "") }

func (s *served) create(sv *v1alpha1.StorageVersion) (*v1alpha1.StorageVersion, error) {
	made, err := s.main.(rest.Creater).Create(s.context(), sv, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return made.(*v1alpha1.StorageVersion), nil
}

func (s *served) update(storage rest.Storage, sv *v1alpha1.StorageVersion) (*v1alpha1.StorageVersion, error) {
	updated, _, err := storage.(rest.Updater).Update(s.context(), sv.Name, rest.DefaultUpdatedObjectInfo(sv), rest.ValidateAllObjectFunc,
		func(context.Context, runtime.Object, runtime.Object) error { return nil }, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return updated.(*v1alpha1.StorageVersion), nil
}

// reported is a StorageVersion with reports of servers a, b, … of these encodings.
func reported(name string, encodings ...agree.Encoding) *v1alpha1.StorageVersion {
	sv := &v1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: name}}
	report(sv, encodings...)
	return sv
}

func report(sv *v1alpha1.StorageVersion, encodings ...agree.Encoding) {
	var reports []agree.Report
	for i, e := range encodings {
		reports = append(reports, agree.Report{Server: agree.ServerID(rune('a' + i)), Encoding: e, Decodable: []string{string(e)}})
	}
	storageversion.SetReports(sv, reports, metav1.NewTime(time.Unix(1, 0)))
}

func wantError(t *testing.T, what string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: error %v, want %q", what, err, want)
	}
}

// TestRefused: no object is created and no status is written that servers could not rely on.
func TestRefused(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for name, want := range map[string]string{"deployments": "<group>.<resource>", "Apps.deployments": "lower case", "apps.Deployments": "lower case", "": "name or generateName is required"} {
		_, err := s.create(reported(name, "apps/v1"))
		wantError(t, "the name "+name, err, want)
	}
	stated, other := "apps/v1", "apps/v2"
	condition := func(edit func(*v1alpha1.StorageVersionCondition)) func(*v1alpha1.StorageVersion) {
		return func(sv *v1alpha1.StorageVersion) {
			c := v1alpha1.StorageVersionCondition{Type: "Another", Status: v1alpha1.ConditionTrue, Reason: "Because"}
			edit(&c)
			sv.Status.Conditions = append(sv.Status.Conditions, c)
		}
	}
	present, err := s.create(reported("apps.present", "apps/v1"))
	must(t, err)
	for _, test := range []struct {
		name string
		edit func(*v1alpha1.StorageVersion)
		want string
	}{
		{"an agreement that is not stated", func(sv *v1alpha1.StorageVersion) { sv.Status.CommonEncodingVersion = nil }, "all servers encode apps/v1"},
		{"an agreement on something else", func(sv *v1alpha1.StorageVersion) { sv.Status.CommonEncodingVersion = &other }, "all servers encode apps/v1"},
		{"an agreement of servers that do not agree", func(sv *v1alpha1.StorageVersion) {
			report(sv, "apps/v1", "apps/v2")
			sv.Status.CommonEncodingVersion = &stated
		}, "servers do not agree"},
		{"an agreement of nobody", func(sv *v1alpha1.StorageVersion) {
			report(sv)
			sv.Status.CommonEncodingVersion = &stated
		}, "servers do not agree"},
		{"two reports of a server", func(sv *v1alpha1.StorageVersion) {
			sv.Status.StorageVersions = append(sv.Status.StorageVersions, sv.Status.StorageVersions[0])
		}, "more than one report"},
		{"an encoding that the server cannot read", func(sv *v1alpha1.StorageVersion) {
			sv.Status.StorageVersions[0].DecodableVersions = []string{"apps/v2"}
		}, "apps/v1"},
		{"a condition without type", condition(func(c *v1alpha1.StorageVersionCondition) { c.Type = "" }), "conditions[1].type: Required"},
		{"a condition twice", condition(func(c *v1alpha1.StorageVersionCondition) { c.Type = v1alpha1.AllEncodingVersionsEqual }), "conditions[1].type: Duplicate"},
		{"a condition that is neither", condition(func(c *v1alpha1.StorageVersionCondition) { c.Status = "Maybe" }), "conditions[1].status: Unsupported"},
		{"a condition without reason", condition(func(c *v1alpha1.StorageVersionCondition) { c.Reason = "" }), "conditions[1].reason: Required"},
	} {
		created := reported("apps.created", "apps/v1")
		test.edit(created)
		_, err := s.create(created)
		wantError(t, test.name+", created", err, test.want)
		updated := present.DeepCopy()
		test.edit(updated)
		_, err = s.update(s.status, updated)
		wantError(t, test.name+", updated", err, test.want)
	}
	damaged := present.DeepCopy()
	damaged.Annotations = map[string]string{storageversion.EpochAnnotation: "x"}
	if errs := main.ValidateUpdate(t.Context(), present, damaged); len(errs) != 1 || !strings.Contains(errs[0].Error(), "metadata.annotations") {
		t.Errorf("a history that cannot be read is overwritten: %v", errs)
	}
}

// TestUpdates: an update names what it read, and writes its half of the object alone. The epoch is computed, whatever is sent.
func TestUpdates(t *testing.T) {
	t.Parallel()
	s := serve(t)
	sent := reported("apps.deployments", "apps/v1")
	sent.Annotations = map[string]string{storageversion.EpochAnnotation: "7"}
	first, err := s.create(sent)
	must(t, err)
	epoch := func(what string, sv *v1alpha1.StorageVersion, want int64) {
		t.Helper()
		if h, err := storageversion.History(sv); err != nil || h.Epoch != want {
			t.Errorf("%s: the epoch is %d, want %d, error %v", what, h.Epoch, want, err)
		}
	}
	epoch("created", first, 1)
	for name, storage := range map[string]rest.Storage{"main": s.main, "status": s.status} {
		blind := first.DeepCopy()
		blind.ResourceVersion = ""
		_, err := s.update(storage, blind)
		wantError(t, name+" without resourceVersion", err, "must be specified for an update")
		if _, err := s.update(storage, reported("apps.absent", "apps/v1")); !apierrors.IsNotFound(err) {
			t.Errorf("%s: an update of what is not there: %v", name, err)
		}
	}

	edited := first.DeepCopy()
	edited.Labels = map[string]string{"by": "status"}
	edited.Annotations = map[string]string{storageversion.EpochAnnotation: "9"}
	report(edited, "apps/v2")
	second, err := s.update(s.status, edited)
	must(t, err)
	epoch("another encoding", second, 2)
	if common, ok := storageversion.Agreement(second); !ok || common != "apps/v2" || len(second.Labels) != 0 {
		t.Errorf("a status update has made %+v", second)
	}
	for name, storage := range map[string]rest.Storage{"main": s.main, "status": s.status} {
		if _, err := s.update(storage, first.DeepCopy()); !apierrors.IsConflict(err) {
			t.Errorf("%s: an update of what has been changed: %v", name, err)
		}
	}

	edited = second.DeepCopy()
	edited.Labels = map[string]string{"by": "main"}
	edited.Annotations[storageversion.EpochAnnotation] = "1"
	report(edited, "apps/v1", "apps/v3")
	third, err := s.update(s.main, edited)
	must(t, err)
	epoch("a label", third, 2)
	if common, ok := storageversion.Agreement(third); !ok || common != "apps/v2" || third.Labels["by"] != "main" {
		t.Errorf("an update has made %+v", third)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
