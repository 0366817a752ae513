package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	machinery "k8s.io/apimachinery/pkg/runtime"

	"github.com/concord-dev/concord/agree"
)

// The rewrite beside the raw limit (the same bytes in transactions with the same compares,
// as many under way, nothing read or decoded) and beside one put after another:
//
//	go test ./migrate/store -run '^$' -bench Rewrite -benchtime 5x
//
// Every benchmark runs on an etcd that syncs its log, with 10,000 objects of 1 KiB; one
// operation writes all of them.
const benchObjects = 10_000

func BenchmarkRewrite(b *testing.B) {
	codecs := newTyped(b)
	for name, resource := range map[string]struct {
		prefix    string
		encodings [2]agree.Encoding
		codecs    [2]machinery.Codec
		empty     func() machinery.Object
		value     func(int) []byte
	}{
		"protobuf": {policyPrefix, [2]agree.Encoding{oldEncoding, newEncoding}, [2]machinery.Codec{codecs.old, codecs.new}, newPolicy,
			func(i int) []byte { return codecs.value(b, codecs.old, i) }},
		"json": {"/registry/example.com/widgets/", [2]agree.Encoding{"example.com/v1", "example.com/v2"}, [2]machinery.Codec{widgets("v1"), widgets("v2")}, newWidget,
			func(i int) []byte { return widget(b, "v1", i) }},
	} {
		b.Run(name, func(b *testing.B) {
			c := startEtcd(b)
			load(b, c, benchObjects, numbered(resource.prefix), resource.value)
			target := Target{
				GroupResource: policies, Prefix: resource.prefix, New: resource.empty,
				FenceKey: policyFence, FenceRevision: put(b, c, policyFence, nil),
			}
			now := 0 // the index of the encoding that everything is in
			for _, underWay := range []int{16, 64, 128, 256, 512} {
				b.Run(fmt.Sprint("under way=", underWay), func(b *testing.B) {
					for b.Loop() {
						now = 1 - now
						target.Encoding, target.Codec = resource.encodings[now], resource.codecs[now]
						result, err := New(NewEtcd(c)).Run(b.Context(), target, Options{UnderWay: underWay}, nil)
						must(b, err)
						if result.Rewritten != benchObjects {
							b.Fatalf("got %+v", result.Progress)
						}
					}
					report(b)
				})
			}
			b.Run("nothing to do", func(b *testing.B) {
				for b.Loop() {
					_, err := New(NewEtcd(c)).Run(b.Context(), target, Options{}, nil)
					must(b, err)
				}
				report(b)
			})
			fence := Fence{Key: target.FenceKey, Revision: target.FenceRevision}
			for _, underWay := range []int{16, 128, 256, 512} {
				b.Run(fmt.Sprint("raw, under way=", underWay), func(b *testing.B) { benchRaw(b, c, fence, resource.prefix, underWay) })
			}
			b.Run("one put after another", func(b *testing.B) { benchPuts(b, c, resource.prefix) })
		})
	}
}

func report(b *testing.B) {
	b.ReportMetric(float64(benchObjects*b.N)/b.Elapsed().Seconds(), "objects/s")
}

// entries returns what is stored, in key order.
func entries(b *testing.B, c *clientv3.Client, prefix string) []Put {
	all := slices.SortedFunc(maps.Values(stored(b, c, prefix)), func(x, y Entry) int { return strings.Compare(x.Key, y.Key) })
	puts := make([]Put, len(all))
	for i, e := range all {
		puts[i] = Put{Key: e.Key, Value: e.Value, ModRevision: e.ModRevision}
	}
	return puts
}

func benchRaw(b *testing.B, c *clientv3.Client, fence Fence, prefix string, underWay int) {
	kv := NewEtcd(c)
	for b.Loop() {
		b.StopTimer()
		puts := entries(b, c, prefix)
		b.StartTimer()
		group, ctx := errgroup.WithContext(b.Context())
		group.SetLimit(underWay)
		for _, p := range puts {
			group.Go(func() error {
				written, _, err := kv.Put(ctx, fence, p)
				if err == nil && !written {
					err = fmt.Errorf("%s has changed", p.Key)
				}
				return err
			})
		}
		must(b, group.Wait())
	}
	report(b)
}

// benchPuts writes a tenth of the objects, since it takes long.
func benchPuts(b *testing.B, c *clientv3.Client, prefix string) {
	puts := entries(b, c, prefix)[:benchObjects/10]
	for b.Loop() {
		for i, p := range puts {
			resp, err := c.Txn(context.Background()).
				If(clientv3.Compare(clientv3.ModRevision(p.Key), "=", p.ModRevision)).
				Then(clientv3.OpPut(p.Key, string(p.Value))).Commit()
			must(b, err)
			puts[i].ModRevision = resp.Header.Revision
		}
	}
	b.ReportMetric(float64(len(puts)*b.N)/b.Elapsed().Seconds(), "objects/s")
}
