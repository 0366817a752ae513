package main

import (
	"context"
	"errors"

	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/stage"
)

const withoutProtocol = "without the protocol"

// side is one of the two that are compared: the protocol, or the same servers without it.
type side struct {
	name    string
	cluster *stage.Cluster
	clients []*stage.Client // one for each server
}

// sides are with the protocol first, without it second.
type sides [2]*side

// newSides starts two equal clusters and waits until both can be used.
func (b *bench) newSides(ctx context.Context, servers int) (s sides, err error) {
	for i, name := range []string{"with", "without"} {
		if s[i], err = b.newSide(ctx, b.name+"-"+name, i == 0, servers); err != nil {
			return s, errors.Join(err, s.close())
		}
	}
	return s, nil
}

func (b *bench) newSide(ctx context.Context, name string, protocol bool, servers int) (*side, error) {
	cluster, err := b.stage.Cluster(ctx, name, protocol, servers)
	if err != nil {
		return nil, err
	}
	s := &side{name: name, cluster: cluster}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, cluster.Close())
	}
	return s, nil
}

func (s *side) open(ctx context.Context) error {
	servers, err := corpus.Open(ctx, s.cluster)
	if err != nil {
		return err
	}
	s.clients = servers.Clients
	return nil
}

func (s *side) servers() *corpus.Servers {
	return &corpus.Servers{Cluster: s.cluster, Clients: s.clients}
}

func (s sides) close() error {
	var errs []error
	for _, one := range s {
		if one != nil {
			errs = append(errs, one.cluster.Close())
		}
	}
	return errors.Join(errs...)
}

// turn returns the sides in the order of the i-th turn: each comes first in every other
// one.
func (s sides) turn(i int) []*side {
	if i%2 == 1 {
		return []*side{s[1], s[0]}
	}
	return s[:]
}
