package fence

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/concord-dev/concord/testbed/etcdtest"
)

// BenchmarkFencedPut creates objects of 1 KiB with and without the fence, in turns
// against one etcd that syncs to disk, and reports the latencies side by side:
//
//	go test -run '^$' -bench FencedPut -benchtime 4000x ./fence
func BenchmarkFencedPut(b *testing.B) {
	for _, writers := range []int{1, 16} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) { benchmarkPut(b, writers) })
	}
}

func benchmarkPut(b *testing.B, writers int) {
	config := etcdtest.Config(b.TempDir())
	config.UnsafeNoFsync = false
	etcd, err := etcdtest.Start(config)
	if err != nil {
		b.Fatal(err)
	}
	defer etcd.Close()
	client, err := Dial(b.Context(), storagebackend.TransportConfig{ServerList: []string{etcdtest.Endpoint(etcd)}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	w := newWorldWith(b, client, nil)
	fenced := w.configMaps(false)
	w.permit(configMaps, "v1")
	w.fence.unfenced = sets.New(schema.GroupResource{Resource: "configmaps"})
	plain := w.configMaps(false)

	stores := map[string]storage.Interface{"plain": plain, "fenced": fenced}
	latencies := map[string][]time.Duration{"plain": make([]time.Duration, b.N), "fenced": make([]time.Duration, b.N)}
	data := string(make([]byte, 1024))
	var next atomic.Int64
	var running sync.WaitGroup
	b.ResetTimer()
	for range writers {
		running.Go(func() {
			for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
				order := []string{"plain", "fenced"}
				if i%2 == 1 {
					slices.Reverse(order)
				}
				for _, kind := range order {
					name := fmt.Sprintf("%s-%d", kind, i)
					var obj, out runtime.Object = configMap(name, data), &corev1.ConfigMap{}
					start := time.Now()
					if err := stores[kind].Create(b.Context(), "/configmaps/"+name, obj, out, 0); err != nil {
						b.Errorf("%s: %v", kind, err)
						return
					}
					latencies[kind][i] = time.Since(start)
				}
			}
		})
	}
	running.Wait()
	b.StopTimer()
	for kind, all := range latencies {
		slices.Sort(all)
		b.ReportMetric(microseconds(all, 50), kind+"-p50-µs")
		b.ReportMetric(microseconds(all, 99), kind+"-p99-µs")
	}
	b.ReportMetric(100*(microseconds(latencies["fenced"], 50)/microseconds(latencies["plain"], 50)-1), "p50-cost-%")
}

func microseconds(sorted []time.Duration, percentile int) float64 {
	return float64(sorted[(len(sorted)-1)*percentile/100].Nanoseconds()) / 1e3
}
