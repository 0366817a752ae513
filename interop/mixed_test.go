package interop

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/cluster"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// The resources written in the roll: a custom one, of which the writers touch one half, and a
// built-in one.
const (
	rolled  = 60
	touched = rolled / 2
	v1OfOur = "admissionregistration.k8s.io/v1"
)

var (
	policies = kept{admissionregistrationv1.SchemeGroupVersion.WithResource("mutatingadmissionpolicies"), "mutatingadmissionpolicies/"}
	leases   = kept{schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, "leases/"}
)

// roll is the state of TestMixed.
type roll struct {
	*beside.Cluster
	t       *testing.T
	etcd    *cluster.ReplicatedEtcd
	widgets *beside.Widgets
	traffic *beside.Traffic
	written []beside.Written
	// served are the resources that stock servers serve.
	served []schema.GroupVersionResource
}

// TestMixed replaces two stock kube-apiservers by Concord's and back again, one at a time, while clients
// write a custom resource and a built-in one. As long as a stock server runs, or has crashed and left
// its Lease, nothing is agreed on and the StorageVersions name this Lease, nothing is migrated, and
// stock servers list and watch the objects as etcd holds them. Then everything is migrated. The etcd has three members
// and loses the leading one in the middle of the first exchange: the servers go on, and no acknowledged write is lost.
func TestMixed(t *testing.T) {
	c, etcd := beside.NewReplicated(t, programs(t))
	a, b := c.APIServer("a"), c.APIServer("b")
	r := &roll{Cluster: c, t: t, etcd: etcd, widgets: a.Define("widgets", false, nil), served: listable(t, a)}
	r.widgets.Fill(rolled, nil)
	r.written = r.arrange(a)
	r.traffic = beside.StartTraffic(t, 10*time.Second, beside.Patience, r.written, a.APIServer, b.APIServer)
	r.traffic.Await(touched, a.APIServer, b.APIServer)

	ours := r.in(a, b)
	r.migrated(ours)
	for _, s := range ours {
		r.lists(s)
	}
	r.back(ours)
	r.traffic.Stop()
}

// arrange returns the objects that clients write, and creates those that do not exist yet.
func (r *roll) arrange(s *beside.APIServer) []beside.Written {
	r.t.Helper()
	custom := beside.Written{Resource: r.widgets.In("v1"), Namespace: beside.Namespace}
	builtIn := beside.Written{Resource: policies.GroupVersionResource}
	for i := range touched {
		custom.Names = append(custom.Names, beside.ObjectName(i))
		p := beside.MutatingPolicy(fmt.Sprintf("policy-%d", i))
		if _, err := s.Kube().AdmissionregistrationV1().MutatingAdmissionPolicies().Create(r.t.Context(), p, metav1.CreateOptions{}); err != nil {
			r.t.Fatal(err)
		}
		builtIn.Names = append(builtIn.Names, p.Name)
	}
	if found := r.policies(); found[tested(r.t).policies] != touched || len(found) != 1 {
		r.t.Errorf("stock servers store policies in %v", found)
	}
	return []beside.Written{custom, builtIn}
}

// policies counts the stored policies by encoding.
func (r *roll) policies() map[string]int {
	r.t.Helper()
	values, err := r.Values(r.t.Context(), beside.Registry+policies.under, 0)
	must(r.t, err)
	found := map[string]int{}
	for _, value := range values {
		encoding, _, _ := migratestore.Envelope([]byte(value))
		found[string(encoding)]++
	}
	return found
}

// ours starts a server of Concord.
func (r *roll) ours(name string) *beside.APIServer {
	r.t.Helper()
	concord := program(r.t, "concord")
	return r.Start(func(flags ...string) *exec.Cmd {
		return exec.Command(concord, append([]string{"kube-apiserver", "--migration-settle=2s"}, flags...)...)
	}, name)
}

// in replaces b and then a, which crashes, by servers of Concord.
func (r *roll) in(a, b *beside.APIServer) []*beside.APIServer {
	r.t.Helper()
	record := beside.Record(r.t, r.Raw)
	readers := r.read(a)
	r.traffic.Through(a.APIServer)
	b.Terminate()
	first := r.ours("first")
	r.traffic.Through(a.APIServer, first.APIServer)
	lease := r.disagreed(first)
	r.etcd.KillLeader()
	r.traffic.Await(touched, a.APIServer, first.APIServer)
	r.widgets.Server = first
	r.widgets.Store("v2")
	r.traffic.Await(2*touched, a.APIServer, first.APIServer)
	r.unmigrated(first)
	for _, reader := range readers {
		reader.stop()
	}
	r.lists(a)
	r.lists(first)

	r.traffic.Through(first.APIServer)
	a.Kill()
	if again := r.disagreed(first); again != lease {
		r.t.Errorf("the server that crashed had the Lease %s, and is waited for because of %s", lease, again)
	}
	second := r.ours("second")
	r.traffic.Through(first.APIServer, second.APIServer)
	r.traffic.Await(touched, first.APIServer, second.APIServer)
	if again := r.disagreed(second); again != lease {
		r.t.Errorf("the Lease %s is blamed, and not %s", again, lease)
	}
	r.unmigrated(second)

	history := r.recorded(record)
	for _, reader := range readers {
		reader.check(history)
	}
	if made := history.Under(beside.Registry + migrationv1alpha1.GroupName + "/storageversionmigrations/").After(0); len(made) > 0 {
		r.t.Errorf("migrations were written while nothing was agreed on: %v", made)
	}
	if err := first.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace).Delete(r.t.Context(), lease, metav1.DeleteOptions{}); err != nil {
		r.t.Fatalf("delete the Lease as told: %v", err)
	}
	return []*beside.APIServer{first, second}
}

// recorded ends a record, and checks that it has all writes that servers acknowledged in that time.
func (r *roll) recorded(stop func() beside.History) beside.History {
	r.t.Helper()
	acknowledged := make([][]beside.Change, len(r.written))
	for i, w := range r.written {
		acknowledged[i] = r.traffic.Acknowledged(w.Resource)
	}
	history := stop()
	for i, of := range []kept{r.custom(), policies} {
		n := history.Under(beside.Registry+of.under).Holds(r.t, acknowledged[i])
		r.t.Logf("%d writes of %s were acknowledged, and are in etcd", n, of.Resource)
	}
	return history
}

// custom is the custom resource.
func (r *roll) custom() kept {
	return kept{r.widgets.In("v1"), strings.TrimPrefix(r.widgets.Keys(), beside.Registry)}
}

// read starts readers of the resources that both kinds of servers write, through one server.
func (r *roll) read(s *beside.APIServer) (all []*reader) {
	for _, of := range []kept{r.custom(), policies, leases} {
		all = append(all, read(r.t, s, of))
	}
	return all
}

// disagreed waits until nothing is agreed on because of one Lease, which exists, and returns its name.
func (r *roll) disagreed(s *beside.APIServer) (lease string) {
	r.t.Helper()
	beside.Eventually(r.t, beside.Patience, "nothing is agreed on, and it is said why", func(ctx context.Context) (err error) {
		lease, err = beside.Blamed(ctx, s.Objects())
		return err
	})
	return lease
}

// unmigrated waits until every StorageState contains Unknown, and only the widgets that no client
// writes are in the old version.
func (r *roll) unmigrated(s *beside.APIServer) {
	r.t.Helper()
	beside.Eventually(r.t, beside.Patience, "of everything Unknown is stored, and what nobody writes stays as it is", func(ctx context.Context) error {
		counts, err := r.widgets.Stored(ctx, 0)
		if err != nil || counts[beside.V1] != rolled-touched || counts[beside.V2] != touched {
			return fmt.Errorf("stored are %v, %v", counts, err)
		}
		return beside.States(ctx, s.Objects(), func(sv *apiserverinternalv1alpha1.StorageVersion, status migrationv1alpha1.StorageStateStatus) bool {
			return slices.Contains(status.PersistedEncodings, migrationv1alpha1.Unknown)
		})
	})
}

// migrated waits until all servers agree, and everything is stored only in the encoding on which they agree.
func (r *roll) migrated(ours []*beside.APIServer) {
	r.t.Helper()
	beside.Eventually(r.t, beside.Patience, "everything is migrated", func(ctx context.Context) error {
		return beside.States(ctx, ours[0].Objects(), func(sv *apiserverinternalv1alpha1.StorageVersion, status migrationv1alpha1.StorageStateStatus) bool {
			common, ok := storageversion.Agreement(sv)
			return ok && len(storageversion.Reports(sv)) == len(ours) && slices.Equal(status.PersistedEncodings, []string{string(common)})
		})
	})
	r.widgets.AwaitPruned(rolled)
	if found := r.policies(); found[v1OfOur] != touched || len(found) != 1 {
		r.t.Errorf("policies are stored in %v", found)
	}
}

// back replaces the servers of Concord by stock ones.
func (r *roll) back(ours []*beside.APIServer) {
	r.t.Helper()
	record := beside.Record(r.t, r.Raw)
	r.traffic.Through(ours[0].APIServer)
	ours[1].Terminate()
	third := r.APIServer("third")
	readers := r.read(third)
	r.traffic.Through(ours[0].APIServer, third.APIServer)
	r.disagreed(ours[0])
	r.traffic.Await(touched, ours[0].APIServer, third.APIServer)
	r.traffic.Through(third.APIServer)
	ours[0].Terminate()
	r.widgets.Server = third
	fourth := r.APIServer("fourth")
	r.traffic.Through(third.APIServer, fourth.APIServer)
	r.traffic.Await(touched, third.APIServer, fourth.APIServer)
	for _, reader := range readers {
		reader.stop()
	}
	history := r.recorded(record)
	for _, reader := range readers {
		reader.check(history)
	}
	r.lists(third)
	r.lists(fourth)
	beside.Eventually(r.t, beside.Patience, "each group in discovery answers", func(context.Context) error {
		_, err := fourth.Kube().Discovery().ServerPreferredResources()
		return err
	})
	r.widgets.AwaitPruned(rolled)
	beside.Eventually(r.t, beside.Patience, "stock servers have written all policies", func(context.Context) error {
		if found := r.policies(); found[tested(r.t).policies] != touched || len(found) != 1 {
			return fmt.Errorf("they are stored in %v", found)
		}
		return nil
	})
}

// listable returns the resources that a stock server lists while it is the only server, but those in beta versions: that of
// migrations is on in stock servers of 1.36 here, and off by default in 1.37.
func listable(t testing.TB, s *beside.APIServer) (all []schema.GroupVersionResource) {
	t.Helper()
	groups, err := s.Kube().Discovery().ServerPreferredResources()
	must(t, err)
	found, err := discovery.GroupVersionResources(discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list"}}, groups))
	if err != nil || len(found) < 50 {
		t.Fatalf("%d resources, %v", len(found), err)
	}
	for gvr := range found {
		if !strings.Contains(gvr.Version, "beta") {
			all = append(all, gvr)
		}
	}
	return all
}

// lists checks that a server lists all that a stock server listed alone, and all widgets.
func (r *roll) lists(s *beside.APIServer) {
	r.t.Helper()
	for _, gvr := range r.served {
		if _, err := s.Dynamic().Resource(gvr).List(r.t.Context(), metav1.ListOptions{}); err != nil {
			r.t.Errorf("%s lists no %s: %v", s.Name, gvr, err)
		}
	}
	for _, version := range []string{"v1", "v2"} {
		list, err := s.Dynamic().Resource(r.widgets.In(version)).List(r.t.Context(), metav1.ListOptions{ResourceVersion: "0"})
		if err != nil || len(list.Items) != rolled {
			r.t.Errorf("%s lists %d widgets in %s, %v", s.Name, len(list.Items), version, err)
		}
	}
}
