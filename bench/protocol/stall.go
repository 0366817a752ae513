package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
)

// settleLimit bounds the time until a change of a CRD is over: agreement, migration, and
// storedVersions pruned.
const settleLimit = 60 * time.Second

// measureStall changes a CRD's storage version under calm writers.
func measureStall(ctx context.Context, b *bench) error {
	return b.stalls(ctx, "under calm writers", b.size.changes, b.size.pause, figures.RatioAtMost(1.2))
}

// measureSaturated does so under writers that do not pause. It has no target.
func measureSaturated(ctx context.Context, b *bench) error {
	return b.stalls(ctx, "under writers without a pause", b.size.saturatedChanges, 0, nil)
}

// stalls is what one side's writers saw in all changes, in milliseconds.
type stalls struct {
	load *load
	// clients is the longest write as clients see it, with all its attempts, one for each
	// change; calm the longest one in the time before the change.
	clients, calm []float64
	// servers is the longest request to each server, one for each change.
	servers [][]float64
	// agreement is the time until all servers had reported the new encoding.
	agreement []float64
	requests  int
	refused   map[int]int // by status
	lost      int
	sample    error // one of the refusals
}

func (b *bench) stalls(ctx context.Context, title string, changes int, pause time.Duration, target *figures.Target) error {
	const servers = 3
	both, err := b.newSides(ctx, servers)
	if err != nil {
		return err
	}
	var seen [2]*stalls
	for i, s := range both {
		if err := corpus.CreateCRD(ctx, s.clients, stalled, "v1"); err != nil {
			return err
		}
		// In a CRD's first seconds a creation waits for two of them, and is refused if the CRD
		// changes meanwhile.
		if _, err := s.clients[0].Do(ctx, http.MethodPost, corpus.CustomPath(stalled, "v1"), corpus.JSONType, corpus.Marshal(corpus.Custom(stalled, "v1", "first", 0))); err != nil {
			return err
		}
		seen[i] = &stalls{load: newLoad(s, b.size.writers, pause), servers: make([][]float64, servers), refused: map[int]int{}}
	}
	board, err := both[0].cluster.Board(ctx)
	if err != nil {
		return err
	}
	defer board.Close()
	if _, err := board.Await(ctx, settleLimit, reported([]schema.GroupResource{{Group: corpus.CustomGroup, Resource: stalled}}, servers)); err != nil {
		return err
	}
	for i := range changes {
		for _, s := range both.turn(i) {
			if err := seen[slices.Index(both[:], s)].change(ctx, b.size, i, board); err != nil {
				return fmt.Errorf("%s, change %d: %w", s.name, i+1, err)
			}
		}
	}
	for _, s := range seen {
		if s.lost, err = s.load.lost(ctx); err != nil {
			return err
		}
	}
	b.emitStalls(title, changes, seen, target)
	return both.close()
}

// change lets the writers write, changes the CRD meanwhile, and waits until the servers
// have settled.
func (s *stalls) change(ctx context.Context, size size, i int, board *stage.Board) error {
	from, to := "v1", "v2"
	if i%2 == 1 {
		from, to = to, from
	}
	// Writers that are not stopped below, after an error, end with it.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := s.load.start(ctx)
	began := time.Now()
	if !sleep(ctx, nil, size.before) {
		return ctx.Err()
	}
	changed := time.Now()
	if err := s.load.side.store(ctx, to); err != nil {
		return err
	}
	if s.load.side.cluster.Protocol {
		at, err := board.Await(ctx, settleLimit, agreedOn(to))
		if err != nil {
			return err
		}
		s.agreement = append(s.agreement, milliseconds(at.Sub(changed)))
	}
	if !sleep(ctx, nil, size.after-time.Since(changed)) {
		return ctx.Err()
	}
	attempts, writes, err := stop()
	if err != nil {
		return err
	}
	s.note(attempts, writes, began, changed)
	if !s.load.side.cluster.Protocol {
		return nil
	}
	return s.load.side.awaitPruned(ctx, to, from)
}

// store makes v the storage version of the CRD, of whose two versions the first is v1.
func (s *side) store(ctx context.Context, v string) error {
	patch := corpus.Marshal([]corpus.Fields{
		{"op": "replace", "path": "/spec/versions/0/storage", "value": v == "v1"},
		{"op": "replace", "path": "/spec/versions/1/storage", "value": v == "v2"},
	})
	_, err := s.clients[0].Do(ctx, http.MethodPatch, corpus.CRDPath+"/"+stalled+"."+corpus.CustomGroup, "application/json-patch+json", patch)
	return err
}

func agreedOn(version string) func(map[schema.GroupResource]stage.Agreement) string {
	want := agree.Encoding(corpus.CustomGroup + "/" + version)
	return func(now map[schema.GroupResource]stage.Agreement) string {
		if a := now[schema.GroupResource{Group: corpus.CustomGroup, Resource: stalled}]; a.Common != want {
			return fmt.Sprintf("the servers agree on %q and not on %s", a.Common, want)
		}
		return ""
	}
}

// awaitPruned waits until the CRD says that nothing but v is stored.
func (s *side) awaitPruned(ctx context.Context, v, old string) error {
	return corpus.Eventually(ctx, "storedVersions loses "+old, func(ctx context.Context) error {
		body, err := s.clients[0].Do(ctx, http.MethodGet, corpus.CRDPath+"/"+stalled+"."+corpus.CustomGroup, "", nil)
		if err != nil {
			return err
		}
		var crd struct {
			Status struct {
				StoredVersions []string `json:"storedVersions"`
			} `json:"status"`
		}
		if err := json.Unmarshal(body, &crd); err != nil {
			return err
		}
		if !slices.Equal(crd.Status.StoredVersions, []string{v}) {
			return fmt.Errorf("it is %v", crd.Status.StoredVersions)
		}
		return nil
	})
}

// note takes in what the writers saw of one change.
func (s *stalls) note(attempts []attempt, writes []write, began, changed time.Time) {
	var longest, calm time.Duration
	for _, w := range writes {
		switch took := w.end.Sub(w.began); {
		case w.end.After(changed):
			longest = max(longest, took)
		case w.began.After(began):
			calm = max(calm, took)
		}
	}
	s.clients, s.calm = append(s.clients, milliseconds(longest)), append(s.calm, milliseconds(calm))
	byServer := make([]time.Duration, len(s.servers))
	for _, a := range attempts {
		s.requests++
		if a.err != nil {
			s.refused[a.code]++
			s.sample = a.err
		}
		if a.end.After(changed) {
			byServer[a.server] = max(byServer[a.server], a.end.Sub(a.began))
		}
	}
	for i, d := range byServer {
		s.servers[i] = append(s.servers[i], milliseconds(d))
	}
}

func (s *stalls) refusals() int {
	total := 0
	for _, n := range s.refused {
		total += n
	}
	return total
}

func (b *bench) emitStalls(title string, changes int, seen [2]*stalls, target *figures.Target) {
	with, without := seen[0], seen[1]
	judged := func(row figures.Row, t *figures.Target) figures.Row {
		if target == nil {
			return row
		}
		return row.Judged(t)
	}
	row := func(figure string, statistic func([]float64) float64, a, o []float64) figures.Row {
		return figures.Row{Figure: figure + " " + title, Unit: "ms", Value: statistic(a)}.Compare(withoutProtocol, statistic(o))
	}
	b.emit(judged(row(fmt.Sprintf("longest write in %d changes of a CRD's storage version", changes), figures.Max, with.clients, without.clients).
		Keep(with.clients, without.clients), target))
	b.emit(row("longest write in a change, median", figures.Median, with.clients, without.clients))
	for i := range with.servers {
		b.emit(row(fmt.Sprintf("longest write through server %d", i+1), figures.Max, with.servers[i], without.servers[i]))
	}
	b.emit(row("longest write before a change, median", figures.Median, with.calm, without.calm))
	b.emit(figures.Row{Figure: "from a change to agreement " + title + ", longest", Unit: "ms", Value: figures.Max(with.agreement), Samples: with.agreement})
	counts := []struct {
		figure        string
		with, without int
	}{
		{"acknowledged writes lost", with.lost, without.lost},
		{"writes answered with 503", with.refused[http.StatusServiceUnavailable], without.refused[http.StatusServiceUnavailable]},
		{"other writes that failed", with.refusals() - with.refused[http.StatusServiceUnavailable], without.refusals() - without.refused[http.StatusServiceUnavailable]},
	}
	for _, c := range counts {
		b.emit(judged(figures.Row{
			Figure: c.figure + " " + title, Value: float64(c.with), Note: fmt.Sprintf("of %d requests", with.requests),
		}.Compare(withoutProtocol, float64(c.without)), figures.AtMost(0)))
	}
	for i, s := range seen {
		if s.sample != nil {
			b.logf("%s: one of the refusals: %v", []string{"with", "without"}[i], s.sample)
		}
	}
}
