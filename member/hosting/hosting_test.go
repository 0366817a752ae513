package hosting

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

func TestOrphans(t *testing.T) {
	lease := func(name, local string) coordinationv1.Lease {
		l := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if local != "" {
			l.Annotations = map[string]string{storageversion.LocalIdentityAnnotation: local}
		}
		return l
	}
	leases := []coordinationv1.Lease{lease("h3", "c"), lease("h1", "a"), lease("h2", "b"), lease("h4", "")}
	if got, want := orphans(leases, sets.New[agree.ServerID]("b")), []agree.ServerID{"h1", "h3", "h4"}; !slices.Equal(got, want) {
		t.Errorf("orphans are %v, want %v", got, want)
	}
}

// TestTenure: what is known of the host counts for one registration only, and not for the next.
func TestTenure(t *testing.T) {
	unknown := errors.New("it does not answer")
	for _, test := range []struct {
		name   string
		tenure tenure
		id     agree.ServerID
		want   error
	}{
		{"alone", tenure{id: "a", alone: servesNone}, "a", nil},
		{"alone, and registered anew", tenure{id: "a", alone: servesNone}, "b", errHostUnknown},
		{"not registered", tenure{}, "", errHostUnknown},
		{"not known yet", tenure{id: "a", err: unknown}, "a", unknown},
		{"was alone when it last answered", tenure{id: "a", alone: servesNone, err: unknown}, "a", nil},
	} {
		if err := test.tenure.reported(t.Context(), test.id, schema.GroupResource{Group: "example.com", Resource: "things"}, "example.com/v1"); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
}

// TestAfter: a host that served no StorageVersions, serves some now, and does not say whose they are, counts as
// unknown. Everything else that was known stays until the host answers.
func TestAfter(t *testing.T) {
	unknown := errors.New("forbidden")
	for _, test := range []struct {
		name   string
		before string
		found  finding
		want   string
	}{
		{"none served", "", finding{alone: servesNone}, servesNone},
		{"ours", servesNone, finding{served: true}, ""},
		{"others', in place of none", servesNone, finding{served: true, alone: servesOthers}, servesOthers},
		{"no answer, after none", servesNone, finding{err: unknown}, servesNone},
		{"whose is not said, after none", servesNone, finding{served: true, err: unknown}, ""},
		{"whose is not said, after others'", servesOthers, finding{served: true, err: unknown}, servesOthers},
		{"no answer, never known", "", finding{err: unknown}, ""},
	} {
		got := tenure{id: "a", alone: test.before}.after(test.found)
		if got.alone != test.want || !errors.Is(got.err, test.found.err) {
			t.Errorf("%s: alone %q, %v; want %q", test.name, got.alone, got.err, test.want)
		}
	}
}

// TestSweepBacksOff: the elected server asks a host that does not answer after pauses of up to half a minute, and sweeps
// every second again once the host answers.
func TestSweepBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scheme := runtime.NewScheme()
		utilruntime.Must(errors.Join(coordinationv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
		var answers atomic.Bool
		var asked, sweeps atomic.Int64
		h := New(Config{Serves: func(context.Context) (bool, error) {
			asked.Add(1)
			if answers.Load() {
				return false, nil
			}
			return false, errors.New("it does not answer")
		}})
		h.own = interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				if _, ok := list.(*coordinationv1.LeaseList); ok {
					sweeps.Add(1)
				}
				return c.List(ctx, list, options...)
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go h.Lead(ctx)
		time.Sleep(100*time.Second + sweepInterval/2) // the clock is the test's, and stands between sweeps
		if n := asked.Load(); n != 8 {
			t.Errorf("it was asked %d times in 100 s, want 8: after pauses of 1, 2, 4, 8, 16, 30 and 30 s", n)
		}
		answers.Store(true)
		time.Sleep(sweepResync)
		before := sweeps.Load()
		time.Sleep(10 * time.Second)
		if n := sweeps.Load() - before; n != 10 {
			t.Errorf("once it has answered there are %d sweeps in 10 s, want 10", n)
		}
	})
}
