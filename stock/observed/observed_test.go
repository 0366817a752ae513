package observed

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

var (
	start    = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	widgets  = schema.GroupResource{Group: "example.com", Resource: "widgets"}
	cronjobs = schema.GroupResource{Group: "batch", Resource: "cronjobs"}
)

const settle = time.Minute

func hashOf(gv, kind string) string {
	parsed, err := schema.ParseGroupVersion(gv)
	if err != nil {
		panic(err)
	}
	return migrationv1alpha1.StorageVersionHash(parsed.WithKind(kind))
}

// shows is the answer of a kube-apiserver that stores the resource in this version.
func shows(gr schema.GroupResource, gv string) Answer {
	kind := map[schema.GroupResource]string{widgets: "Widget", cronjobs: "CronJob"}[gr]
	return Answer{Release: "1.37", Shown: map[schema.GroupResource]Shown{gr: {Hash: hashOf(gv, kind), Kind: kind, Served: []string{gv}}}}
}

// lacking is an answer in which one group/version is missing.
func lacking(a Answer, group, version string) Answer {
	gv := schema.GroupVersion{Group: group, Version: version}
	a.Unanswered = map[schema.GroupVersion]string{gv: "does not answer for " + gv.String()}
	return a
}

func replica(name, holder string) Replica {
	return Replica{Process: Process{Lease: agree.ServerID(name), Holder: holder}, Address: "127.0.0.1:1"}
}

func versions(kind string) []schema.GroupVersion {
	return map[string][]schema.GroupVersion{
		"CronJob": {{Group: "batch", Version: "v1"}, {Group: "batch", Version: "v1beta1"}, {Group: "batch", Version: "v2alpha1"}},
		"Event":   {{Group: "events.k8s.io", Version: "v1"}, {Version: "v1"}},
	}[kind]
}

// round is a round in which the kube-apiservers do not change, and these are their answers.
func round(after time.Duration, answers map[string]Answer) Round {
	r := Round{Began: start.Add(after), Asked: start.Add(after), Answers: map[Process]Answer{}, Versions: versions}
	for name, a := range answers {
		x := replica(name, "1")
		r.Before, r.After = append(r.Before, x), append(r.After, x)
		r.Answers[x.Process] = a
	}
	r.Before, r.After = Alive(r.Before, start), Alive(r.After, start)
	return r
}

// defined adds a definition of widgets to a round, and edits it.
func defined(r Round, stores string, edit ...func(*Definition)) Round {
	d := Definition{Stores: agree.Encoding(stores), Versions: []schema.GroupVersion{{Group: "example.com", Version: "v1"}, {Group: "example.com", Version: "v2"}}}
	for _, e := range edit {
		e(&d)
	}
	r.Defined = map[schema.GroupResource]Definition{widgets: d}
	return r
}

func TestAlive(t *testing.T) {
	lasting := func(name string, renewed time.Time) Replica {
		r := replica(name, "1")
		r.Renewed, r.Lasts = renewed, time.Hour
		return r
	}
	got := Alive([]Replica{lasting("b", start.Add(-time.Minute)), lasting("gone", start.Add(-61*time.Minute)), replica("untold", "1"), lasting("a", start.Add(time.Minute))}, start)
	var names []string
	for _, r := range got {
		names = append(names, string(r.Lease))
	}
	if want := []string{"a", "b", "untold"}; !slices.Equal(names, want) {
		t.Errorf("alive are %v, want %v", names, want)
	}
}

// TestApart: kube-apiservers that advertise the same address cannot be asked one by one. That is so whichever of them
// renewed its Lease last, since one that did not for a while may be paused, and clocks differ. Expired Leases do not
// count.
func TestApart(t *testing.T) {
	const vip = "10.0.0.9:6443"
	at := func(name, address string, renewed int) Replica { // renewed is minutes ago
		return Replica{Process: Process{Lease: agree.ServerID(name)}, Address: address, Renewed: start.Add(-time.Duration(renewed) * time.Minute), Lasts: time.Hour}
	}
	untold := Replica{Process: Process{Lease: "untold"}, Address: vip}
	for name, tc := range map[string]struct {
		replicas []Replica
		apart    []string // the kube-apiservers that keep their address
	}{
		"each has its own": {[]Replica{at("a", "10.0.0.1:6443", 0), at("b", "10.0.0.2:6443", 0)}, []string{"a", "b"}},
		"all share one":    {[]Replica{at("a", vip, 0), at("b", vip, 0), at("c", vip, 0)}, nil},
		"two of them":      {[]Replica{at("a", vip, 0), at("b", vip, 0), at("c", "10.0.0.3:6443", 0)}, []string{"c"}},
		"one has crashed, is paused or has another clock":  {[]Replica{at("a", vip, 50), at("b", vip, 0)}, nil},
		"one renewed in the future, by these clocks":       {[]Replica{at("a", vip, 0), at("b", vip, -5)}, nil},
		"one has crashed, and its Lease has run out since": {[]Replica{at("a", vip, 61), at("b", vip, 0)}, []string{"b"}},
		"times are not known":                              {[]Replica{at("a", vip, 0), untold}, nil},
		"no addresses are known":                           {[]Replica{at("a", "", 0), at("b", "", 0)}, nil},
	} {
		var apart []string
		for _, r := range Apart(Alive(tc.replicas, start)) {
			if r.Address != "" {
				apart = append(apart, string(r.Lease))
			}
			if shares := strings.HasPrefix(r.Nowhere, "shares its address 10.0.0.9:6443 with "); shares == (r.Address != "") && name != "no addresses are known" {
				t.Errorf("%s: %+v", name, r)
			}
		}
		if !slices.Equal(apart, tc.apart) {
			t.Errorf("%s: %v keep their address, want %v", name, apart, tc.apart)
		}
	}
}

func TestInvert(t *testing.T) {
	for _, tc := range []struct {
		name, hash, kind string
		want             agree.Encoding
		ok               bool
	}{
		{"a version", hashOf("batch/v1beta1", "CronJob"), "CronJob", "batch/v1beta1", true},
		{"of the core group, seen from another", hashOf("v1", "Event"), "Event", "v1", true},
		{"none that is known", hashOf("batch/v3", "CronJob"), "CronJob", "", false},
		{"another kind's", hashOf("batch/v1", "Job"), "CronJob", "", false},
		{"no hash", "", "CronJob", "", false},
	} {
		if got, ok := Invert(tc.hash, tc.kind, versions(tc.kind)); got != tc.want || ok != tc.ok {
			t.Errorf("%s: %q, %v; want %q, %v", tc.name, got, ok, tc.want, tc.ok)
		}
	}
	// The hash in Kubernetes' own test of discovery (apps/v1 Deployment in kube-apiserver).
	if got := hashOf("apps/v1", "Deployment"); got != "8aSe+NMegvE=" {
		t.Errorf("apps/v1 Deployment has the hash %s", got)
	}
}

func TestJudge(t *testing.T) {
	v1, v2 := "example.com/v1", "example.com/v2"
	for _, tc := range []struct {
		name  string
		round Round
		gr    schema.GroupResource
		want  agree.Encoding
		why   string
	}{
		{"all write one version", defined(round(0, map[string]Answer{"a": shows(widgets, v2), "b": shows(widgets, v2)}), v2), widgets, "example.com/v2", ""},
		{"one writes another", defined(round(0, map[string]Answer{"a": shows(widgets, v1), "b": shows(widgets, v2)}), v2), widgets, "",
			"kube-apiservers store different versions: example.com/v1: a; example.com/v2: b"},
		{"all lag behind the definition", defined(round(0, map[string]Answer{"a": shows(widgets, v1)}), v2), widgets, "", "the CustomResourceDefinition says example.com/v2"},
		{"one does not serve a custom resource", defined(round(0, map[string]Answer{"a": shows(widgets, v1), "b": {Release: "1.37"}}), v1), widgets, "", "b does not serve it"},
		{"one does not know a built-in resource", round(0, map[string]Answer{"a": shows(cronjobs, "batch/v1"), "b": {Release: "1.36"}}), cronjobs, "", "b is of another release or --runtime-config, and does not serve it, as others do"},
		{"one does not answer", round(0, map[string]Answer{"a": shows(cronjobs, "batch/v1"), "b": {Failed: "does not answer: timeout"}}), cronjobs, "", "b does not answer: timeout"},
		{"one does not answer for a version", defined(round(0, map[string]Answer{"a": shows(widgets, v2), "b": lacking(shows(widgets, v2), widgets.Group, "v1")}), v2), widgets, "", "b does not answer for example.com/v1"},
		{"one does not answer for a version that the definition lacks", defined(round(0, map[string]Answer{"a": shows(widgets, v2), "b": lacking(shows(widgets, v2), widgets.Group, "v1beta1")}), v2), widgets, "example.com/v2", ""},
		{"one does not answer for a version of a built-in resource", round(0, map[string]Answer{"a": lacking(shows(cronjobs, "batch/v1"), "batch", "v2alpha1")}), cronjobs, "", "a does not answer for batch/v2alpha1"},
		{"one does not answer for another group", round(0, map[string]Answer{"a": lacking(shows(cronjobs, "batch/v1"), "apps", "v1")}), cronjobs, "batch/v1", ""},
		{"one writes what nobody knows", round(0, map[string]Answer{"a": shows(cronjobs, "batch/v9")}), cronjobs, "", "of none that is known"},
		{"nobody serves it", round(0, map[string]Answer{"a": {Release: "1.37"}}), cronjobs, "", "no kube-apiserver shows the resource"},
	} {
		got := tc.round.Judge(tc.gr)
		if got.Encoding != tc.want || !strings.Contains(got.Why, tc.why) || (got.Why == "") != (tc.want != "") {
			t.Errorf("%s: %q, %q; want %q, %q", tc.name, got.Encoding, got.Why, tc.want, tc.why)
		}
	}
}

// TestJudgeRestarted: a kube-apiserver that was restarted during a round, or has come since, does not count as asked.
func TestJudgeRestarted(t *testing.T) {
	for name, change := range map[string]func(r *Round){
		"restarted": func(r *Round) { r.After[0] = replica("a", "2") },
		"come":      func(r *Round) { r.After = append(r.After, replica("b", "1")) },
		"restarted and answered as before": func(r *Round) {
			r.After[0] = replica("a", "2")
			r.Answers[r.After[0].Process] = r.Answers[r.Before[0].Process]
		},
	} {
		r := round(0, map[string]Answer{"a": shows(cronjobs, "batch/v1")})
		change(&r)
		if got := r.Judge(cronjobs); got.Encoding != "" || got.Whole || !strings.Contains(got.Why, "since it was asked") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// remembered runs rounds through a Memory, and returns what it knows of a resource afterwards.
func remembered(t *testing.T, m *Memory, gr schema.GroupResource, rounds ...Round) Resource {
	t.Helper()
	for _, r := range rounds {
		m.Observe(r)
	}
	got, ok := m.Of(gr)
	if !ok {
		t.Fatalf("%s is not remembered", gr)
	}
	return got
}

// TestStoredNotServed: kube-apiservers do not show a resource whose definition does not serve the version that it
// stores. The resource is known all the same, and the reason names the definition and no kube-apiserver.
func TestStoredNotServed(t *testing.T) {
	const reason = "the definition stores example.com/v2, which it does not serve: serve it (served: true), or store another version"
	hidden := func(after time.Duration, answers map[string]Answer) Round {
		return defined(round(after, answers), "example.com/v2", func(d *Definition) { d.NotServed = true })
	}
	m := NewMemory(Config{Settle: settle})
	got := remembered(t, m, widgets, hidden(0, map[string]Answer{"a": {Release: "1.37"}, "b": {Release: "1.37"}}))
	if got.Common != "" || got.Why != reason || got.History.Last["example.com/v2"] != got.History.Epoch || len(got.History.Last) != 1 {
		t.Errorf("%+v", got)
	}
	got = remembered(t, m, widgets, hidden(time.Second, map[string]Answer{"a": {Release: "1.37"}, "b": {Failed: "does not answer: timeout"}}))
	if got.Common != "" || got.Why != reason+"; b does not answer: timeout" {
		t.Errorf("beside one that does not answer: %+v", got)
	}
	served := func(after time.Duration) Round {
		return defined(round(after, map[string]Answer{"a": shows(widgets, "example.com/v2")}), "example.com/v2")
	}
	got = remembered(t, m, widgets, hidden(settle, map[string]Answer{"a": {Release: "1.37"}}), served(settle+time.Second))
	if at, ok := SettlesAt(got.Why, start); !ok || !at.Equal(start.Add(2*settle+time.Second)) {
		t.Errorf("as soon as it is served: %+v", got)
	}
	if got = remembered(t, m, widgets, served(2*settle+time.Second)); got.Common != "example.com/v2" {
		t.Errorf("a while later: %+v", got)
	}
}

// TestSettlesAt: the time that a reason names is of the day that is closest.
func TestSettlesAt(t *testing.T) {
	midnight := time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC)
	for _, after := range []time.Duration{-time.Hour, -time.Second, 0, time.Hour} {
		want := midnight.Add(after)
		why := "all kube-apiservers store example.com/v1: until " + want.Format(time.TimeOnly) + " UTC requests"
		for _, near := range []time.Time{want.Add(-11 * time.Hour), want, want.Add(11 * time.Hour).In(time.FixedZone("", 3600))} {
			if got, ok := SettlesAt(why, near); !ok || !got.Equal(want) {
				t.Errorf("%s near %s: %s, %v", why, near, got, ok)
			}
		}
	}
	if at, ok := SettlesAt("10.0.0.2:6443 does not answer: until 10:00:00 UTC", midnight); ok {
		t.Errorf("of another reason: %s", at)
	}
}

func TestAgreementSettles(t *testing.T) {
	m := NewMemory(Config{Settle: settle})
	v1, v2 := shows(widgets, "example.com/v1"), shows(widgets, "example.com/v2")
	at := func(after time.Duration, answer Answer, stores string) Round {
		return defined(round(after, map[string]Answer{"a": answer}), stores)
	}
	if got := remembered(t, m, widgets, at(0, v1, "example.com/v1")); got.Common != "" || !strings.Contains(got.Why, "12:01:00") {
		t.Errorf("at first: %+v", got)
	}
	if got := remembered(t, m, widgets, at(settle, v1, "example.com/v1")); got.Common != "example.com/v1" || got.Why != "" || got.History.Epoch != 1 {
		t.Errorf("after a minute: %+v", got)
	}
	// The definition alone makes v2 a version that may be written.
	if got := remembered(t, m, widgets, at(2*settle, v1, "example.com/v2")); got.Common != "" || !slices.Contains(got.History.Reported(), "example.com/v2") {
		t.Errorf("after the flip: %+v", got)
	}
	if got := remembered(t, m, widgets, at(2*settle+time.Second, v2, "example.com/v2")); got.Common != "" || got.History.Epoch != 3 {
		t.Errorf("when all show it: %+v", got)
	}
	away := defined(round(2*settle+2*time.Second, map[string]Answer{"a": {Failed: "does not answer"}}), "example.com/v2")
	if got := remembered(t, m, widgets, away); got.Common != "" || len(got.Reports) != 1 || got.Reports[0].Encoding != "example.com/v2" || got.History.Epoch != 3 {
		t.Errorf("while one is away: %+v", got)
	}
	if got := remembered(t, m, widgets, at(3*settle+time.Second, v2, "example.com/v2")); got.Common != "" {
		t.Errorf("one that was away may have had requests under way: %+v", got)
	}
	if got := remembered(t, m, widgets, at(4*settle+time.Second, v2, "example.com/v2")); got.Common != "example.com/v2" || got.History.Epoch != 3 {
		t.Errorf("at last: %+v", got)
	}
}

// TestSilence: all had agreed and everything was migrated; then a kube-apiserver does not answer any more. It may be
// paused in the middle of writing an old version. So, as long as storedVersions have that version, a new epoch
// begins, in which everything is migrated and proven once more.
func TestSilence(t *testing.T) {
	const v1, v2 = "example.com/v1", "example.com/v2"
	both := map[string]Answer{"a": shows(widgets, v2), "b": shows(widgets, v2)}
	silent := map[string]Answer{"a": shows(widgets, v2), "b": {Failed: "does not answer"}}
	partly := map[string]Answer{"a": shows(widgets, v2), "b": lacking(shows(widgets, v2), widgets.Group, "v2")}
	other := map[string]Answer{"a": shows(widgets, v2), "b": lacking(shows(widgets, v2), "other.com", "v2")}
	unserved := map[string]Answer{"a": {Release: "1.37"}, "b": shows(widgets, v2)}
	come := map[string]Answer{"a": shows(widgets, v2), "b": shows(widgets, v2), "c": {Failed: "does not answer"}}
	for _, tc := range []struct {
		name   string
		stored []agree.Encoding
		rounds []map[string]Answer // the time between two rounds is settle
		since  []agree.Encoding    // the encodings reported since the proof
		epoch  int64
	}{
		{"all answer", []agree.Encoding{v1, v2}, []map[string]Answer{both}, nil, 1},
		{"one is silent", []agree.Encoding{v1, v2}, []map[string]Answer{silent}, []agree.Encoding{v1, v2}, 3},
		{"and still is", []agree.Encoding{v1, v2}, []map[string]Answer{silent, silent, silent}, []agree.Encoding{v1, v2}, 3},
		{"and answers again", []agree.Encoding{v1, v2}, []map[string]Answer{silent, both, both}, []agree.Encoding{v1, v2}, 3},
		{"and is silent before all had agreed again", []agree.Encoding{v1, v2}, []map[string]Answer{silent, both, silent}, []agree.Encoding{v1, v2}, 3},
		{"and is silent twice", []agree.Encoding{v1, v2}, []map[string]Answer{silent, both, both, silent}, []agree.Encoding{v1, v2}, 5},
		{"another one comes, and does not answer", []agree.Encoding{v1, v2}, []map[string]Answer{come, both, both}, nil, 1},
		{"one does not answer for its version", []agree.Encoding{v1, v2}, []map[string]Answer{partly}, []agree.Encoding{v1, v2}, 3},
		{"one does not answer for another group", []agree.Encoding{v1, v2}, []map[string]Answer{other}, nil, 1},
		{"it is silent after the pruning", []agree.Encoding{v2}, []map[string]Answer{silent, both, both}, nil, 1},
		// It may be just as late if it is silent while all settle again for another reason.
		{"it is silent while all settle", []agree.Encoding{v1, v2}, []map[string]Answer{unserved, both, silent}, []agree.Encoding{v1, v2}, 3},
	} {
		m := NewMemory(Config{Settle: settle})
		at := func(i int, answers map[string]Answer) Round {
			return defined(round(time.Duration(i)*settle, answers), v2, func(d *Definition) { d.Stored = tc.stored })
		}
		proven := remembered(t, m, widgets, at(0, both), at(1, both))
		if proven.Common != v2 {
			t.Fatalf("%s: nothing is agreed on: %+v", tc.name, proven)
		}
		for i, answers := range tc.rounds {
			m.Observe(at(2+i, answers))
		}
		got, _ := m.Of(widgets)
		if since := got.History.Since(proven.History.Epoch); !slices.Equal(since, tc.since) || got.History.Epoch != tc.epoch || !slices.Equal(got.History.Reported(), []agree.Encoding{v2}) {
			t.Errorf("%s: since then there are %v: %s; want %v, epoch %d", tc.name, since, got.History, tc.since, tc.epoch)
		}
	}
}

// TestSilentAtFirst: a kube-apiserver that did not answer in the first rounds after the start, before any showed the
// resource, counts as silent for the resource.
func TestSilentAtFirst(t *testing.T) {
	const v1, v2 = agree.Encoding("example.com/v1"), agree.Encoding("example.com/v2")
	silent := map[string]Answer{"a": {Failed: "does not answer"}, "b": {Failed: "does not answer"}}
	both := map[string]Answer{"a": shows(widgets, string(v2)), "b": shows(widgets, string(v2))}
	for _, tc := range []struct {
		name   string
		stored []agree.Encoding
		first  map[string]Answer
		agreed agree.Encoding
		since  []agree.Encoding
	}{
		{"all answer", []agree.Encoding{v1, v2}, both, v2, nil},
		{"none answers", []agree.Encoding{v1, v2}, silent, "", []agree.Encoding{v1, v2}},
		{"none answers after the pruning", []agree.Encoding{v2}, silent, "", nil},
	} {
		state := evolve.State{Of: evolve.Ref{UID: Begun{At: start.Add(-time.Hour), Release: "1.37"}.UID(), Epoch: 7}, Current: v2, Stored: tc.stored,
			Heartbeat: start.Add(-time.Minute), Definition: "u/3"}
		m := NewMemory(Config{Settle: settle, States: map[schema.GroupResource]evolve.State{widgets: state}})
		at := func(after time.Duration, answers map[string]Answer) Round {
			return defined(round(after, answers), string(v2), func(d *Definition) { d.Stored, d.Revision = tc.stored, "u/3" })
		}
		got := remembered(t, m, widgets, at(0, tc.first), at(time.Second, both))
		if since := got.History.Since(7); got.UID != state.Of.UID || got.Common != tc.agreed || !slices.Equal(since, tc.since) {
			t.Errorf("%s: %+v; since then there are %v", tc.name, got, since)
		}
		epoch := got.History.Epoch
		if got = remembered(t, m, widgets, at(settle+time.Second, both)); got.Common != v2 || got.History.Epoch != epoch {
			t.Errorf("%s, when it has settled: %+v", tc.name, got)
		}
	}
}

// TestNobodyAsked: after a time without rounds, an agreement has to settle again, whether it had settled or not. If
// all had agreed before, a kube-apiserver may have been paused in the middle of writing an old version, and have gone
// on.
func TestNobodyAsked(t *testing.T) {
	const v1, v2 = "example.com/v1", "example.com/v2"
	for _, tc := range []struct {
		name   string
		stored []agree.Encoding
		before time.Duration // from the first round to the last one before the gap
		gap    time.Duration
		agreed agree.Encoding // the agreement after the gap
		since  []agree.Encoding
	}{
		{"rounds as they should be", []agree.Encoding{v1, v2}, settle, settle, v2, nil},
		{"a gap while it settles", []agree.Encoding{v1, v2}, settle / 2, settle + time.Second, "", []agree.Encoding{v1, v2}},
		{"a gap after it has settled", []agree.Encoding{v1, v2}, settle, settle + time.Second, "", []agree.Encoding{v1, v2}},
		{"a gap after the pruning", []agree.Encoding{v2}, settle, settle + time.Second, "", nil},
	} {
		m := NewMemory(Config{Settle: settle, Gap: settle})
		at := func(after time.Duration) Round {
			return defined(round(after, map[string]Answer{"a": shows(widgets, v2)}), v2, func(d *Definition) { d.Stored = tc.stored })
		}
		was := remembered(t, m, widgets, at(0), at(tc.before))
		got := remembered(t, m, widgets, at(tc.before+tc.gap))
		if since := got.History.Since(was.History.Epoch); got.Common != tc.agreed || got.Common == "" && !Settling(got.Why) || !slices.Equal(since, tc.since) {
			t.Errorf("%s: since then there are %v: %+v", tc.name, since, got)
		}
		if got = remembered(t, m, widgets, at(tc.before+tc.gap+settle)); got.Common != v2 {
			t.Errorf("%s, when it has settled again: %+v", tc.name, got)
		}
	}
}

// TestFlippedBetweenRounds: a definition that was changed and changed back between two rounds makes all settle again,
// since a request that began meanwhile may still write the other version.
func TestFlippedBetweenRounds(t *testing.T) {
	m := NewMemory(Config{Settle: settle})
	r := func(after time.Duration, said ...agree.Encoding) Round {
		return defined(round(after, map[string]Answer{"a": shows(widgets, "example.com/v1")}), "example.com/v1", func(d *Definition) { d.Said = said })
	}
	if got := remembered(t, m, widgets, r(0), r(settle)); got.Common != "example.com/v1" {
		t.Fatalf("before: %+v", got)
	}
	got := remembered(t, m, widgets, r(2*settle, "example.com/v2", "example.com/v1"))
	if got.Common != "" || !Settling(got.Why) || got.History.Epoch != 3 || !slices.Equal(got.History.Since(1), []agree.Encoding{"example.com/v1", "example.com/v2"}) {
		t.Errorf("remembered is %+v", got)
	}
	if got = remembered(t, m, widgets, r(3*settle-time.Second)); got.Common != "" {
		t.Errorf("before it has settled: %+v", got)
	}
	if got = remembered(t, m, widgets, r(3*settle, "example.com/v1")); got.Common != "example.com/v1" || got.History.Epoch != 3 {
		t.Errorf("when it has settled: %+v", got)
	}
}

// TestHeartbeat: KEP-2343 says: "it checks the .status.lastHeartbeatTime, if the timestamp is more than 10 minutes
// old, it recreates storageState object".
func TestHeartbeat(t *testing.T) {
	before := Begun{At: start.Add(-time.Hour), Release: "1.37"}
	state := func(age time.Duration, release string) evolve.State {
		before.Release = release
		return evolve.State{Of: evolve.Ref{UID: before.UID(), Epoch: 7}, Current: "batch/v1", Stored: []agree.Encoding{"batch/v1"}, Heartbeat: start.Add(-age)}
	}
	for _, tc := range []struct {
		name            string
		state           evolve.State
		shown           string
		continued, same bool
		epoch           int64
		agreed          agree.Encoding
	}{
		{"looked at nine minutes ago", state(9*time.Minute, "1.37"), "batch/v1", true, false, 7, "batch/v1"},
		{"and it is another one now", state(9*time.Minute, "1.37"), "batch/v1beta1", true, false, 8, ""},
		{"eleven minutes ago, the same release", state(11*time.Minute, "1.37"), "batch/v1", false, true, 1, ""},
		{"a clock that is ahead by nine minutes", state(-9*time.Minute, "1.37"), "batch/v1", true, false, 7, "batch/v1"},
		{"a clock that was ahead by eleven minutes, another release", state(-11*time.Minute, "1.36"), "batch/v1", false, false, 1, ""},
		{"eleven minutes ago, another release", state(11*time.Minute, "1.36"), "batch/v1", false, false, 1, ""},
	} {
		m := NewMemory(Config{Settle: settle, States: map[schema.GroupResource]evolve.State{cronjobs: tc.state}})
		got := remembered(t, m, cronjobs, round(0, map[string]Answer{"a": shows(cronjobs, tc.shown)}))
		begun, ok := ParseUID(got.UID)
		if !ok || (got.UID == tc.state.Of.UID) != tc.continued || begun.Same != tc.same || got.History.Epoch != tc.epoch || got.Common != tc.agreed {
			t.Errorf("%s: %+v", tc.name, got)
		}
		if err := got.History.Validate(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// TestGoOn: after a restart of the controllers, the agreement from before goes on if the definition is the one that
// the StorageState names. Otherwise it has to settle again, and the versions that the state and storedVersions have
// beside the current one count as written since.
func TestGoOn(t *testing.T) {
	const v1, v2 = agree.Encoding("example.com/v1"), agree.Encoding("example.com/v2")
	both, only := []agree.Encoding{v1, v2}, []agree.Encoding{v2}
	shown := shows(widgets, string(v2))
	for _, tc := range []struct {
		name              string
		definition        Revision // the definition of the state; u/3 is the present one
		stored            []agree.Encoding
		storedVersions    []agree.Encoding
		b                 Answer
		continued, agreed bool
		since             []agree.Encoding
	}{
		{"the same definition", "u/3", both, both, shown, true, true, nil},
		{"the same, with Unknown", "u/3", []agree.Encoding{evolve.Unknown, v2}, both, shown, true, true, nil},
		{"the same, and a version that was freed and is not pruned", "u/3", only, both, shown, true, false, both},
		{"the same, and one is silent", "u/3", both, both, Answer{Failed: "does not answer"}, true, false, both},
		{"the same, and one is silent after the pruning", "u/3", only, only, Answer{Failed: "does not answer"}, true, false, nil},
		{"another generation in mid-migration", "u/1", both, both, shown, true, false, both},
		{"another generation, with Unknown", "u/1", []agree.Encoding{evolve.Unknown, v2}, only, shown, true, false, []agree.Encoding{evolve.Unknown, v2}},
		{"another generation, with Unknown and more in storedVersions", "u/1", []agree.Encoding{evolve.Unknown, v2}, both, shown, true, false, []agree.Encoding{evolve.Unknown, v1, v2}},
		{"another generation, and nothing else stored", "u/2", only, only, shown, true, false, nil},
		{"a state of an older build", "", both, both, shown, true, false, both},
		{"a state of an older build, and nothing else stored", "", only, only, shown, true, false, nil},
		{"another definition", "other/3", only, only, shown, false, false, nil},
	} {
		state := evolve.State{Of: evolve.Ref{UID: Begun{At: start.Add(-time.Hour), Release: "1.37"}.UID(), Epoch: 7}, Current: v2, Stored: tc.stored,
			Heartbeat: start.Add(-time.Minute), Definition: string(tc.definition)}
		m := NewMemory(Config{Settle: settle, States: map[schema.GroupResource]evolve.State{widgets: state}})
		at := func(after time.Duration, b Answer) Round {
			return defined(round(after, map[string]Answer{"a": shown, "b": b}), string(v2), func(d *Definition) { d.Stored, d.Revision = tc.storedVersions, "u/3" })
		}
		got := remembered(t, m, widgets, at(0, tc.b))
		if (got.UID == state.Of.UID) != tc.continued || (got.Common == v2) != tc.agreed || got.Definition != "u/3" {
			t.Errorf("%s: %+v", tc.name, got)
		}
		if since := got.History.Since(7); tc.continued && !slices.Equal(since, tc.since) || got.History.Validate() != nil {
			t.Errorf("%s: since then there are %v: %s; want %v", tc.name, since, got.History, tc.since)
		}
		if got = remembered(t, m, widgets, at(settle, shown), at(2*settle, shown)); got.Common != v2 {
			t.Errorf("%s, when it has settled: %+v", tc.name, got)
		}
	}
}

// TestUnseen: a kube-apiserver came and went without ever answering, so it may have written built-in resources in any
// version. Custom resources it wrote in the version of their definition.
func TestUnseen(t *testing.T) {
	m := NewMemory(Config{Settle: 0})
	a := map[string]Answer{"a": shows(cronjobs, "batch/v1")}
	m.Observe(defined(round(0, a), "example.com/v1"))
	m.Observe(defined(round(time.Second, map[string]Answer{"a": shows(cronjobs, "batch/v1"), "b": {Failed: "does not answer"}}), "example.com/v1"))
	got := remembered(t, m, cronjobs, defined(round(2*time.Second, a), "example.com/v1"))
	if !slices.Contains(got.History.Reported(), agree.Unknown) {
		t.Errorf("after it went: %+v", got)
	}
	if got = remembered(t, m, cronjobs, defined(round(3*time.Second, a), "example.com/v1")); got.Common != "batch/v1" || !slices.Equal(got.History.Reported(), []agree.Encoding{"batch/v1"}) || got.History.Epoch != 3 {
		t.Errorf("later: %+v", got)
	}
}

// TestLongAway: if nobody looked for longer than a heartbeat counts, another release may have come, written built-in
// resources in another version, and gone. Built-in resources begin anew, as after a start. Custom resources are
// written in the version of their definition, so they go on.
func TestLongAway(t *testing.T) {
	for _, tc := range []struct {
		name      string
		gap       time.Duration
		release   string // the release after the gap
		anew      bool
		automatic bool
	}{
		{"no longer than a heartbeat tells", evolve.DiscoveryPeriod, "1.37", false, true},
		{"longer", evolve.DiscoveryPeriod + time.Second, "1.37", true, false},
		{"longer, and the release is another one", evolve.DiscoveryPeriod + time.Second, "1.38", true, true},
	} {
		at := func(after time.Duration, release string) Round {
			a := shows(cronjobs, "batch/v1")
			maps.Copy(a.Shown, shows(widgets, "example.com/v1").Shown)
			a.Release = release
			return defined(round(after, map[string]Answer{"a": a}), "example.com/v1")
		}
		m := NewMemory(Config{Gap: time.Minute})
		was, custom := remembered(t, m, cronjobs, at(0, "1.37")), remembered(t, m, widgets)
		got := remembered(t, m, cronjobs, at(tc.gap, tc.release))
		if begun, ok := ParseUID(got.UID); !ok || (got.UID != was.UID) != tc.anew || begun.Same == tc.automatic {
			t.Errorf("%s: it was %s, and is %s", tc.name, was.UID, got.UID)
		}
		if why := m.Anew(); (why != "") != tc.anew || tc.anew && !strings.HasPrefix(why, "nobody has looked for 10m1s") {
			t.Errorf("%s: built-in resources begin anew since %q", tc.name, why)
		}
		if after := remembered(t, m, widgets); after.UID != custom.UID || after.History.Epoch != custom.History.Epoch {
			t.Errorf("%s: a custom resource was %+v, and is %+v", tc.name, custom, after)
		}
	}
}

// TestForgotten: a resource that is gone is forgotten. A resource of the same name that is made later is another one:
// a migration of the first, which may have ended at the same epoch, does not count for it.
func TestForgotten(t *testing.T) {
	before := evolve.State{Of: evolve.Ref{UID: Begun{At: start.Add(-time.Minute), Release: "1.37"}.UID(), Epoch: 2}, Current: "example.com/v1",
		Stored: []agree.Encoding{"example.com/v1"}, Heartbeat: start}
	m := NewMemory(Config{States: map[schema.GroupResource]evolve.State{widgets: before}})
	m.Observe(defined(round(0, map[string]Answer{"a": shows(widgets, "example.com/v1")}), "example.com/v1"))
	m.Observe(round(time.Second, map[string]Answer{"a": {Failed: "does not answer"}}))
	if _, ok := m.Of(widgets); !ok {
		t.Error("it was forgotten although a replica did not answer")
	}
	if changed := m.Observe(round(2*time.Second, map[string]Answer{"a": {Release: "1.37"}})); !slices.Equal(changed, []schema.GroupResource{widgets}) {
		t.Errorf("changed are %v", changed)
	}
	if _, ok := m.Of(widgets); ok {
		t.Error("it is remembered although nobody serves it")
	}
	uids := map[string]bool{before.Of.UID: true}
	for i := range 2 {
		at := time.Duration(3+2*i) * time.Second
		got := remembered(t, m, widgets, defined(round(at, map[string]Answer{"a": shows(widgets, "example.com/v1")}), "example.com/v1"))
		if uids[got.UID] {
			t.Errorf("made anew, it has the uid %s again", got.UID)
		}
		uids[got.UID] = true
		m.Observe(round(at+time.Second, map[string]Answer{"a": {Release: "1.37"}}))
	}
}

// TestForeign: Events in events.k8s.io are the same objects as those of the core group, so they are not a resource of
// their own, also while one kube-apiserver is silent. A resource that was known under its own group, and turns out to
// be stored in another, is forgotten when all kube-apiservers say so.
func TestForeign(t *testing.T) {
	gr := schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	storing := func(gv string) Answer {
		return Answer{Release: "1.37", Shown: map[schema.GroupResource]Shown{gr: {Hash: hashOf(gv, "Event"), Kind: "Event", Served: []string{"events.k8s.io/v1"}}}}
	}
	own, other, silent := storing("events.k8s.io/v1"), storing("v1"), Answer{Failed: "does not answer"}
	unknown := storing("events.k8s.io/v9")
	for _, tc := range []struct {
		name   string
		rounds [][2]Answer
		known  bool
	}{
		{"another group's", [][2]Answer{{other, other}}, false},
		{"one is silent", [][2]Answer{{other, silent}}, false},
		{"and answers again", [][2]Answer{{other, silent}, {other, other}}, false},
		{"its own", [][2]Answer{{own, own}}, true},
		{"in a version that nobody knows", [][2]Answer{{unknown, unknown}}, true},
		{"half of them move", [][2]Answer{{own, own}, {own, other}}, true},
		{"one moves, the other is silent", [][2]Answer{{own, own}, {other, silent}}, true},
		{"all move", [][2]Answer{{own, own}, {own, other}, {other, other}}, false},
	} {
		m := NewMemory(Config{Settle: settle})
		var changed []schema.GroupResource
		for i, r := range tc.rounds {
			changed = m.Observe(round(time.Duration(i)*time.Second, map[string]Answer{"a": r[0], "b": r[1]}))
		}
		if _, known := m.Of(gr); known != tc.known || tc.name == "all move" && !slices.Equal(changed, []schema.GroupResource{gr}) {
			t.Errorf("%s: known: %v, changed are %v", tc.name, known, changed)
		}
	}
}

func TestUID(t *testing.T) {
	for _, b := range []Begun{{At: start, Release: "1.37"}, {At: start, Release: "1.36+1.37", Same: true}} {
		if got, ok := ParseUID(b.UID()); !ok || got != b {
			t.Errorf("%s is read as %+v, %v", b.UID(), got, ok)
		}
	}
	for _, uid := range []string{"", "8f1bd2c5-3d53-4c4b-a85f-9a0b76a9a1b5", "discovery-2026-11-24T12:00:00Z", "yesterday-observed-1.37"} {
		if _, ok := ParseUID(uid); ok {
			t.Errorf("%q is read", uid)
		}
	}
}
