package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/demo/workload"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/testbed/load"
	"github.com/concord-dev/concord/testbed/process"
)

const (
	// settleLimit bounds how long agreement and migrations may take after a change.
	settleLimit = 90 * time.Second
	// burialGrace is how much longer than its Lease a server may count as alive.
	burialGrace = 30 * time.Second
	// answerLimit bounds the wait for requests that were held by the pause.
	answerLimit = 30 * time.Second
	// holdTime is how long clients write through a server before it is paused.
	holdTime = 300 * time.Millisecond
	// flipTries bounds the attempts to change the CRD.
	flipTries = 20
)

// step is one part of the demo.
type step struct {
	number int
	name   string // short, for figures
	title  string
	do     func(context.Context) error
}

// lastStep is the number of the last step, prove.
const lastStep = 5

// run is one run of the demo: the shell around world, workload and judge.
type run struct {
	cfg     Config
	cluster *cluster
	work    *load.Journal
	loaded  atomic.Int64
	began   time.Time
	stop    func() // stops the writers

	mu     sync.Mutex
	step   step
	faults []fault
	facts  facts
}

func newRun(cfg Config, c *cluster, began time.Time) *run {
	return &run{
		cfg: cfg, cluster: c, work: load.NewJournal(), began: began, stop: func() {},
		facts: facts{Objects: cfg.Objects, AfterKill: -time.Second, AfterResume: -time.Second},
	}
}

func (r *run) list() []step {
	return []step{
		{1, "start", "start an etcd and a server, release " + oldRelease, r.start},
		{1, "load", fmt.Sprintf("load %s objects", humanize.Comma(int64(r.cfg.Objects))), r.load},
		{1, "join", fmt.Sprintf("start %d more servers, release %s", serverCount-1, oldRelease), r.join},
		{2, "roll", fmt.Sprintf("roll the servers one by one to release %s", newRelease), r.roll},
		{3, "flip", fmt.Sprintf("move the storage version of %s from %s to %s", workload.CRDName, workload.CustomVersions[0], workload.CustomVersions[1]), r.flip},
		{4, "kill", "kill a server with SIGKILL", r.kill},
		{4, "pause", "pause a server with SIGSTOP for longer than its Lease, then resume it", r.pause},
	}
}

// steps runs all steps and returns the facts. A step that does not end in time ends the demo early,
// and this is recorded as a fact; any other failure is an error.
func (r *run) steps(ctx context.Context) (facts, error) {
	defer func() { r.stop() }()
	if err := r.inTurn(ctx); err != nil {
		return facts{}, r.failed(ctx, err)
	}
	return r.facts, nil
}

// failed adds to an error what happened before it.
func (r *run) failed(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil: // servers that are stopped fail in all ways
		return fmt.Errorf("interrupted at %q: %w", r.step.title, ctx.Err())
	case len(r.facts.Incomplete) > 0:
		return fmt.Errorf("%s; after that %w", strings.Join(r.facts.Incomplete, "; "), err)
	}
	return err
}

func (r *run) inTurn(ctx context.Context) error {
	for _, s := range r.list() {
		r.enter(s)
		err := s.do(ctx)
		r.facts.Steps = append(r.facts.Steps, s.name)
		if errors.Is(err, errTooLate) {
			r.facts.Incomplete = append(r.facts.Incomplete, fmt.Sprintf("%s: %v", s.name, err))
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
	}
	r.enter(step{number: lastStep, name: "proof", title: "read everything back"})
	return r.prove(ctx)
}

func (r *run) enter(s step) {
	r.work.Enter(s.name)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step = s
}

// begin notes that a server is made to fail, and returns a function that notes that it serves again.
func (r *run) begin(server string, kind faultKind) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, fault{server: server, kind: kind, from: time.Now()})
	i := len(r.faults) - 1
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.faults[i].to = time.Now()
	}
}

func (r *run) names() []string {
	var names []string
	for _, s := range r.cluster.servers {
		names = append(names, s.Name)
	}
	return names
}

// settle waits until storage is settled with the encodings wanted, which the given servers report and no others.
func (r *run) settle(ctx context.Context, servers []string, wanted map[schema.GroupResource]agree.Encoding) error {
	return r.cluster.await(ctx, settleLimit, "storage is settled", func(w *world) string { return w.unsettled(servers, wanted) })
}

// start begins step 1: the objects are loaded through one server, so that no others follow each write meanwhile.
func (r *run) start(ctx context.Context) error {
	if err := r.cluster.begin(ctx); err != nil {
		return err
	}
	first := r.cluster.servers[:1]
	if err := r.cluster.start(ctx, first); err != nil {
		return err
	}
	if _, err := first[0].control.CRDs.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, workload.Definition(workload.CustomVersions[0]), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create CustomResourceDefinition %s: %w", workload.CRDName, err)
	}
	old := map[schema.GroupResource]agree.Encoding{
		workload.Policies: "admissionregistration.k8s.io/v1beta1",
		workload.Bindings: "admissionregistration.k8s.io/v1beta1",
		workload.Gadgets:  agree.Encoding(workload.CustomGroup + "/" + workload.CustomVersions[0]),
	}
	if err := r.settle(ctx, r.names()[:1], old); err != nil {
		return err
	}
	return r.served(ctx, first[0].control)
}

func (r *run) load(ctx context.Context) error {
	return workload.Load(ctx, r.cfg.Objects, endpoints(r.cluster.servers[:1]), r.work, &r.loaded)
}

// join ends step 1: the other servers start, and the writers.
func (r *run) join(ctx context.Context) error {
	started, others := time.Now(), r.cluster.servers[1:]
	if err := r.cluster.start(ctx, others); err != nil {
		return err
	}
	if err := r.cluster.await(ctx, settleLimit, "the servers agree", func(w *world) string { return w.disagreed(r.names()) }); err != nil {
		return err
	}
	took := seconds(time.Since(started))
	r.facts.Agreements = append(r.facts.Agreements, Agreement{After: fmt.Sprintf("the start of %d more servers", len(others)), ReportsSeconds: took, AgreementSeconds: took})
	for _, s := range others {
		if err := r.served(ctx, s.control); err != nil {
			return err
		}
	}
	r.stop = workload.StartWriters(ctx, r.cfg.Writers, endpoints(r.cluster.servers), r.work)
	return nil
}

// served waits until a server serves the custom resources in all versions.
func (r *run) served(ctx context.Context, at *workload.Endpoint) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for _, version := range workload.CustomVersions {
		err := process.Until(ctx, readyPause, func(ctx context.Context) error {
			return at.Customs[version].Get().Resource(workload.Gadgets.Resource).Param("limit", "1").MaxRetries(0).Do(ctx).Error()
		})
		if err != nil {
			return fmt.Errorf("%w %s: %s serves %s/%s: %w", errTooLate, startLimit, at.Server, workload.CRDName, version, err)
		}
	}
	return nil
}

// roll is step 2.
func (r *run) roll(ctx context.Context) error {
	for i, s := range r.cluster.servers {
		end := r.begin(s.Name, rolled)
		s.set(stopping)
		if err := s.Run().Terminate(ctx, stopLimit); err != nil {
			return err
		}
		started := time.Now()
		if err := r.restart(ctx, s); err != nil {
			return err
		}
		end()
		a := Agreement{After: fmt.Sprintf("%s's restart as %s", s.Name, newRelease), ReportsSeconds: seconds(time.Since(started)), AgreementSeconds: -1}
		if i == len(r.cluster.servers)-1 {
			if err := r.cluster.await(ctx, settleLimit, "the servers agree", func(w *world) string { return w.disagreed(r.names()) }); err != nil {
				return err
			}
			a.AgreementSeconds = seconds(time.Since(started))
		}
		r.facts.Agreements = append(r.facts.Agreements, a)
	}
	return r.settle(ctx, r.names(), map[schema.GroupResource]agree.Encoding{workload.Policies: workload.Expected[workload.Policies], workload.Bindings: workload.Expected[workload.Bindings]})
}

// restart starts a server that has ended, in the new release, and waits until it is ready.
func (r *run) restart(ctx context.Context, s *serverProcess) error {
	s.release = newRelease
	if err := r.cluster.launch(ctx, s); err != nil {
		return err
	}
	return r.cluster.awaitReady(ctx, s)
}

// flip is step 3.
func (r *run) flip(ctx context.Context) error {
	started := time.Now()
	if err := r.flipStorage(ctx); err != nil {
		return err
	}
	flipped := fmt.Sprintf("the change of %s", workload.CRDName)
	err := r.cluster.await(ctx, settleLimit, "the servers agree on "+string(workload.Expected[workload.Gadgets]), func(w *world) string {
		if gadgets := w.Of(workload.Gadgets); gadgets.Common() != workload.Expected[workload.Gadgets] {
			return "they report " + agree.Join(agree.Encodings(gadgets.Reports()))
		}
		return w.disagreed(r.names())
	})
	if err != nil {
		return err
	}
	took := seconds(time.Since(started))
	r.facts.Agreements = append(r.facts.Agreements, Agreement{After: flipped, ReportsSeconds: took, AgreementSeconds: took})
	return r.settle(ctx, r.names(), workload.Expected)
}

func (r *run) flipStorage(ctx context.Context) error {
	crds := r.cluster.servers[0].control.CRDs.ApiextensionsV1().CustomResourceDefinitions()
	var last error
	for range flipTries {
		crd, err := crds.Get(ctx, workload.CRDName, metav1.GetOptions{})
		if err == nil {
			crd.Spec = workload.Definition(workload.CustomVersions[1]).Spec
			_, err = crds.Update(ctx, crd, metav1.UpdateOptions{})
		}
		if err == nil {
			return nil
		}
		if last = err; !apierrors.IsConflict(err) && !apierrors.IsServiceUnavailable(err) {
			break
		}
		_ = load.Pause(ctx, readyPause)
	}
	return fmt.Errorf("change the storage version of %s: %w", workload.CRDName, last)
}

// kill is the first half of step 4.
func (r *run) kill(ctx context.Context) error {
	s := r.cluster.servers[1]
	id := r.id(s.Name)
	end := r.begin(s.Name, killed)
	s.set(dead)
	started := time.Now()
	if err := s.Kill(); err != nil {
		return err
	}
	if err := r.agreeWithout(ctx, s.Name, id); err != nil {
		return err
	}
	r.facts.AfterKill = time.Since(started)
	if err := r.restart(ctx, s); err != nil {
		return err
	}
	end()
	return r.cluster.await(ctx, settleLimit, "the servers agree", func(w *world) string { return w.disagreed(r.names()) })
}

// agreeWithout waits until a server is declared gone, none of its reports is left and the
// other servers agree.
func (r *run) agreeWithout(ctx context.Context, name string, id agree.ServerID) error {
	others := slices.DeleteFunc(r.names(), func(n string) bool { return n == name })
	return r.cluster.await(ctx, r.cfg.LeaseDuration+burialGrace, name+" is buried", func(w *world) string {
		if s := w.Servers[id]; s == nil || s.Gone == 0 {
			return "its identity Lease still exists"
		}
		if lack := w.reportedBy(id); lack != "" {
			return lack
		}
		return w.disagreed(others)
	})
}

// pause is the second half of step 4.
func (r *run) pause(ctx context.Context) error {
	s := r.cluster.servers[2]
	id := r.id(s.Name)
	h := workload.StartHeld(ctx, s.patient, r.work)
	defer func() { h.Stop(0) }()
	_ = load.Pause(ctx, holdTime)
	end := r.begin(s.Name, paused)
	s.set(stopped)
	p := s.Run()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if err := r.agreeWithout(ctx, s.Name, id); err != nil {
		return errors.Join(err, p.Signal(syscall.SIGCONT))
	}
	b := &burial{server: s.Name}
	r.cluster.watch.With(func(w *world) {
		b.declared = w.Servers[id].Gone
		w.expect(s.Name)
	})
	s.set(starting)
	started := time.Now()
	b.held = h.Resume()
	if err := p.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	r.facts.Burial = b
	defer func() { b.rejoined = r.rejoined(s.Name) }()
	err := r.cluster.await(ctx, settleLimit, "the servers agree", func(w *world) string { return w.disagreed(r.names()) })
	if err != nil {
		return err
	}
	r.facts.AfterResume = time.Since(started)
	if err := r.cluster.awaitReady(ctx, s); err != nil {
		return err
	}
	b.answers = h.Stop(answerLimit)
	end()
	return nil
}

// id returns the ID of a server's last registration.
func (r *run) id(name string) (id agree.ServerID) {
	r.cluster.watch.With(func(w *world) { id = w.ids[name] })
	return id
}

// rejoined returns where in etcd's history a server's present reports first appeared.
func (r *run) rejoined(name string) map[schema.GroupResource]int64 {
	revisions := map[schema.GroupResource]int64{}
	r.cluster.watch.With(func(w *world) {
		for gr, at := range w.Resources {
			if joined, ok := at.Joined[w.ids[name]]; ok {
				revisions[gr] = joined
			}
		}
	})
	return revisions
}

// prove is step 5: it stops the writers, reads everything back and counts in raw etcd.
func (r *run) prove(ctx context.Context) error {
	r.stop()
	if len(r.facts.Incomplete) == 0 {
		if err := r.settle(ctx, r.names(), workload.Expected); errors.Is(err, errTooLate) {
			r.facts.Incomplete = append(r.facts.Incomplete, "proof: "+err.Error())
		} else if err != nil {
			return err
		}
	}
	found, err := r.readBack(ctx)
	if err != nil {
		return err
	}
	if err := r.cluster.watch.CatchUp(ctx); err != nil {
		return err
	}
	// From here on nothing changes the world any more.
	r.cluster.watch.Stop()
	f := &r.facts
	if r.cluster.watch.With(func(w *world) { f.World = w }); f.World.broken != nil {
		return f.World.broken
	}
	if f.Census, err = migratestore.Count(ctx, migratestore.NewEtcd(r.cluster.Raw), root, nil); err != nil {
		return err
	}
	f.Servers = r.names()
	f.Acknowledged, _, _ = r.work.Counts()
	f.Lost, f.Foreign = r.work.Check(found)
	f.Failures, f.Stalls = r.work.Failures()
	r.mu.Lock()
	defer r.mu.Unlock()
	f.Faults = r.faults
	return nil
}

// readBack lists the demo's objects through the API, each resource from another server
// where there are several, and asks discovery for the storage versions' hashes.
func (r *run) readBack(ctx context.Context) (map[load.Key]load.Stored, error) {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	var living []*workload.Endpoint
	for _, s := range r.cluster.servers {
		if s.get() == ready {
			living = append(living, s.control)
		}
	}
	if len(living) == 0 {
		return nil, errors.New("no server is left to read from")
	}
	found := map[load.Key]load.Stored{}
	for i, gr := range workload.Shown {
		if err := living[i%len(living)].List(ctx, gr, workload.CustomVersions[0], found); err != nil {
			return nil, err
		}
	}
	var err error
	r.facts.Hashes, err = living[0].Hashes()
	return found, err
}
