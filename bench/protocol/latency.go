package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/figures"
)

// written is a resource whose writes are timed.
type written struct {
	figure, path string
	object       func(name string, sequence int) corpus.Fields
}

var timed = []written{
	{"write of a ConfigMap", "/api/v1/namespaces/default/configmaps", corpus.ConfigMap},
	{"write of a custom resource", corpus.CustomPath("widgets", "v1"), func(name string, sequence int) corpus.Fields { return corpus.Custom("widgets", "v1", name, sequence) }},
}

// measureLatency times creations and updates by one client, in turns between the sides
// from request to request.
func measureLatency(ctx context.Context, b *bench) error {
	both, err := b.newSides(ctx, 1)
	if err != nil {
		return err
	}
	for _, s := range both {
		if err := corpus.CreateCRD(ctx, s.clients, "widgets", "v1"); err != nil {
			return err
		}
	}
	samples := map[*side][][]float64{}
	for _, s := range both {
		samples[s] = make([][]float64, len(timed))
	}
	warm := max(10, b.size.writes/20)
	for i := range warm + b.size.writes {
		for r, resource := range timed {
			times, err := resource.pair(ctx, both.turn(i), i)
			if err != nil {
				return err
			}
			for s, pair := range times {
				if i >= warm {
					samples[s][r] = append(samples[s][r], pair...)
				}
			}
		}
	}
	for r, resource := range timed {
		with, without := samples[both[0]][r], samples[both[1]][r]
		for _, q := range []struct {
			name string
			q    float64
		}{{"p50", 0.5}, {"p99", 0.99}} {
			statistic := func(all []float64) float64 { return figures.Quantile(all, q.q) }
			b.emit(figures.Row{Figure: resource.figure + ", " + q.name, Unit: "ms", Value: statistic(with)}.
				Compare(withoutProtocol, statistic(without)).
				Within(figures.RatioInterval(with, without, statistic)).
				Judged(figures.RatioAtMost(1.05)))
		}
	}
	return both.close()
}

// pair creates and then updates one object on every side and returns the two times each
// took, in milliseconds.
func (w written) pair(ctx context.Context, turn []*side, i int) (map[*side][]float64, error) {
	name := fmt.Sprintf("object-%d", i)
	times := map[*side][]float64{}
	versions := map[*side]string{}
	for _, update := range []bool{false, true} {
		for _, s := range turn {
			method, path, object := http.MethodPost, w.path, w.object(name, 1)
			if update {
				method, path, object = http.MethodPut, w.path+"/"+name, w.object(name, 2)
				object["metadata"] = corpus.Fields{"name": name, "resourceVersion": versions[s]}
			}
			body := corpus.Marshal(object)
			began := time.Now()
			answer, err := s.clients[0].Do(ctx, method, path, corpus.JSONType, body)
			took := time.Since(began)
			if err != nil {
				return nil, fmt.Errorf("%s: %s %s: %w", s.name, method, path, err)
			}
			id, err := corpus.IdentityOf(answer)
			if err != nil {
				return nil, err
			}
			versions[s] = id.Metadata.ResourceVersion
			times[s] = append(times[s], milliseconds(took))
		}
	}
	return times, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
