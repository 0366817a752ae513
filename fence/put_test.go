package fence

import (
	"context"
	"errors"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// writes are all calls that end in a put; they need the object "existing".
var writes = map[string]func(w *world, s storage.Interface) error{
	"create": func(w *world, s storage.Interface) error {
		return s.Create(w.Context(), "/configmaps/new", configMap("new", "x"), &corev1.ConfigMap{}, 0)
	},
	"update": func(w *world, s storage.Interface) error {
		return s.GuaranteedUpdate(w.Context(), "/configmaps/existing", &corev1.ConfigMap{}, false, nil, setData("changed"), nil)
	},
	"create on update": func(w *world, s storage.Interface) error {
		return s.GuaranteedUpdate(w.Context(), "/configmaps/applied", &corev1.ConfigMap{}, true, nil,
			storage.SimpleUpdate(func(runtime.Object) (runtime.Object, error) { return configMap("applied", "x"), nil }), nil)
	},
	"removal of a finalizer": func(w *world, s storage.Interface) error {
		return s.GuaranteedUpdate(w.Context(), "/configmaps/existing", &corev1.ConfigMap{}, false, nil,
			storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
				in.(*corev1.ConfigMap).Finalizers = nil
				return in, nil
			}), nil)
	},
}

func newConfigMaps(t *testing.T) (*world, storage.Interface) {
	t.Helper()
	w := newWorld(t)
	s := w.configMaps(false)
	w.permit(configMaps, "v1")
	existing := configMap("existing", "old")
	existing.Finalizers = []string{"example.com/hold"}
	if err := s.Create(t.Context(), "/configmaps/existing", existing, nil, 0); err != nil {
		t.Fatalf("creating under a permit: %v", err)
	}
	return w, s
}

func TestPut(t *testing.T) {
	for _, tc := range []struct {
		name       string
		change     func(w *world)
		mismatches int
		written    bool
	}{
		{name: "the report stands", change: func(*world) {}, written: true},
		{
			name:       "another server joined",
			change:     func(w *world) { w.report(configMaps, by(other, "v2"), by(self, "v1")) },
			mismatches: 1, written: true,
		},
		{
			name:       "the own report was dropped",
			change:     func(w *world) { w.report(configMaps, by(other, "v1")) },
			mismatches: 1,
		},
		{
			name: "the StorageVersion was deleted",
			change: func(w *world) {
				key, _ := w.fence.FenceKey(configMaps)
				if _, err := w.fence.client.Delete(w.Context(), key); err != nil {
					w.Fatal(err)
				}
			},
			mismatches: 1,
		},
		{
			name: "the StorageVersion cannot be decoded",
			change: func(w *world) {
				key, _ := w.fence.FenceKey(configMaps)
				if _, err := w.fence.client.Put(w.Context(), key, "garbage"); err != nil {
					w.Fatal(err)
				}
			},
		},
		{name: "nothing was ever reported", change: func(w *world) { w.permits.grant(configMaps, "v1", 0) }},
	} {
		for name, write := range writes {
			t.Run(tc.name+"/"+name, func(t *testing.T) {
				w, s := newConfigMaps(t)
				tc.change(w)
				before := w.stored("/configmaps")
				err := write(w, s)
				if got := w.permits.mismatches(); got != tc.mismatches {
					t.Errorf("%d mismatches, want %d", got, tc.mismatches)
				}
				if tc.written {
					if err != nil {
						t.Fatalf("write: %v", err)
					}
					if w.stored("/configmaps") == before {
						t.Fatal("the write was acknowledged and nothing is stored")
					}
					return
				}
				wantUnavailable(t, err)
				if got := w.stored("/configmaps"); got != before {
					t.Errorf("the write was refused and something is stored:\n%s\nbefore:\n%s", got, before)
				}
			})
		}
	}
}

// TestPutSuperseded: the error of a superseded store, if there is no newer one, must not look like
// a conflict of an object.
func TestPutSuperseded(t *testing.T) {
	w, s := newConfigMaps(t)
	w.report(configMaps, by(self, "v2"))
	inner := s.(*forwarder).Interface
	before := w.stored("/configmaps")
	for name, write := range writes {
		if err := write(w, inner); !errors.Is(err, agree.ErrSuperseded) {
			t.Errorf("%s: got %v, want ErrSuperseded", name, err)
		}
	}
	if got := w.stored("/configmaps"); got != before {
		t.Errorf("a superseded store wrote:\n%s\nbefore:\n%s", got, before)
	}
}

func TestPutBeforeStorageVersionsAreStored(t *testing.T) {
	w := newWorld(t)
	w.fence.versions.place.Store(nil)
	s := w.configMaps(false)
	w.permits.grant(configMaps, "v1", 7)
	wantUnavailable(t, s.Create(t.Context(), "/configmaps/a", configMap("a", "x"), nil, 0))
}

// TestPutGivesUp: a write ends with a 503 if Permits always say "try again" and the StorageVersion
// never stays the same.
func TestPutGivesUp(t *testing.T) {
	w, _ := newConfigMaps(t)
	stubborn := &stubbornPermits{}
	w.fence.permits = stubborn
	s := w.configMaps(false)
	wantUnavailable(t, s.Create(t.Context(), "/configmaps/b", configMap("b", "x"), nil, 0))
	if stubborn.moved != maxAttempts {
		t.Errorf("%d attempts, want %d", stubborn.moved, maxAttempts)
	}
	// Moved gets both revisions: by them, the caller can tell that etcd was restored from a backup.
	if stubborn.mod <= 0 || stubborn.at < stubborn.mod {
		t.Errorf("at revision %d it found one of revision %d", stubborn.at, stubborn.mod)
	}
}

// stubbornPermits always grant the same old revision.
type stubbornPermits struct {
	moved   int
	at, mod int64
}

func (p *stubbornPermits) Revision(context.Context, schema.GroupResource, agree.Encoding) (int64, error) {
	return 1, nil
}

func (p *stubbornPermits) Moved(_ context.Context, _ schema.GroupResource, _ agree.Encoding, at, mod int64, _ []agree.Report) error {
	p.moved++
	p.at, p.mod = at, mod
	return nil
}

func TestConflictsStayConflicts(t *testing.T) {
	w, s := newConfigMaps(t)
	create := func() error {
		return s.Create(t.Context(), "/configmaps/existing", configMap("existing", "x"), nil, 0)
	}
	if err := create(); !storage.IsExist(err) {
		t.Errorf("creating what exists: got %v, want AlreadyExists", err)
	}
	w.report(configMaps, by(self, "v1"), by(other, "v1"))
	if err := create(); !storage.IsExist(err) {
		t.Errorf("creating what exists after the fence moved: got %v, want AlreadyExists", err)
	}
	gone := s.GuaranteedUpdate(t.Context(), "/configmaps/none", &corev1.ConfigMap{}, false, nil, setData("x"), nil)
	if !storage.IsNotFound(gone) {
		t.Errorf("updating what does not exist: got %v, want NotFound", gone)
	}
	stale := &corev1.ConfigMap{}
	must(t, s.Get(t.Context(), "/configmaps/existing", storage.GetOptions{}, stale))
	must(t, writes["update"](w, s))
	seen := []string{}
	err := s.GuaranteedUpdate(t.Context(), "/configmaps/existing", &corev1.ConfigMap{}, false, nil,
		storage.SimpleUpdate(func(in runtime.Object) (runtime.Object, error) {
			cm := in.(*corev1.ConfigMap)
			seen = append(seen, cm.Data["data"])
			cm.Data["more"] = "y"
			return cm, nil
		}), stale)
	if err != nil {
		t.Fatalf("update from a stale object: %v", err)
	}
	if got := strings.Join(seen, " "); got != "old changed" {
		t.Errorf("tryUpdate saw %q, want the stale object and then the stored one", got)
	}
	w.report(configMaps, by(other, "v1"))
	wantUnavailable(t, create())
}

func TestNoOpUpdateNeedsNoPermit(t *testing.T) {
	w, s := newConfigMaps(t)
	w.report(configMaps, by(other, "v1"))
	before := w.stored("/configmaps")
	err := s.GuaranteedUpdate(t.Context(), "/configmaps/existing", &corev1.ConfigMap{}, false, nil, setData("old"), nil)
	if err != nil {
		t.Errorf("an update that changes nothing: %v", err)
	}
	if got := w.stored("/configmaps"); got != before {
		t.Errorf("an update that changes nothing wrote:\n%s", got)
	}
}

func TestUnfenced(t *testing.T) {
	w := newWorld(t)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	if err := w.leases().Create(t.Context(), "/leases/a", lease, nil, 0); err != nil {
		t.Fatalf("a Lease without any report: %v", err)
	}
	for _, gr := range []schema.GroupResource{{Resource: "namespaces"}, leases, {Group: "internal.apiserver.k8s.io", Resource: "storageversions"}} {
		if !storageversion.Unfenced().Has(gr) {
			t.Errorf("%s is fenced", gr)
		}
	}
}

func TestEtcdLeaseIsKept(t *testing.T) {
	w, s := newConfigMaps(t)
	ttl := uint64(600)
	must(t, s.Create(t.Context(), "/configmaps/mortal", configMap("mortal", "x"), nil, ttl))
	leaseOf := func() int64 {
		resp, err := testEtcd.Get(t.Context(), w.prefix+"/configmaps/mortal")
		if err != nil || len(resp.Kvs) != 1 {
			t.Fatalf("%v, %v", resp, err)
		}
		return resp.Kvs[0].Lease
	}
	created := leaseOf()
	if created == 0 {
		t.Fatal("an object with a time to live was stored without an etcd lease")
	}
	w.report(configMaps, by(self, "v1"), by(other, "v1"))
	err := s.GuaranteedUpdate(t.Context(), "/configmaps/mortal", &corev1.ConfigMap{}, false, nil,
		func(in runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
			in.(*corev1.ConfigMap).Data = map[string]string{"data": "y"}
			return in, &ttl, nil
		}, nil)
	must(t, err)
	if leaseOf() == 0 {
		t.Error("the update lost the etcd lease")
	}
	if resp, err := testEtcd.TimeToLive(t.Context(), clientv3.LeaseID(leaseOf())); err != nil || resp.TTL <= 0 {
		t.Errorf("lease: %v, %v", resp, err)
	}
}
