package beside

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	migratestore "github.com/concord-dev/concord/migrate/store"
)

// guard compares the storedVersions of a CRD with its stored objects.
type guard struct {
	t          testing.TB
	etcd       *clientv3.Client
	definition string // its key
	objects    string // the prefix of their keys
	// putRightIn is how long storedVersions may lack a version.
	putRightIn time.Duration

	changes, moments int
}

// Guard checks in etcd, at each change of a CRD from now on, that its storedVersions name all versions in which its
// objects are stored. A missing version has to be added again within putRightIn. The returned function ends the guard;
// the test fails if the CRD has not changed until then.
func Guard(t testing.TB, etcd *clientv3.Client, gr schema.GroupResource, putRightIn time.Duration) (stop func()) {
	t.Helper()
	g := &guard{
		t: t, etcd: etcd, putRightIn: putRightIn,
		definition: Registry + "apiextensions.k8s.io/customresourcedefinitions/" + gr.String(), objects: Registry + gr.Group + "/" + gr.Resource + "/",
	}
	now, err := etcd.Get(t.Context(), g.definition)
	if err != nil || len(now.Kvs) != 1 {
		t.Fatalf("%s: %v, %v", g.definition, now, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	until := make(chan int64, 1)
	running.Go(func() {
		g.watch(ctx, now.Kvs[0].ModRevision, etcd.Watch(ctx, g.definition, clientv3.WithRev(now.Header.Revision+1)), until)
	})
	return func() {
		t.Helper()
		last, err := etcd.Get(ctx, g.definition)
		if err != nil || len(last.Kvs) != 1 {
			t.Fatalf("%s: %v, %v", g.definition, last, err)
		}
		until <- last.Kvs[0].ModRevision
		running.Wait()
		if g.changes == 0 {
			t.Error("the definition did not change: nothing was tested")
		}
		t.Logf("the definition changed %d times; after %d of them its storedVersions lacked a version for a moment", g.changes, g.moments)
	}
}

// watch checks each change after the revision seen, up to the revision that it receives from until.
func (g *guard) watch(ctx context.Context, seen int64, watch clientv3.WatchChan, until <-chan int64) {
	for end := int64(math.MaxInt64); seen < end; {
		select {
		case end = <-until:
		case <-ctx.Done():
			return
		case batch, ok := <-watch:
			if !ok || batch.Err() != nil {
				g.t.Errorf("the watch of the definition ended: %v", batch.Err())
				return
			}
			for _, e := range batch.Events {
				seen = e.Kv.ModRevision
				g.changes++
				if err := g.lacking(ctx, seen); err != nil {
					g.moments++
					g.putRight(ctx, err)
				}
			}
		}
	}
}

// putRight waits until storedVersions lack no version any more.
func (g *guard) putRight(ctx context.Context, wrong error) {
	began, last := time.Now(), wrong
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, g.putRightIn, true, func(ctx context.Context) (bool, error) {
		last = g.lacking(ctx, 0)
		return last == nil, nil
	})
	switch {
	case err == nil && g.putRightIn > 0:
		g.t.Logf("%v; put right after %v", wrong, time.Since(began).Round(time.Millisecond))
	case ctx.Err() == nil:
		g.t.Errorf("%v; not put right in %v: %v", wrong, g.putRightIn, last)
	}
}

// lacking returns an error that names an object which is stored, at a revision or now, in a version that storedVersions
// lack.
func (g *guard) lacking(ctx context.Context, revision int64) error {
	definition, err := g.etcd.Get(ctx, g.definition, clientv3.WithRev(revision))
	if err != nil {
		return err
	}
	if revision == 0 {
		revision = definition.Header.Revision
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := json.Unmarshal(definition.Kvs[0].Value, &crd); err != nil {
		return err
	}
	stored, err := g.etcd.Get(ctx, g.objects, clientv3.WithPrefix(), clientv3.WithRev(revision))
	if err != nil {
		return err
	}
	for _, kv := range stored.Kvs {
		encoding, _, _ := migratestore.Envelope(kv.Value)
		if _, version, _ := strings.Cut(string(encoding), "/"); !slices.Contains(crd.Status.StoredVersions, version) {
			return fmt.Errorf("at revision %d %s is stored as %s, and storedVersions are %v", revision, kv.Key, encoding, crd.Status.StoredVersions)
		}
	}
	return nil
}
