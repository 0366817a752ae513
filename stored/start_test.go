package stored_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/keyring"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/stored/storedtest"
	"github.com/concord-dev/concord/verdict"
)

const admissionGroup = "admissionregistration.k8s.io"

var policies = schema.GroupResource{Group: admissionGroup, Resource: "mutatingadmissionpolicies"}

func policyIn(encoding string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":"MutatingAdmissionPolicy","metadata":{"name":"p"}}`, encoding)
}

// start returns the check of a server without encryption.
func start(t *testing.T, prefix string, allow bool) stored.Start {
	t.Helper()
	return stored.Start{Layout: stored.Layout{Prefix: prefix}, Target: storedtest.Target(t), Keys: &keyring.Keys{}, Allow: allow}
}

func TestCheckStorage(t *testing.T) {
	etcd := storedtest.Start(t)
	const sealed = "k8s:enc:aescbc:v1:key1:\x00"
	v1, v2 := agree.Encoding(admissionGroup+"/v1"), agree.Encoding(admissionGroup+"/v2")
	for name, test := range map[string]struct {
		// change changes the values of a cluster in which everything is well; nil means that there are no
		// values.
		change func(values map[string]string)
		// refused are parts of the error; the server starts if there are none.
		refused []string
		// untold is a part of the log; "" if nothing is logged.
		untold string
	}{
		"nothing is stored": {},
		"all is well":       {change: func(map[string]string) {}},
		"an older version is still stored": {change: func(v map[string]string) {
			v[storedtest.StateKey(policies)] = storedtest.State(t, policies, 1, admissionGroup+"/v1alpha1", admissionGroup+"/v1beta1", v1)
		}},
		"a stored set with a newer version": {
			change: func(v map[string]string) {
				v[storedtest.StateKey(policies)] = storedtest.State(t, policies, 1, v2, v1)
				v["mutatingadmissionpolicies/a"] = policyIn(string(v2))
			},
			refused: []string{"this binary (1.37) cannot decode", policies.String() + " as " + admissionGroup + "/v2:", "wait until", "--allow-undecodable-storage"},
		},
		"a stored set with a newer version, and no value of it": {change: func(v map[string]string) {
			v[storedtest.StateKey(policies)] = storedtest.State(t, policies, 1, v2, v1)
			v["mutatingadmissionpolicies/a"] = policyIn(string(v1))
		}},
		"a stored set with a newer version, and encrypted values": {
			change: func(v map[string]string) {
				v[storedtest.StateKey(policies)] = storedtest.State(t, policies, 1, v2, v1)
				v["mutatingadmissionpolicies/a"] = sealed
			},
			refused: []string{policies.String() + " as " + string(v2)},
		},
		"a server writes a newer version, and no value has it": {
			change: func(v map[string]string) {
				v[storedtest.VersionKey(policies)] = storedtest.Version(t, policies, agree.History{Epoch: 2, Last: map[agree.Encoding]int64{v1: 1, v2: 2}})
			},
			refused: []string{policies.String() + " as " + string(v2)},
		},
		"two resources": {
			change: func(v map[string]string) {
				v[storedtest.StateKey(policies)] = storedtest.State(t, policies, 1, v2, "other/v1", v1)
				v["mutatingadmissionpolicies/a"], v["mutatingadmissionpolicies/b"] = policyIn(string(v2)), policyIn("other/v1")
				v["configmaps/default/a"] = `{"apiVersion":"v9","kind":"ConfigMap"}`
				v[storedtest.StateKey(schema.GroupResource{Resource: "configmaps"})] = storedtest.State(t, schema.GroupResource{Resource: "configmaps"}, 1, "v9")
			},
			refused: []string{"configmaps as v9; " + policies.String() + " as " + admissionGroup + "/v2, other/v1:"},
		},
		"a newer version since the state was written": {
			change: func(v map[string]string) {
				v[storedtest.VersionKey(policies)] = storedtest.Version(t, policies, agree.History{Epoch: 3, Last: map[agree.Encoding]int64{v1: 3, v2: 2}})
				v["mutatingadmissionpolicies/a"] = policyIn(string(v2))
			},
			refused: []string{policies.String() + " as " + string(v2)},
		},
		"Unknown, and values of a newer version": {
			change: func(v map[string]string) {
				v[storedtest.StateKey(policies)] = storedtest.State(t, policies, 1, evolve.Unknown, v1)
				v["mutatingadmissionpolicies/a"], v["mutatingadmissionpolicies/b"] = policyIn(string(v1)), policyIn(string(v2))
			},
			refused: []string{policies.String() + " as " + string(v2)},
		},
		"Unknown, and values of another group": {
			change: func(v map[string]string) {
				v[storedtest.StateKey(policies)] = storedtest.State(t, policies, 1, evolve.Unknown, v1)
				v["mutatingadmissionpolicies/a"] = policyIn("example.com/v1")
			},
			refused: []string{policies.String() + " as example.com/v1"},
		},
		"Unknown, and only values that can be decoded": {change: func(v map[string]string) {
			v[storedtest.StateKey(policies)] = storedtest.State(t, policies, 1, evolve.Unknown, v1)
			v["mutatingadmissionpolicies/a"], v["mutatingadmissionpolicies/b"] = policyIn(string(v1)), policyIn(admissionGroup+"/v1beta1")
		}},
		"known, and values that nobody needs to read": {change: func(v map[string]string) { v["mutatingadmissionpolicies/a"] = "\xff" }},
		"no state, and values of a newer version": {
			change: func(v map[string]string) {
				delete(v, storedtest.StateKey(policies))
				v["mutatingadmissionpolicies/a"] = policyIn(string(v2))
			},
			refused: []string{policies.String() + " as " + string(v2)},
		},
		"no state, and nothing stored": {change: func(v map[string]string) { delete(v, storedtest.StateKey(policies)) }},
		"no StorageVersion": {
			change: func(v map[string]string) {
				delete(v, storedtest.VersionKey(policies))
				v["mutatingadmissionpolicies/a"] = policyIn(string(v2))
			},
			refused: []string{policies.String() + " as " + string(v2)},
		},
		"a damaged state": {
			change: func(v map[string]string) {
				v[storedtest.StateKey(policies)] = `{"apiVersion":`
				v["mutatingadmissionpolicies/a"] = policyIn(string(v2))
			},
			refused: []string{policies.String() + " as " + string(v2)},
		},
		"a damaged state of values that can be decoded": {change: func(v map[string]string) {
			v[storedtest.StateKey(policies)] = "\x00"
			v["mutatingadmissionpolicies/a"] = policyIn(string(v1))
		}},
		"a damaged StorageVersion": {
			change: func(v map[string]string) {
				v[storedtest.VersionKey(policies)] = "k8s\x00damaged"
				v["mutatingadmissionpolicies/a"] = policyIn(string(v2))
			},
			refused: []string{policies.String() + " as " + string(v2)},
		},
		"encrypted values": {
			change: func(v map[string]string) {
				v[storedtest.StateKey(policies)] = storedtest.State(t, policies, 1, evolve.Unknown)
				v["mutatingadmissionpolicies/a"] = sealed
			},
			untold:  policies.String() + ": its stored set says Unknown, and 1 value is encrypted",
			refused: []string{"1 of " + policies.String() + " encrypted with aescbc:v1:key1"},
		},
		"encrypted values, and one of a newer version": {
			change: func(v map[string]string) {
				v[storedtest.StateKey(policies)] = storedtest.State(t, policies, 1, evolve.Unknown)
				v["mutatingadmissionpolicies/a"], v["mutatingadmissionpolicies/b"] = sealed, policyIn(string(v2))
			},
			refused: []string{policies.String() + " as " + string(v2)},
		},
		"damaged values": {
			change: func(v map[string]string) {
				delete(v, storedtest.StateKey(policies))
				v["mutatingadmissionpolicies/a"], v["mutatingadmissionpolicies/b"] = "\xff", "{}"
			},
			untold: policies.String() + ": 2 values are unreadable, for whatever release",
		},
		"events share a store": {change: func(v map[string]string) {
			delete(v, storedtest.StateKey(schema.GroupResource{Resource: "events"}))
			v["events/default/a"] = `{"apiVersion":"events.k8s.io/v1","kind":"Event"}`
		}},
		"what is no built-in resource's": {change: func(v map[string]string) {
			widgets := schema.GroupResource{Group: "example.com", Resource: "widgets"}
			v[storedtest.StateKey(widgets)] = storedtest.State(t, widgets, 1, evolve.Unknown, "example.com/v1")
			v["example.com/widgets/default/a"] = `{"apiVersion":"example.com/v7","kind":"Widget"}`
			v["storageversions/odd"] = "odd"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var values map[string]string
			if test.change != nil {
				values = storedtest.Agreed(t)
				test.change(values)
			}
			prefix := etcd.Fill(t, values)
			ctx, logged := logs(t)
			err := start(t, prefix, false).Check(ctx, migratestore.NewEtcd(etcd.Client))
			if (err != nil) != (len(test.refused) > 0) {
				t.Fatalf("got %v", err)
			}
			for _, part := range test.refused {
				if !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
					t.Errorf("got %q, want one line with %q", err, part)
				}
			}
			if got := logged(); test.untold == "" && got != "" || !strings.Contains(got, test.untold) {
				t.Errorf("logged %q, want %q", got, test.untold)
			}
			ctx, logged = logs(t)
			if err := start(t, prefix, true).Check(ctx, migratestore.NewEtcd(etcd.Client)); err != nil {
				t.Errorf("not allowed: %v", err)
			}
			if loud := strings.Contains(logged(), "STARTING ALTHOUGH"); loud != (len(test.refused) > 0) {
				t.Errorf("with --%s it logged %q", stored.AllowFlag, logged())
			}
		})
	}
}

// TestStranded asserts that a server that is refused for what no release migrates names the way out, beside that for other
// encodings, and that it starts when the objects are gone.
func TestStranded(t *testing.T) {
	etcd := storedtest.Start(t)
	plan, err := compat.NewPlan(verdict.Lifecycles(), compat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const group, wait = `{"apiVersion":"scheduling.k8s.io/v1alpha2","kind":"PodGroup","metadata":{"name":"old","namespace":"default"}}`, "start a release that decodes it and wait"
	const remove = "no release migrates objects in scheduling.k8s.io/v1alpha2 to a version that this one reads: delete them, through a server that serves them or in etcd (docs/faults.md), or give --allow-undecodable-storage"
	check := func(values map[string]string) error {
		s := start(t, etcd.Fill(t, values), false)
		s.Target = plan.Target()
		return s.Check(t.Context(), migratestore.NewEtcd(etcd.Client))
	}
	if err := check(map[string]string{"podgroups/default/old": group}); err == nil || !strings.Contains(err.Error(), "podgroups.scheduling.k8s.io as scheduling.k8s.io/v1alpha2: "+remove) {
		t.Errorf("refused with %v", err)
	}
	both := map[string]string{"podgroups/default/old": group, "mutatingadmissionpolicies/a": policyIn(admissionGroup + "/v9")}
	if err := check(both); err == nil || !strings.Contains(err.Error(), wait) || !strings.Contains(err.Error(), "; "+remove) {
		t.Errorf("beside others it is refused with %v", err)
	}
	if err := check(nil); err != nil {
		t.Errorf("without these objects it is refused: %v", err)
	}
}

// TestUndecodableIsNamed asserts that a start logs every value that does not decode, of any resource,
// whatever its stored set, and that the server starts all the same.
func TestUndecodableIsNamed(t *testing.T) {
	etcd := storedtest.Start(t)
	values := storedtest.Agreed(t)
	values["mutatingadmissionpolicies/a"] = policyIn(admissionGroup + "/v1")
	values["mutatingadmissionpolicies/b"] = "\xff"
	values["example.com/widgets/default/a"] = `{"apiVersion":"example.com/v1","kind":"Widget","spec":`
	values["health"] = "true"
	values["secrets/default/sealed"] = "k8s:enc:aescbc:v1:key1:\x00"
	s := start(t, etcd.Fill(t, values), false)
	s.Keys = opensAll{s.Keys}
	s.Decode = func(value []byte) error {
		if !json.Valid(value) && !bytes.HasPrefix(value, []byte("k8s\x00")) {
			return errors.New("it is damaged")
		}
		return nil
	}
	ctx, logged := logs(t)
	if err := s.Check(ctx, migratestore.NewEtcd(etcd.Client)); err != nil {
		t.Fatal(err)
	}
	for part, want := range map[string]int{
		"mutatingadmissionpolicies/b": 1, "example.com/widgets/default/a": 1, "it is damaged": 2, "values=2": 1,
		"mutatingadmissionpolicies/a": 0, "secrets/default/sealed": 0,
	} {
		if got := strings.Count(logged(), part); got != want {
			t.Errorf("%q is logged %d times, want %d: %s", part, got, want, logged())
		}
	}
}

// opensAll are encryption keys that can decrypt everything.
type opensAll struct{ stored.Keys }

// CheckStored implements stored.Keys.
func (opensAll) CheckStored(context.Context, migratestore.Reader, stored.Layout, stored.Sets, []schema.GroupResource) error {
	return nil
}

// TestCheckStorageOfSpecialPlaces asserts that the values of a resource are read under the prefix that the
// layout has for it.
func TestCheckStorageOfSpecialPlaces(t *testing.T) {
	etcd := storedtest.Start(t)
	services := schema.GroupResource{Resource: "services"}
	values := storedtest.Agreed(t)
	delete(values, storedtest.StateKey(services))
	values["services/specs/default/a"] = `{"apiVersion":"v9","kind":"Service"}`
	values["services/endpoints/default/a"] = `{"apiVersion":"v8","kind":"Endpoints"}`
	s := start(t, etcd.Fill(t, values), false)
	s.Layout.Special = map[schema.GroupResource]string{services: "services/specs"}
	if err := s.Check(t.Context(), migratestore.NewEtcd(etcd.Client)); err == nil || !strings.Contains(err.Error(), "services as v9:") {
		t.Errorf("got %v", err)
	}
}

// logs returns a context that collects the log, and a function that returns the log so far.
func logs(t *testing.T) (context.Context, func() string) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	return klog.NewContext(t.Context(), logger), func() string {
		return logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	}
}

// countingReader counts ranges and the values that they return.
type countingReader struct {
	migratestore.Reader
	ranges, values atomic.Int64
}

// Range implements migratestore.Reader.
func (c *countingReader) Range(ctx context.Context, start, end string, limit, revision int64) (migratestore.Page, error) {
	page, err := c.Reader.Range(ctx, start, end, limit, revision)
	c.ranges.Add(1)
	c.values.Add(int64(len(page.Entries)))
	return page, err
}

// TestCheckStorageIsCheap asserts that a normal start reads the stored sets only, and no values.
func TestCheckStorageIsCheap(t *testing.T) {
	etcd := storedtest.Start(t)
	values := storedtest.Agreed(t)
	sets := len(values)
	for i := range 100 {
		values[fmt.Sprintf("configmaps/default/%d", i)] = "{}"
	}
	prefix := etcd.Fill(t, values)
	reader := &countingReader{Reader: migratestore.NewEtcd(etcd)}
	if err := start(t, prefix, false).Check(t.Context(), reader); err != nil {
		t.Fatal(err)
	}
	if got := reader.values.Load(); got != int64(sets) {
		t.Errorf("read %d values of %d stored sets and StorageVersions", got, sets)
	}
	if got := reader.ranges.Load(); got > 4 {
		t.Errorf("%d ranges", got)
	}
}

// slowReader answers all reads except those of the values of one resource. These last until the time of the
// check is over: it ends when the key last has been read or, if that is empty, when the values are asked for.
type slowReader struct {
	migratestore.Reader
	slow, last string
	over       context.CancelFunc
}

// Range implements migratestore.Reader.
func (s slowReader) Range(ctx context.Context, start, end string, limit, revision int64) (migratestore.Page, error) {
	if limit > 1 && strings.HasPrefix(start, s.slow) {
		if s.last == "" {
			s.over()
		}
		<-ctx.Done()
		return migratestore.Page{}, ctx.Err()
	}
	page, err := s.Reader.Range(ctx, start, end, limit, revision)
	if start == s.last {
		s.over()
	}
	return page, err
}

// TestCheckStorageIsBounded asserts that a resource with too many values to read keeps no server from
// starting, and that problems of other resources are still found.
func TestCheckStorageIsBounded(t *testing.T) {
	etcd := storedtest.Start(t)
	values := storedtest.Agreed(t)
	delete(values, storedtest.StateKey(schema.GroupResource{Resource: "configmaps"}))
	values["configmaps/default/a"], values["configmaps/default/b"] = "{}", "{}"
	prefix := etcd.Fill(t, values)
	check := func(last string) (string, error) {
		ctx, logged := logs(t)
		ctx, over := context.WithTimeout(ctx, time.Minute)
		defer over()
		err := stored.RefuseStored(ctx, start(t, prefix, false), slowReader{migratestore.NewEtcd(etcd), prefix + "/configmaps/", last, over})
		return logged(), err
	}
	if logged, err := check(""); err != nil || !strings.Contains(logged, "configmaps: it has no StorageState, and not all raw values were read: it took too long") {
		t.Errorf("got %v, logged %q", err, logged)
	}
	if _, err := etcd.Delete(t.Context(), prefix+"/"+storedtest.StateKey(policies)); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Put(t.Context(), prefix+"/mutatingadmissionpolicies/a", policyIn(admissionGroup+"/v2")); err != nil {
		t.Fatal(err)
	}
	// What servers write of a resource is read after its values.
	if _, err := check(prefix + "/" + storedtest.VersionKey(policies)); err == nil || !strings.Contains(err.Error(), policies.String()) {
		t.Errorf("got %v, want a refusal for %s", err, policies)
	}
}

// crowdedReader has a large resource, whose values use up the time of the first half of a check. In the
// second half they are answered after the values of the small resource were read.
type crowdedReader struct {
	migratestore.Reader
	large, small string

	halves int
	over   context.CancelFunc
	read   chan struct{}
	once   *sync.Once
}

// limited returns the context of a half of a check. It ends by its timeout only if the check hangs.
func (c *crowdedReader) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	c.halves++
	c.read, c.once = make(chan struct{}), &sync.Once{}
	ctx, c.over = context.WithTimeout(ctx, time.Minute)
	return ctx, c.over
}

// Range implements migratestore.Reader.
func (c *crowdedReader) Range(ctx context.Context, start, end string, limit, revision int64) (migratestore.Page, error) {
	if limit > 1 && strings.HasPrefix(start, c.large) {
		if c.halves == 1 {
			c.over()
		}
		select {
		case <-c.read:
		case <-ctx.Done():
			return migratestore.Page{}, ctx.Err()
		}
	}
	page, err := c.Reader.Range(ctx, start, end, limit, revision)
	if limit > 1 && c.halves > 1 && strings.HasPrefix(start, c.small) {
		c.once.Do(func() { close(c.read) })
	}
	return page, err
}

// TestCheckStorageOfKeys asserts that a missing key is found, also if the values of another resource use
// up the time.
func TestCheckStorageOfKeys(t *testing.T) {
	etcd := storedtest.Start(t)
	prefix := etcd.Fill(t, map[string]string{"secrets/default/a": "k8s:enc:aescbc:v1:key1:\x00", "configmaps/default/a": "{}", "configmaps/default/b": "{}"})
	reader := &crowdedReader{Reader: migratestore.NewEtcd(etcd), large: prefix + "/configmaps/", small: prefix + "/secrets/"}
	err := stored.RefuseStoredWithin(t.Context(), start(t, prefix, false), reader, reader.limited)
	if err == nil || !strings.Contains(err.Error(), "1 of secrets encrypted with aescbc:v1:key1") {
		t.Errorf("got %v, want a refusal for the key of secrets", err)
	}
}

// farReader answers reads with limit 1 (of single keys, or whether a resource has values) only when two of
// them were under way at the same time.
type farReader struct {
	migratestore.Reader
	asked atomic.Int64
	two   chan struct{}
}

// Range implements migratestore.Reader.
func (f *farReader) Range(ctx context.Context, start, end string, limit, revision int64) (migratestore.Page, error) {
	if limit == 1 {
		if f.asked.Add(1) == 2 {
			close(f.two)
		}
		select {
		case <-f.two:
		case <-ctx.Done():
			return migratestore.Page{}, ctx.Err()
		}
	}
	return f.Reader.Range(ctx, start, end, limit, revision)
}

// TestCheckStorageFarAway asserts that a server checks several resources at a time, and that it starts if
// there was not enough time to read the values.
func TestCheckStorageFarAway(t *testing.T) {
	etcd := storedtest.Start(t)
	prefix := etcd.Fill(t, map[string]string{"mutatingadmissionpolicies/a": policyIn(admissionGroup + "/v2")})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := stored.RefuseStored(ctx, start(t, prefix, false), &farReader{Reader: migratestore.NewEtcd(etcd), two: make(chan struct{})})
	if err == nil || !strings.Contains(err.Error(), policies.String()) {
		t.Errorf("got %v, want a refusal for %s", err, policies)
	}
	ctx, logged := logs(t)
	ctx, cancel = context.WithCancel(ctx)
	defer cancel()
	over := meanwhileReader{migratestore.NewEtcd(etcd), prefix + "/mutatingadmissionpolicies/", cancel}
	if err := stored.RefuseStored(ctx, start(t, prefix, false), over); err != nil || !strings.Contains(logged(), "not all raw values were read") {
		t.Errorf("got %v, logged %q", err, logged())
	}
}

// meanwhileReader calls write after each read of values of one resource.
type meanwhileReader struct {
	migratestore.Reader
	of    string
	write func()
}

// Range implements migratestore.Reader.
func (m meanwhileReader) Range(ctx context.Context, start, end string, limit, revision int64) (migratestore.Page, error) {
	page, err := m.Reader.Range(ctx, start, end, limit, revision)
	if strings.HasPrefix(start, m.of) {
		m.write()
	}
	return page, err
}

// TestCheckStorageIsFenced asserts that an encoding counts as stored if a server began to write it while
// values were counted, and that the remembered stored set counts if not all values could be read.
func TestCheckStorageIsFenced(t *testing.T) {
	etcd := storedtest.Start(t)
	v1, v2 := agree.Encoding(admissionGroup+"/v1"), agree.Encoding(admissionGroup+"/v2")
	values := storedtest.Agreed(t)
	values[storedtest.StateKey(policies)] = storedtest.State(t, policies, 1, v2, v1)
	values["mutatingadmissionpolicies/a"], values["mutatingadmissionpolicies/b"] = policyIn(string(v1)), policyIn(string(v1))
	prefix := etcd.Fill(t, values)
	place := prefix + "/mutatingadmissionpolicies/"
	if err := start(t, prefix, false).Check(t.Context(), migratestore.NewEtcd(etcd.Client)); err != nil {
		t.Fatalf("nothing is stored in %s: %v", v2, err)
	}
	ctx, over := context.WithTimeout(t.Context(), time.Minute)
	defer over()
	if err := stored.RefuseStored(ctx, start(t, prefix, false), slowReader{migratestore.NewEtcd(etcd), place, "", over}); err == nil || !strings.Contains(err.Error(), policies.String()+" as "+string(v2)) {
		t.Errorf("values could not be counted, and it got %v", err)
	}
	panics := meanwhileReader{migratestore.NewEtcd(etcd), place, func() { panic("a bug") }}
	if err := stored.RefuseStored(t.Context(), start(t, prefix, false), panics); err == nil || !strings.Contains(err.Error(), policies.String()+" as "+string(v2)) {
		t.Errorf("counting panicked, and it got %v", err)
	}
	unknown := etcd.Fill(t, map[string]string{"mutatingadmissionpolicies/a": policyIn(string(v2))})
	panics.of = unknown + "/" + storedtest.VersionKey(schema.GroupResource{Resource: "configmaps"})
	if err := stored.RefuseStored(t.Context(), start(t, unknown, false), panics); err == nil || !strings.Contains(err.Error(), policies.String()+" as "+string(v2)) {
		t.Errorf("counting another resource panicked, and it got %v", err)
	}
	joined := storedtest.Version(t, policies, agree.History{Epoch: 2, Last: map[agree.Encoding]int64{v1: 1, v2: 2}})
	reader := meanwhileReader{migratestore.NewEtcd(etcd), place, func() {
		if _, err := etcd.Put(t.Context(), prefix+"/"+storedtest.VersionKey(policies), joined); err != nil {
			t.Error(err)
		}
	}}
	if err := start(t, prefix, false).Check(t.Context(), reader); err == nil || !strings.Contains(err.Error(), policies.String()+" as "+string(v2)) {
		t.Errorf("a server began to write %s, and it got %v", v2, err)
	}
}

// TestCheckStorageWithoutEtcd asserts that a server does not start if it cannot read etcd.
func TestCheckStorageWithoutEtcd(t *testing.T) {
	etcd := storedtest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := start(t, "/registry", false).Check(ctx, migratestore.NewEtcd(etcd.Client)); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("got %v", err)
	}
}
