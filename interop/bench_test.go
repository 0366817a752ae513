package interop

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/cluster"
)

var benchObjects = flag.Int("objects", 5000, "how many objects of 1 KiB BenchmarkMigration migrates")

// BenchmarkMigration measures ways of migrating a custom resource on one kube-apiserver, each in
// a cluster of its own and under no other load:
//
//	go test . -run '^$' -bench Migration -benchtime 1x
//
// objects/s is from the first written object to the last, wait-s from the order to the first.
// Requests are those for the resource, until the migrator says that it is done.
func BenchmarkMigration(b *testing.B) {
	for _, way := range []struct {
		name string
		// prepare starts the migrator; migrate orders the migration and waits until it is said to be done.
		prepare func(*testing.B, *beside.Widgets) *cluster.Process
		migrate func(*testing.B, *beside.Widgets)
	}{
		{"concord", func(b *testing.B, w *beside.Widgets) *cluster.Process {
			p := deployed(w.Server, nil)
			w.AwaitStored(beside.V1, beside.V1)
			return p
		}, func(b *testing.B, w *beside.Widgets) { w.AwaitStored(beside.V2, beside.V2) }},
		{"in-tree", func(b *testing.B, w *beside.Widgets) *cluster.Process {
			return controllerManager(b, w.Server, withMigrator, "--leader-elect=false")
		}, inTree},
		{"kube-storage-version-migrator", nil, replaceEach},
		{"Cluster-API", nil, applyEach},
	} {
		b.Run(way.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				w := benchWidgets(b)
				var p *cluster.Process
				if way.prepare != nil {
					p = way.prepare(b, w)
				}
				before := measure(b, w)
				written := watchWrites(b, w)
				began := time.Now()
				w.Store("v2")
				b.StartTimer()
				way.migrate(b, w)
				first, last := written()
				after := measure(b, w)
				n := float64(*benchObjects)
				b.ReportMetric((n-1)/last.Sub(first).Seconds(), "objects/s")
				b.ReportMetric(first.Sub(began).Seconds(), "wait-s")
				b.ReportMetric((after.requests-before.requests)/n, "requests/object")
				b.ReportMetric((after.cpu-before.cpu).Seconds()*1000/n, "apiserver-ms/object")
				if p != nil {
					b.ReportMetric(peakMemory(b, p), "MiB")
				}
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// benchWidgets makes the objects.
func benchWidgets(b *testing.B) *beside.Widgets {
	b.Helper()
	a := guarded(b, newCluster(b))
	w := a.Define("widgets", false, nil)
	w.Fill(*benchObjects, func(i int, o *unstructured.Unstructured) { o.Object["padding"] = strings.Repeat("x", 700) })
	return w
}

// watchWrites returns when the first object was written in v2, and when the last one.
func watchWrites(b *testing.B, w *beside.Widgets) func() (first, last time.Time) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	b.Cleanup(cancel)
	now, err := w.Server.Cluster.Etcd.Raw.Get(ctx, "none")
	if err != nil {
		b.Fatal(err)
	}
	changes := w.Server.Cluster.Etcd.Raw.Watch(ctx, w.Keys(), clientv3.WithPrefix(), clientv3.WithRev(now.Header.Revision+1))
	done := make(chan [2]time.Time, 1)
	go func() {
		var times [2]time.Time
		seen := map[string]bool{}
		for response := range changes {
			for _, event := range response.Events {
				seen[string(event.Kv.Key)] = true
			}
			times[1] = time.Now()
			if times[0].IsZero() {
				times[0] = times[1]
			}
			if len(seen) == *benchObjects {
				break
			}
		}
		done <- times
	}()
	return func() (time.Time, time.Time) {
		times := <-done
		return times[0], times[1]
	}
}

// spent is the work that a kube-apiserver has done.
type spent struct {
	requests float64
	cpu      time.Duration
}

func measure(b *testing.B, w *beside.Widgets) (s spent) {
	b.Helper()
	page, err := w.Server.Kube().Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for lines := bufio.NewScanner(strings.NewReader(string(page))); lines.Scan(); {
		name, number, _ := strings.Cut(lines.Text(), "} ")
		if !strings.HasPrefix(name, "apiserver_request_total{") || !strings.Contains(name, `resource="`+w.Plural+`"`) || strings.Contains(name, `verb="WATCH"`) {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil {
			b.Fatal(err)
		}
		s.requests += n
	}
	if s.cpu, err = w.Server.Run().CPU(); err != nil {
		b.Fatal(err)
	}
	return s
}

// peakMemory is the most that a process had resident.
func peakMemory(b *testing.B, p *cluster.Process) float64 {
	b.Helper()
	peak, err := p.Run().PeakResident()
	if err != nil {
		b.Fatal(err)
	}
	return float64(peak) / (1 << 20)
}

func inTree(b *testing.B, w *beside.Widgets) {
	order(b, w)
	beside.Eventually(b, 10*beside.Patience, "the in-tree migration succeeds", func(ctx context.Context) error {
		now, err := conditions(ctx, b, w)
		if _, ok := now["Succeeded"]; err == nil && !ok {
			err = errors.New("not yet")
		}
		return err
	})
}

// settled waits until the new version is stored, which a migrator has to know of itself.
func settled(b *testing.B, w *beside.Widgets) {
	b.Helper()
	beside.Eventually(b, beside.Patience, "v2 is stored", func(ctx context.Context) error {
		patch := fmt.Appendf(nil, `{"touched":%d}`, time.Now().UnixNano())
		if _, err := w.Server.Dynamic().Resource(w.In("v1")).Namespace(beside.Namespace).Patch(ctx, beside.ObjectName(0), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return err
		}
		counts, err := w.Stored(ctx, 0)
		if err == nil && counts[beside.V2] == 0 {
			err = errors.New("not yet")
		}
		return err
	})
}

// replaceEach writes what it reads, one object after the other, as kube-storage-version-migrator
// does, but without its limit of requests.
func replaceEach(b *testing.B, w *beside.Widgets) {
	settled(b, w)
	all := w.Server.Dynamic().Resource(w.In("v2")).Namespace(beside.Namespace)
	for from := ""; ; {
		list, err := all.List(b.Context(), metav1.ListOptions{Limit: 500, Continue: from})
		if apierrors.IsTooManyRequests(err) {
			continue // the definition has just changed
		}
		if err != nil {
			b.Fatal(err)
		}
		for i := range list.Items {
			if _, err := all.Update(b.Context(), &list.Items[i], metav1.UpdateOptions{}); err != nil {
				b.Fatal(err)
			}
		}
		if from = list.GetContinue(); from == "" {
			return
		}
	}
}

// applyEach lists metadata and applies nothing to each object, one after the other, as Cluster
// API's migrator does.
func applyEach(b *testing.B, w *beside.Widgets) {
	settled(b, w)
	client, err := metadata.NewForConfig(w.Server.Config())
	if err != nil {
		b.Fatal(err)
	}
	all := client.Resource(w.In("v2")).Namespace(beside.Namespace)
	for from := ""; ; {
		list, err := all.List(b.Context(), metav1.ListOptions{Limit: 500, Continue: from})
		if apierrors.IsTooManyRequests(err) {
			continue // the definition has just changed
		}
		if err != nil {
			b.Fatal(err)
		}
		for _, m := range list.Items {
			patch := fmt.Appendf(nil, `{"apiVersion":%q,"kind":"Widget","metadata":{"name":%q,"uid":%q,"resourceVersion":%q}}`, beside.V2, m.Name, m.UID, m.ResourceVersion)
			if _, err := all.Patch(b.Context(), m.Name, types.ApplyPatchType, patch, metav1.PatchOptions{FieldManager: "migrator"}); err != nil {
				b.Fatal(err)
			}
		}
		if from = list.Continue; from == "" {
			return
		}
	}
}
