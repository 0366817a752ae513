package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
	"github.com/concord-dev/concord/testbed/load"
	"github.com/concord-dev/concord/testbed/process"
)

const (
	// settle is how long clients are served before they are timed, and idleFor how long they
	// are timed without a migration.
	settle, idleFor = 500 * time.Millisecond, 10 * time.Second
	// looks is the time between two readings of the server's processor time.
	looks = 50 * time.Millisecond
)

// bench collects the measurements.
type bench struct {
	options  options
	progress io.Writer
	cluster  *stage.Cluster
	servers  *corpus.Servers
	ways     []*way
	// large is the way that migrates the objects with which memory is measured.
	large *way
}

// way is a way to migrate objects.
type way struct {
	name string
	// all says that the proof reads every object (--verify=all). Only Concord proves that all objects are migrated.
	all    bool
	server *stage.Server
	stored *corpus.Stored
	// program is the migrator, if it is a program of its own, which start starts.
	start   func(context.Context, *way) (*process.Process, error)
	program *process.Process
	// migrate changes the storage version and has all objects migrated.
	migrate func(context.Context) (span, error)

	alone, beside []turn
	turns         int
	// peak is the most memory that the program had in any turn, in bytes.
	peak  int64
	proof span
}

// turn holds the measurements of one migration.
type turn struct {
	span
	// proof is the time of Concord's proof, which follows the migration.
	proof span
	// requests, bytes and cpu (milliseconds of the server's processor time) are per object, measured when nobody
	// else uses the server. requests and bytes include those of the proof.
	requests, bytes, cpu float64
	// idle and busy are the durations of clients' requests without and with a migration, in milliseconds.
	idle, busy []float64
}

func (b *bench) logf(format string, args ...any) {
	_, _ = fmt.Fprintf(b.progress, format+"\n", args...)
}

func (b *bench) measure(ctx context.Context) (err error) {
	if b.cluster, err = stage.New(ctx, "stock", 1); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.cluster.Close()) }()
	b.cluster.Stock()
	if err := b.cluster.Start(ctx); err != nil {
		return err
	}
	client, err := b.cluster.Servers[0].Client()
	if err != nil {
		return err
	}
	b.servers = &corpus.Servers{Cluster: b.cluster, Clients: []*stage.Client{client}}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	for range b.options.rounds {
		for _, loaded := range []bool{false, true} {
			for _, w := range b.ways {
				if err := b.turn(ctx, w, loaded); err != nil {
					return fmt.Errorf("%s: %w", w.name, err)
				}
			}
		}
	}
	if b.options.memoryObjects == 0 {
		return nil
	}
	b.large = b.concord("concord controllers, many objects", false)
	if err := b.fill(ctx, b.large, "larges", b.options.memoryObjects); err != nil {
		return err
	}
	return b.turn(ctx, b.large, false)
}

// prepare makes the ways, and their objects.
func (b *bench) prepare(ctx context.Context) error {
	put, apply, inTree := &way{name: "kube-storage-version-migrator"}, &way{name: "Cluster API"}, &way{name: "kube-controller-manager"}
	put.migrate, apply.migrate, inTree.migrate = put.inProcess(putEach), apply.inProcess(applyEach), inTree.inTree
	inTree.start = func(_ context.Context, w *way) (*process.Process, error) { return w.server.StartMigrator() }
	b.ways = []*way{b.concord("concord controllers", false), b.concord("concord controllers, --verify=all", true), put, inTree, apply}
	for i, w := range b.ways {
		objects := b.options.others
		if i < 2 {
			objects = b.options.objects
		}
		if err := b.fill(ctx, w, fmt.Sprintf("way%cs", 'a'+i), objects); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return nil
}

// fill creates the CRD of a way and its objects, which are stored in v1.
func (b *bench) fill(ctx context.Context, w *way, plural string, objects int) (err error) {
	b.logf("storing %d objects for %s", objects, w.name)
	w.server = b.cluster.Servers[0]
	if err := corpus.CreateCRD(ctx, b.servers.Clients, plural, "v1"); err != nil {
		return err
	}
	w.stored, err = corpus.CustomOf(plural).Fill(ctx, b.servers, objects)
	return err
}

// turn lets a way migrate its objects once. If they were migrated before, it brings them back to v1 first.
func (b *bench) turn(ctx context.Context, w *way, loaded bool) (err error) {
	if len(w.alone)+len(w.beside) > 0 {
		if err := b.restore(ctx, w); err != nil {
			return err
		}
	}
	if w.start != nil {
		if w.program, err = w.start(ctx, w); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.program.Kill()) }()
	}
	if err := b.servers.Rest(ctx); err != nil {
		return err
	}
	t, err := b.timed(ctx, w, loaded)
	if err != nil {
		return err
	}
	if err := w.stored.Check(ctx, w.stored.Objects()); err != nil {
		return err
	}
	if w.program != nil {
		peak, err := w.program.PeakResident()
		if err != nil {
			return err
		}
		w.peak = max(w.peak, peak)
	}
	if loaded {
		w.beside = append(w.beside, t)
	} else {
		w.alone = append(w.alone, t)
	}
	b.logf("%s: %.0f objects/s, %.2f requests, %.0f bytes and %.2f ms of the server for each, proof %.1fs, %d MiB; p99 of clients %.1f ms, before %.1f ms (%d and %d requests)",
		w.name, float64(w.stored.Objects())/t.took().Seconds(), t.requests, t.bytes, t.cpu, t.proof.took().Seconds(), w.peak>>20,
		figures.Quantile(t.busy, 0.99), figures.Quantile(t.idle, 0.99), len(t.busy), len(t.idle))
	return b.storedVersions(ctx, w, "v2")
}

// timed is the measured part of a turn.
func (b *bench) timed(ctx context.Context, w *way, loaded bool) (t turn, err error) {
	client := b.servers.Clients[0]
	clients, idleBegan := &corpus.Load{Client: client, Path: w.stored.Path, Open: true}, time.Now()
	loading, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	if loaded {
		go func() { defer close(ended); clients.Run(loading) }()
		idleBegan = idleBegan.Add(settle)
		if err := load.Pause(ctx, settle+idleFor); err != nil {
			return t, err
		}
	} else {
		close(ended)
	}
	idle := span{idleBegan, time.Now()}
	resource := w.stored.Corpus.Resource()
	before, err := client.Served(ctx, resource)
	if err != nil {
		return t, err
	}
	stopFollowing := follow(ctx, w.server)
	t.span, err = w.migrate(ctx)
	t.proof = w.proof
	stop()
	<-ended
	cpu, usedErr := stopFollowing()
	if err := errors.Join(err, usedErr, clients.Err()); err != nil {
		return t, err
	}
	after, err := client.Served(ctx, resource)
	if err != nil {
		return t, err
	}
	if !loaded {
		n := float64(w.stored.Objects())
		t.requests, t.bytes, t.cpu = (after.Requests-before.Requests)/n, (after.Bytes-before.Bytes)/n, cpu.in(t.span)/n
		return t, nil
	}
	t.idle, t.busy = clients.Took(idle.began, idle.ended), clients.Took(t.began, t.ended)
	return t, nil
}

// restore brings the objects back to v1, as before a migration.
func (b *bench) restore(ctx context.Context, w *way) error {
	if err := corpus.Flip(ctx, b.servers.Clients[0], w.stored.Corpus.Resource().Resource, "v1"); err != nil {
		return err
	}
	if _, err := w.stored.Restore(ctx, w.stored.Objects()); err != nil {
		return err
	}
	return b.storedVersions(ctx, w, "v1")
}

// storedVersions sets the CRD's status.storedVersions, as an administrator does after making sure that no other
// version is stored.
func (b *bench) storedVersions(ctx context.Context, w *way, version string) error {
	path := corpus.CRDPath + "/" + w.stored.Corpus.Resource().String() + "/status"
	body := corpus.Marshal(corpus.Fields{"status": corpus.Fields{"storedVersions": []string{version}}})
	return corpus.Eventually(ctx, "storedVersions is set", func(ctx context.Context) error {
		_, err := b.servers.Clients[0].Do(ctx, http.MethodPatch, path, "application/merge-patch+json", body)
		return err
	})
}

// usage is a server's processor time, read at several moments.
type usage []used

// used is the processor time that a server has used up to a moment.
type used struct {
	at time.Time
	time.Duration
}

// follow reads the processor time of a server at intervals, until the function that it returns is called.
func follow(ctx context.Context, server *stage.Server) func() (usage, error) {
	ctx, stop := context.WithCancel(ctx)
	var all usage
	ended := make(chan error, 1)
	go func() {
		for {
			now, err := server.Run().CPU()
			if err != nil {
				ended <- err
				return
			}
			all = append(all, used{time.Now(), now})
			if load.Pause(ctx, looks) != nil {
				ended <- nil
				return
			}
		}
	}()
	return func() (usage, error) {
		stop()
		err := <-ended
		return all, err
	}
}

// in returns the processor time that was used in a span, in milliseconds.
func (u usage) in(s span) float64 {
	at := func(t time.Time) time.Duration {
		if i := slices.IndexFunc(u, func(e used) bool { return !e.at.Before(t) }); i >= 0 {
			return u[i].Duration
		}
		return u[len(u)-1].Duration
	}
	return float64(at(s.ended)-at(s.began)) / float64(time.Millisecond)
}
