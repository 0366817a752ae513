package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/controller/collect"
	"github.com/concord-dev/concord/controller/trigger"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/member"
	"github.com/concord-dev/concord/migrate/claim"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/sim/etcd"
	"github.com/concord-dev/concord/sim/invariant"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/registry"
	"github.com/concord-dev/concord/sim/script"
)

const renewInterval = 5 * time.Second

// Process is one run of an API server, from its start to its end.
type Process struct {
	w                *World
	invariant.Server // of the fields below a stock one has tasks only
	// seal is the seal that it encrypts with, as the configuration that it has loaded says.
	seal   agree.Seal
	clock  processClock
	random *rand.Rand

	member  *member.Member
	collect *collect.Collector
	trigger *trigger.Controller
	migrate *claim.Controller
	replica *replica // nil in a cluster of its own

	gone    bool // it has ended, one way or the other
	paused  bool
	cut     bool // it does not reach etcd
	leads   bool // it believes so
	leaving bool // it was asked to stop
	// resigned says of a stock server that it has deleted its Lease, and takes writes until servesUntil.
	resigned    bool
	servesUntil time.Duration

	tasks [script.Roles]*Task
	// cursors say how much of its kind's events a watch has delivered; negative: nothing,
	// not even the list that it begins with.
	cursors [script.Streams]int
	// known are the definitions as the member last saw them, by name.
	known map[string]*apiextensionsv1.CustomResourceDefinition
	// ended is the last definition whose deletion the member saw.
	ended types.UID
	// handler is the definition as the custom resource handler last saw it.
	handler *apiextensionsv1.CustomResourceDefinition

	// By the world's time, as timers are that no clock's jump disturbs. reportAt is
	// negative for never.
	renewAt, retryAt, collectAt, reportAt time.Duration
	idle                                  bool // nothing has happened since a Step found nothing to report
}

// start makes a process.
func (w *World) start(slot int, r object.Release, silent, stock bool) {
	p := &Process{w: w, Server: invariant.Server{Slot: slot, Run: w.runs[slot], Release: r, Silent: silent, Stock: stock, Host: w.guest != nil}, known: map[string]*apiextensionsv1.CustomResourceDefinition{}}
	w.runs[slot]++
	p.clock.p = p
	p.clock.set(epoch.Add(w.now), 1)
	stream := uint64(slot)
	if w.guest != nil {
		stream += script.MaxSlots // no ID of a replica's
	}
	p.random = rand.New(rand.NewPCG(stream, uint64(p.Run)))
	for i := range p.cursors {
		p.cursors[i] = -1
	}
	client := apiClient{p: p}
	p.collect = collect.New(collect.Config{Client: client, Interval: invariant.CollectInterval, Workers: 1, Clock: &p.clock})
	config := member.Config{
		Client:               client,
		Bury:                 p.collect.Bury,
		Versions:             member.Versions{Binary: r.Emulates, Emulation: r.Emulates, MinCompatibility: r.Emulates},
		LeaseDuration:        invariant.LeaseDuration,
		RenewInterval:        renewInterval,
		WaitLimit:            -1,
		Workers:              1,
		CustomResourcesKnown: func() bool { return p.cursors[script.SeeDefinitions] >= 0 },
		Rebuild:              func(context.Context, string, schema.GroupResource, string) { p.rebuild() },
		Clock:                &p.clock,
		Random:               p.random,
	}
	if silent {
		config.Erase = p.erase
	}
	var err error
	p.member, err = member.New(config)
	w.must(err)
	p.load(w.seals[slot])
	if !silent {
		w.must(p.member.SetBuiltins(p.builtins()))
	}
	if w.host != nil {
		p.newReplica()
	}
	triggers := trigger.Config{
		Client: client, Kinds: p, Instance: p.String(), Clock: &p.clock, Workers: 1,
		Settle: invariant.StockLingers, Elapsed: func() time.Duration { return w.now },
	}
	if w.config.Census > 0 {
		triggers.Census = p.census
	}
	p.trigger = trigger.New(triggers)
	claims := claim.Config{Client: client, ID: p.member.ID, Rewriter: rewriter{p}, Clock: &p.clock, Workers: 1, ProgressPeriod: 100 * time.Millisecond}
	if w.guest != nil {
		claims.API, claims.Elsewhere = through{p}, elsewhere
	}
	p.migrate = claim.New(claims)
	w.slots[slot] = p
}

// builtins are the resources that the server reports from its start: things and, in some worlds, so many others that
// the server works with lists.
func (p *Process) builtins() []member.Resource {
	if p.w.guest != nil {
		return nil
	}
	stores := object.Things.Encoding(p.Release.Stores)
	decodes := []string{string(object.Things.Encoding("v1")), string(object.Things.Encoding("v2")), string(object.Things.Encoding("v3"))}
	rs := []member.Resource{{GroupResource: object.Things.GroupResource, Encoding: stores, Decodable: decodes, Served: decodes}}
	for i := range p.w.config.More {
		gr := schema.GroupResource{Group: object.Things.GroupResource.Group, Resource: fmt.Sprintf("more%d", i)}
		rs = append(rs, member.Resource{GroupResource: gr, Encoding: stores, Decodable: decodes, Served: decodes})
	}
	return rs
}

// load has the process encrypt with another key, as its next process in the slot will.
func (p *Process) load(seal agree.Seal) {
	p.seal, p.w.seals[p.Slot] = seal, seal
	p.member.SetEncryption(member.Encryption{Config: string(seal), Seal: func(schema.GroupResource) agree.Seal { return seal }})
}

// census counts the stored objects of a resource, for trigger.Config.Census.
func (p *Process) census(ctx context.Context, gr schema.GroupResource, target evolve.Target) ([]agree.Encoding, error) {
	i := slices.IndexFunc(object.All[:], func(r *object.Resource) bool { return r.GroupResource == gr })
	if i < 0 || p.w.guest != nil {
		return nil, trigger.ErrNotStored
	}
	stored, err := p.kv().Get(ctx, object.All[i].Prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	found := sets.New[agree.Encoding]()
	for _, kv := range stored.Kvs {
		encoding, _, _ := migratestore.Envelope(kv.Value)
		found.Insert(encoding)
	}
	return sets.List(found.Delete(target.Encoding)), nil
}

// sealNamed returns the seal of a key as scripts name it, "-" for none.
func sealNamed(key string) (seal agree.Seal, ok bool) {
	switch key {
	case "-":
		return "", true
	case "a", "b":
		return agree.Seal("sim:v1:" + key + ":0"), true
	default:
		return "", false
	}
}

// must stops a world that cannot be built.
func (w *World) must(err error) {
	if err != nil {
		panic(err)
	}
}

// rebuild makes the handler of the custom resource read the definition again.
func (p *Process) rebuild() { p.w.relist(p, script.SeeHandler) }

// Kind implements trigger.Kinds.
func (p *Process) Kind(_ context.Context, gr schema.GroupResource) (string, error) {
	if gr == object.Things.GroupResource {
		return object.Things.Kind, nil
	}
	if gr == object.Widgets.GroupResource && p.handler != nil {
		return object.Widgets.Kind, nil
	}
	return "", &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: gr.Group, Kind: gr.Resource}}
}

// kv is the process's view of etcd.
func (p *Process) kv() clientv3.KV { return etcd.KV{Doer: etcdDoer{p}} }

// erase is done by a server whose gate is off when it has a Lease: it deletes all
// StorageVersions, with one request.
func (p *Process) erase(ctx context.Context) error {
	r := &request{verb: "delete", kind: registry.Kinds, key: strings.TrimPrefix(registry.StorageVersions.Prefix(), "/registry/")}
	r.apply = func(w *World, r *request) error {
		_, err := w.store.Delete(context.Background(), registry.StorageVersions.Prefix(), clientv3.WithPrefix())
		w.checker.Erased(r.ID)
		return err
	}
	return p.call(ctx, r)
}

// end kills the process. Requests that are under way may still arrive.
func (p *Process) end() {
	p.gone = true
	for _, t := range p.tasks {
		p.abandon(t)
	}
}

// abandon ends a task without its knowing.
func (p *Process) abandon(t *Task) {
	if t == nil || t.ended {
		return
	}
	if t.req != nil && !t.req.applied && !t.req.reads() {
		p.w.late = append(p.w.late, t.req)
	}
	t.ended = true
	p.tasks[t.role] = nil
	if t.role == script.Migrating {
		defer func() {
			for _, put := range p.tasks[script.Putting1:] {
				p.abandon(put)
			}
		}()
	}
	before := p.w.current
	p.w.current = t
	p.w.coroutines.Unwind(t.on)
	p.w.current = before
}

// begin starts a task, if the process would now, and runs it to its first call.
func (p *Process) begin(r script.Role, what string) bool {
	if !p.startable(r) {
		return false
	}
	body := p.body(r, what)
	if body == nil {
		return false
	}
	p.idle = p.idle && r != script.Leasing
	p.w.resume(p.spawn(r, what, body))
	return true
}

// startable says whether the process would start a task of this role now.
func (p *Process) startable(r script.Role) bool {
	if p.gone || p.paused || p.tasks[r] != nil || r >= script.Putting1 || (p.Silent || p.Stock) && (r == script.Collecting || r == script.Triggering || r == script.Migrating) {
		return false
	}
	now := p.w.now
	switch r {
	case script.Leasing:
		if p.leaving { // a server waits for its writes, but not for ever; a replica and a stock server do not
			return p.Stock || p.replica != nil || p.tasks[script.Writing1] == nil && p.tasks[script.Writing2] == nil
		}
		return now >= p.renewAt || !p.Stock && p.member.ID() == "" && now >= p.retryAt
	case script.Reporting:
		return !p.leaving && p.member.ID() != "" && (!p.idle || p.reportAt >= 0 && now >= p.reportAt)
	case script.Collecting:
		return !p.leaving && now >= p.collectAt
	case script.Triggering:
		return !p.leaving && p.leads && p.replica == nil
	case script.Migrating:
		return !p.leaving && p.replica == nil
	case script.Hosting, script.Sweeping, script.HostLeasing, script.HostReporting, script.Patching:
		return p.replica != nil && p.hosts(r)
	default:
		return (!p.leaving || p.resigned && now < p.servesUntil) && p.w.guest == nil
	}
}

func (p *Process) body(r script.Role, what string) func() error {
	ctx := context.Background()
	switch r {
	case script.Leasing:
		switch {
		case p.Stock && p.leaving:
			return func() error { return p.resign(ctx) }
		case p.Stock:
			return func() error { return p.heartbeat(ctx) }
		case p.leaving:
			return func() error { return p.depart(ctx) }
		case p.member.ID() == "":
			return func() error { return p.member.Register(ctx) }
		}
		return func() error { return p.member.Renew(ctx) }
	case script.Reporting:
		return func() error {
			wait, err := p.member.Step(ctx)
			p.reportAt = -1
			if wait >= 0 {
				p.reportAt = p.w.now + wait + time.Microsecond // the clock's resolution
			}
			return err
		}
	case script.Collecting:
		return func() error { return p.collect.Step(ctx, p.leads) }
	case script.Triggering:
		gr, ok := object.Named(what)
		if !ok {
			return nil
		}
		return func() error {
			for {
				result, err := p.trigger.Step(ctx, gr.GroupResource)
				if err == nil && !result.Again && result.Count == nil && gr.Custom {
					p.w.checker.Kept(p.tasks[script.Triggering].began)
				}
				if err != nil || result.Count == nil {
					return err
				}
				if err := p.trigger.Count(ctx, gr.GroupResource, *result.Count); err != nil {
					return err
				}
			}
		}
	case script.Migrating:
		name, ok := p.w.migration(what)
		if !ok {
			return nil
		}
		return func() error { _, err := p.migrate.Step(ctx, name); return err }
	case script.Hosting, script.Sweeping, script.HostLeasing, script.HostReporting:
		return p.hostBody(ctx, r)
	default:
		return p.write(what)
	}
}

// finished is called when a task has ended by itself.
func (p *Process) finished(t *Task) {
	now := p.w.now
	switch t.role {
	case script.Leasing:
		if p.leaving {
			if t.failed == nil && (!p.Stock || p.resigned) {
				p.end()
			}
			return
		}
		p.renewAt = now + renewInterval
		if p.Stock {
			p.renewAt = now + stockInterval
		}
		if t.failed != nil {
			p.retryAt = now + 100*time.Millisecond
			p.renewAt = p.retryAt
		}
		p.idle = false
	case script.Collecting:
		p.collectAt = now + invariant.CollectInterval
	case script.Reporting:
		p.idle = t.calls == 0
	case script.Hosting, script.Sweeping, script.HostLeasing, script.HostReporting, script.Patching:
		p.replica.finished(t, now)
	default:
		p.idle = false
	}
	if p.w.trace != nil {
		p.w.tracef("   %s/%s ended: %s", p, t.role, outcome(t.failed))
	}
}

func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

// departing is the context of Depart. Where Depart would wait for either the end of the
// reports under way or its own, the task waits for the former.
type departing struct {
	context.Context
	p *Process
}

// Done implements context.Context.
func (d departing) Done() <-chan struct{} {
	d.p.await(func() bool { return d.p.tasks[script.Reporting] == nil && d.p.tasks[script.HostReporting] == nil })
	return nil
}

// id is the ID that the process is registered with, empty if it is not.
func (p *Process) id() agree.ServerID {
	if p.Stock {
		return invariant.StockID(p.Slot)
	}
	return p.member.ID()
}

// errNotServed is a client's 404.
var errNotServed = errors.New("the resource is not served")
