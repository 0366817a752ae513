package fence

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/concord-dev/concord/agree"
)

// TestInvariantI2 replays etcd's own history of concurrent writes while reports come, go
// and change: "A put commits only while the StorageVersion holds the writer's report for
// the encoding written" (DESIGN 3.7).
func TestInvariantI2(t *testing.T) {
	const writers, changes, seed = 4, 60, 1
	w := newWorld(t)
	s := w.configMaps(false)
	start := w.report(configMaps)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i := range writers {
		running.Go(func() { writeUntilDone(ctx, t, s, fmt.Sprintf("w%d", i)) })
	}
	rng := rand.New(rand.NewPCG(seed, seed))
	for range changes {
		acknowledged := w.countStored()
		switch rng.IntN(4) {
		case 0:
			w.report(configMaps, by(other, "v1")) // this server is not told
		case 1:
			w.report(configMaps)
		case 2:
			w.permits.grant(configMaps, "v1", w.report(configMaps, by(self, "v1")))
		case 3:
			w.permits.grant(configMaps, "v1", w.report(configMaps, by(self, "v1")))
			w.report(configMaps, by(other, "v1"), by(self, "v1")) // nor of this; it may still write
			eventually(t, "a write", func() bool { return w.countStored() > acknowledged })
		}
	}
	stop()
	running.Wait()
	end := w.report(configMaps)
	if n := w.replay(start, end); n == 0 {
		t.Fatal("no put was committed")
	}
}

// writeUntilDone creates objects through s; only a 503 is an acceptable error.
func writeUntilDone(ctx context.Context, t *testing.T, s storage.Interface, writer string) {
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("%s-%d", writer, i)
		err := s.Create(ctx, "/configmaps/"+name, configMap(name, "x"), &corev1.ConfigMap{}, 0)
		if err != nil && ctx.Err() == nil && !apierrors.IsServiceUnavailable(err) {
			t.Errorf("create: %v", err)
			return
		}
	}
}

func (w *world) countStored() int64 {
	w.Helper()
	resp, err := testEtcd.Get(w.Context(), w.prefix+"/configmaps/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		w.Fatal(err)
	}
	return resp.Count
}

// replay checks every put between two revisions against the reports that stood then and
// returns how many there were.
func (w *world) replay(start, end int64) int {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	fenceKey, _ := w.fence.FenceKey(configMaps)
	verdict, puts := agree.Lost, 0
	for resp := range testEtcd.Watch(ctx, w.prefix+"/", clientv3.WithPrefix(), clientv3.WithRev(start)) {
		if err := resp.Err(); err != nil {
			w.Fatal(err)
		}
		for _, event := range resp.Events {
			switch key := string(event.Kv.Key); {
			case event.Kv.ModRevision >= end:
				return puts
			case key == fenceKey:
				reports, err := w.fence.versions.reports(ctx, key, event.Kv.Value)
				if err != nil {
					w.Fatal(err)
				}
				verdict = agree.Judge(reports, self, "v1")
			case strings.HasPrefix(key, w.prefix+"/configmaps/"):
				puts++
				if verdict != agree.Proceed {
					w.Fatalf("%s was put at revision %d while the report was %s", key, event.Kv.ModRevision, verdict)
				}
			}
		}
	}
	w.Fatal("etcd's history ended early")
	return 0
}
