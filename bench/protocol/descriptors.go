package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"golang.org/x/sync/errgroup"

	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
)

// measureDescriptors counts open files when every custom resource has been used.
func measureDescriptors(ctx context.Context, b *bench) error {
	both, err := b.newSides(ctx, 1)
	if err != nil {
		return err
	}
	// A server takes two seconds before it serves a new CRD.
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(2 * b.size.creators)
	for i := range b.size.usedCRDs {
		for _, s := range both.turn(i) {
			group.Go(func() error { return s.use(groupCtx, fmt.Sprintf("used%ds", i)) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	var found [2]stage.Descriptors
	for i, s := range both {
		for _, c := range s.clients {
			c.Close()
		}
		if found[i], err = s.cluster.Servers[0].Descriptors(); err != nil {
			return err
		}
	}
	title := fmt.Sprintf("with %d CRDs in use", b.size.usedCRDs)
	b.emit(figures.Row{Figure: "open files " + title, Value: float64(found[0].Open)}.
		Compare(withoutProtocol, float64(found[1].Open)))
	b.emit(figures.Row{Figure: "etcd connections " + title, Value: float64(found[0].Etcd)}.
		Compare(withoutProtocol, float64(found[1].Etcd)).
		Judged(figures.AtMost(1)))
	if found[0].Etcd == 0 || found[1].Etcd == 0 {
		return errors.New("no etcd connection was found: they are not counted rightly")
	}
	return both.close()
}

// use creates a CRD and an object of it, and reads the object.
func (s *side) use(ctx context.Context, plural string) error {
	if err := corpus.CreateCRD(ctx, s.clients, plural, "v1"); err != nil {
		return err
	}
	path := corpus.CustomPath(plural, "v1")
	err := corpus.Eventually(ctx, "an object of "+plural+" is created", func(ctx context.Context) error {
		_, err := s.clients[0].Do(ctx, http.MethodPost, path, corpus.JSONType, corpus.Marshal(corpus.Custom(plural, "v1", "one", 1)))
		return err
	})
	if err != nil {
		return err
	}
	_, err = s.clients[0].Do(ctx, http.MethodGet, path+"/one", "", nil)
	return err
}
