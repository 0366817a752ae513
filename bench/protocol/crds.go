package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
)

const (
	// crdPortion is how many CRDs one side creates before it is the other one's turn.
	crdPortion  = 50
	createLimit = 10 * time.Minute
	// agreementTarget bounds the time from the last start to all agreements, in seconds.
	agreementTarget = 30
)

// measureCRDs creates CRDs through one server on each side, then has three servers of
// the protocol start at once and agree on all of them.
func measureCRDs(ctx context.Context, b *bench) error {
	with, without, err := b.newCreations(ctx)
	if err != nil {
		return err
	}
	board, err := with.side.cluster.Board(ctx)
	if err != nil {
		return err
	}
	defer board.Close()
	both := []*creation{with, without}
	for turn := 0; len(without.names) < b.size.compared; turn++ {
		for _, c := range []*creation{both[turn%2], both[1-turn%2]} {
			if err := c.add(ctx, min(crdPortion, b.size.compared-len(c.names)), b.size.creators, board); err != nil {
				return err
			}
		}
	}
	b.emitComparison(*with, *without)
	if err := without.side.cluster.Close(); err != nil {
		return err
	}
	if err := with.add(ctx, b.size.crds-len(with.names), b.size.creators, board); err != nil {
		return err
	}
	b.emitCreation(*with)
	if err := b.startThree(ctx, with.side.cluster, board); err != nil {
		return err
	}
	return with.side.cluster.Close()
}

// creation is what it cost one side to create CRDs.
type creation struct {
	side  *side
	names []string
	// wall is the time until all were established and, with the protocol, reported.
	wall, cpu time.Duration
	resident  int64
}

// newCreations starts one of the three servers of each side.
func (b *bench) newCreations(ctx context.Context) (with, without *creation, err error) {
	var made [2]*creation
	for i, name := range []string{"with", "without"} {
		cluster, err := b.stage.Cluster(ctx, b.name+"-"+name, i == 0, 3)
		if err != nil {
			return nil, nil, err
		}
		made[i] = &creation{side: &side{name: name, cluster: cluster}}
		if err := made[i].side.openFirst(ctx); err != nil {
			return nil, nil, err
		}
	}
	return made[0], made[1], nil
}

func (s *side) openFirst(ctx context.Context) error {
	server := s.cluster.Servers[0]
	if err := server.Start(); err != nil {
		return err
	}
	if _, err := server.AwaitReady(ctx, corpus.CalmPoll); err != nil {
		return err
	}
	client, err := server.Client()
	if err != nil {
		return err
	}
	s.clients = []*stage.Client{client}
	return corpus.AwaitBootstrap(ctx, client)
}

// add creates n more CRDs.
func (c *creation) add(ctx context.Context, n, creators int, board *stage.Board) error {
	server := c.side.cluster.Servers[0]
	cpu, err := server.CPU()
	if err != nil {
		return err
	}
	began := time.Now()
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(creators)
	var customs []schema.GroupResource
	first := len(c.names)
	for i := range n {
		plural := fmt.Sprintf("things%ds", first+i)
		c.names = append(c.names, plural)
		customs = append(customs, schema.GroupResource{Group: corpus.CustomGroup, Resource: plural})
		group.Go(func() error {
			_, err := c.side.clients[0].Do(groupCtx, http.MethodPost, corpus.CRDPath, corpus.JSONType, corpus.Definition(plural, "v1"))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("create CRDs: %w", err)
	}
	if err := c.awaitEstablished(ctx, first); err != nil {
		return err
	}
	if c.side.cluster.Protocol {
		if _, err := board.Await(ctx, createLimit, reported(customs, 1)); err != nil {
			return err
		}
	}
	c.wall += time.Since(began)
	after, err := server.CPU()
	if err != nil {
		return err
	}
	c.cpu += after - cpu
	c.resident, err = server.Resident()
	return err
}

// awaitEstablished waits for all CRDs from the first on.
func (c *creation) awaitEstablished(ctx context.Context, first int) error {
	ctx, cancel := context.WithTimeout(ctx, createLimit)
	defer cancel()
	next := first
	return stage.Until(ctx, corpus.CalmPoll, func(ctx context.Context) error {
		for ; next < len(c.names); next++ {
			name := c.names[next] + "." + corpus.CustomGroup
			body, err := c.side.clients[0].Do(ctx, http.MethodGet, corpus.CRDPath+"/"+name, "", nil)
			if err != nil {
				return err
			}
			if !established(body) {
				return fmt.Errorf("%s is not established", name)
			}
		}
		return nil
	})
}

func established(crd []byte) bool {
	var read struct {
		Status struct {
			Conditions []struct{ Type, Status string } `json:"conditions"`
		} `json:"status"`
	}
	if json.Unmarshal(crd, &read) != nil {
		return false
	}
	for _, c := range read.Status.Conditions {
		if c.Type == "Established" {
			return c.Status == "True"
		}
	}
	return false
}

func (b *bench) emitComparison(with, without creation) {
	title := fmt.Sprintf("creating %d CRDs through one server", len(with.names))
	b.emit(figures.Row{Figure: title + ", until all are established and reported", Unit: "s", Value: with.wall.Seconds()}.
		Compare(withoutProtocol, without.wall.Seconds()))
	b.emit(figures.Row{Figure: title + ", its processor time", Unit: "s", Value: with.cpu.Seconds()}.
		Compare(withoutProtocol, without.cpu.Seconds()))
	b.emit(figures.Row{Figure: title + ", its memory afterwards", Unit: "MiB", Value: with.mebibytes()}.
		Compare(withoutProtocol, without.mebibytes()))
}

func (b *bench) emitCreation(with creation) {
	title := fmt.Sprintf("creating %d CRDs through one server", len(with.names))
	b.emit(figures.Row{Figure: title + ", until all are established and reported", Unit: "s", Value: with.wall.Seconds()})
	b.emit(figures.Row{Figure: title + ", its processor time", Unit: "s", Value: with.cpu.Seconds()})
	b.emit(figures.Row{Figure: title + ", its memory afterwards", Unit: "MiB", Value: with.mebibytes()})
}

func (c creation) mebibytes() float64 { return float64(c.resident) / (1 << 20) }

// startThree stops the server that runs and starts all three at once.
func (b *bench) startThree(ctx context.Context, cluster *stage.Cluster, board *stage.Board) error {
	all := resources(board)
	old, err := cluster.Servers[0].ID()
	if err != nil {
		return err
	}
	if err := cluster.Servers[0].Stop(ctx); err != nil {
		return err
	}
	for _, s := range cluster.Servers {
		if err := s.Start(); err != nil {
			return err
		}
	}
	last := cluster.Servers[len(cluster.Servers)-1].Started()
	ready, err := allReady(ctx, cluster)
	if err != nil {
		return err
	}
	at, err := b.agreed(ctx, board, all, old)
	if err != nil {
		return err
	}
	title := fmt.Sprintf("three servers started at once with %d CRDs", b.size.crds)
	b.emit(figures.Row{Figure: title + ", last start to all agreements", Unit: "s", Value: at.Sub(last).Seconds()}.
		Judged(figures.AtMost(agreementTarget)))
	b.emit(figures.Row{Figure: title + ", last start to all ready", Unit: "s", Value: ready.Sub(last).Seconds()})
	return nil
}

func allReady(ctx context.Context, cluster *stage.Cluster) (time.Time, error) {
	times := make([]time.Time, len(cluster.Servers))
	group, ctx := errgroup.WithContext(ctx)
	for i, s := range cluster.Servers {
		group.Go(func() (err error) {
			times[i], err = s.AwaitReady(ctx, corpus.CalmPoll)
			return err
		})
	}
	err := group.Wait()
	var last time.Time
	for _, t := range times {
		if t.After(last) {
			last = t
		}
	}
	return last, err
}

// agreed returns when three servers had reported everything. What is lacking after a
// long time is a figure too, so it is told with the error.
func (b *bench) agreed(ctx context.Context, board *stage.Board, all []schema.GroupResource, old agree.ServerID) (time.Time, error) {
	at, err := board.Await(ctx, createLimit, reported(all, 3, old))
	if errors.Is(err, context.DeadlineExceeded) {
		lacking := 0
		for _, gr := range all {
			if reported([]schema.GroupResource{gr}, 3, old)(board.Resources()) != "" {
				lacking++
			}
		}
		err = fmt.Errorf("%d of %d resources lack reports: %w", lacking, len(all), err)
	}
	return at, err
}
