package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
)

// reportLimit bounds how long servers may take to report.
const reportLimit = 3 * time.Minute

// migrations are the custom resources that every cluster has.
var migrations = []schema.GroupResource{
	{Group: "migration.k8s.io", Resource: "storagestates"},
	{Group: "migration.k8s.io", Resource: "storageversionmigrations"},
}

// measureStart times starts on an empty etcd and on the same one again, in turns between
// the sides. With the protocol a start ends when all reports are made.
func measureStart(ctx context.Context, b *bench) error {
	first, again := map[bool][]float64{}, map[bool][]float64{}
	for i := range b.size.starts {
		order := []bool{true, false}
		if i%2 == 1 {
			order = []bool{false, true}
		}
		for _, protocol := range order {
			one, other, err := b.startTwice(ctx, fmt.Sprintf("start-%v-%d", protocol, i), protocol)
			if err != nil {
				return err
			}
			first[protocol], again[protocol] = append(first[protocol], one.Seconds()), append(again[protocol], other.Seconds())
		}
	}
	for _, row := range []struct {
		figure  string
		samples map[bool][]float64
	}{
		{"start to ready on an empty etcd, median", first},
		{"start to ready with all reports made, median", again},
	} {
		with, without := row.samples[true], row.samples[false]
		b.emit(figures.Row{Figure: row.figure, Unit: "s", Value: figures.Median(with)}.
			Compare(withoutProtocol, figures.Median(without)).
			Keep(with, without).
			Judged(figures.RatioAtMost(1.5)))
	}
	return nil
}

// startTwice starts a server on an empty etcd, stops it, and starts it again. Custom
// resources exist only the second time.
func (b *bench) startTwice(ctx context.Context, name string, protocol bool) (first, again time.Duration, err error) {
	cluster, err := b.stage.Cluster(ctx, name, protocol, 1)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	server := cluster.Servers[0]
	if err := server.Start(); err != nil {
		return 0, 0, err
	}
	ready, err := server.AwaitReady(ctx, corpus.ExactPoll)
	if err != nil {
		return 0, 0, err
	}
	first = ready.Sub(server.Started())
	client, err := server.Client()
	if err != nil {
		return 0, 0, err
	}
	if err := corpus.AwaitBootstrap(ctx, client); err != nil {
		return 0, 0, err
	}
	client.Close()
	if !protocol {
		again, err = startAgain(ctx, server)
		return first, again, err
	}
	board, err := cluster.Board(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer board.Close()
	old, err := server.ID()
	if err != nil {
		return 0, 0, err
	}
	// The resources of the migrations are reported shortly after they are served.
	if _, err := board.Await(ctx, reportLimit, reported(migrations, 1)); err != nil {
		return 0, 0, err
	}
	all := resources(board)
	if again, err = startAgain(ctx, server); err != nil {
		return 0, 0, err
	}
	at, err := board.Await(ctx, reportLimit, reported(all, 1, old))
	return first, max(again, at.Sub(server.Started())), err
}

func startAgain(ctx context.Context, server *stage.Server) (time.Duration, error) {
	if err := server.Stop(ctx); err != nil {
		return 0, err
	}
	if err := server.Start(); err != nil {
		return 0, err
	}
	ready, err := server.AwaitReady(ctx, corpus.ExactPoll)
	return ready.Sub(server.Started()), err
}

// resources returns the resources that have a StorageVersion.
func resources(board *stage.Board) []schema.GroupResource {
	var all []schema.GroupResource
	for gr := range board.Resources() {
		all = append(all, gr)
	}
	return all
}

// reported says what is lacking until every one of the resources has an agreement and
// reports of so many servers, none of them one of the old ones.
func reported(all []schema.GroupResource, servers int, old ...agree.ServerID) func(map[schema.GroupResource]stage.Agreement) string {
	gone := map[agree.ServerID]bool{}
	for _, id := range old {
		gone[id] = true
	}
	return func(now map[schema.GroupResource]stage.Agreement) string {
		for _, gr := range all {
			a := now[gr]
			if len(a.Reports) != servers || a.Common == "" {
				return fmt.Sprintf("%s has %d reports of %d and agreement %q", gr, len(a.Reports), servers, a.Common)
			}
			for _, report := range a.Reports {
				if gone[report.Server] {
					return fmt.Sprintf("%s has a report of %s, which is gone", gr, report.Server)
				}
			}
		}
		return ""
	}
}
