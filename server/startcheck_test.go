package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/rewrite"
	"github.com/concord-dev/concord/server/builtin"
	"github.com/concord-dev/concord/server/embedded"
)

const admissionGroup = "admissionregistration.k8s.io"

var policies = schema.GroupResource{Group: admissionGroup, Resource: "mutatingadmissionpolicies"}

// storedEtcd is an etcd that tests write stored values into by hand, each case under a
// prefix of its own.
type storedEtcd struct {
	*clientv3.Client
	cases int
}

func startStored(t *testing.T) *storedEtcd {
	t.Helper()
	dir, err := os.MkdirTemp("", "stored") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	etcd, err := embedded.StartEtcd(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Close() })
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return &storedEtcd{Client: client}
}

// fill writes the values, whose keys are without prefix, and returns the prefix.
func (e *storedEtcd) fill(t *testing.T, values map[string]string) (prefix string) {
	t.Helper()
	e.cases++
	prefix = fmt.Sprintf("/case%d", e.cases)
	for keys := range slices.Chunk(slices.Collect(maps.Keys(values)), 100) {
		var puts []clientv3.Op
		for _, key := range keys {
			puts = append(puts, clientv3.OpPut(prefix+"/"+key, values[key]))
		}
		if _, err := e.Txn(t.Context()).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	return prefix
}

func testPlan(t *testing.T) *compat.Plan {
	t.Helper()
	plan, err := compat.NewPlan(Lifecycles(), compat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// agreed are the values of a cluster that stores every built-in resource as planned, with
// a StorageState and a StorageVersion for each. The StorageVersions are as servers write
// them.
func agreed(t *testing.T) map[string]string {
	t.Helper()
	values := map[string]string{}
	for _, r := range testPlan(t).Resources {
		if r.Storage.Empty() {
			continue
		}
		gr, encoding := schema.GroupResource{Group: r.Group, Resource: r.Resource}, agree.Encoding(r.Storage.String())
		values[stateKey(gr)] = stateOf(t, gr, 1, encoding)
		values[versionKey(gr)] = versionOf(t, gr, agree.History{Epoch: 1, Last: map[agree.Encoding]int64{encoding: 1}})
	}
	return values
}

func stateKey(gr schema.GroupResource) string {
	return "migration.k8s.io/storagestates/" + migrationv1alpha1.StateName(gr)
}

func versionKey(gr schema.GroupResource) string {
	return "storageversions/" + storageversion.Name(gr)
}

func uidOf(gr schema.GroupResource) types.UID { return types.UID("uid-of-" + gr.String()) }

func stateOf(t *testing.T, gr schema.GroupResource, epoch int64, stored ...agree.Encoding) string {
	t.Helper()
	state := &migrationv1alpha1.StorageState{TypeMeta: metav1.TypeMeta{APIVersion: migrationv1alpha1.SchemeGroupVersion.String(), Kind: "StorageState"}}
	state.Name = migrationv1alpha1.StateName(gr)
	state.Spec.Resource = migrationv1alpha1.GroupResource{Group: gr.Group, Resource: gr.Resource}
	migrationv1alpha1.SetState(state, evolve.State{Of: evolve.Ref{UID: string(uidOf(gr)), Epoch: epoch}, Stored: stored, Current: stored[len(stored)-1]}, "Kind")
	value, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	return string(value)
}

func versionOf(t *testing.T, gr schema.GroupResource, history agree.History, reports ...agree.Report) string {
	t.Helper()
	sv := &apiserverinternalv1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: storageversion.Name(gr), UID: uidOf(gr)}}
	storageversion.SetHistory(sv, history)
	storageversion.SetReports(sv, reports, metav1.Now())
	info, ok := runtime.SerializerInfoForMediaType(builtin.Codecs.SupportedMediaTypes(), builtin.MediaType)
	if !ok {
		t.Fatal("no protobuf")
	}
	var value bytes.Buffer
	if err := builtin.Codecs.EncoderForVersion(info.Serializer, apiserverinternalv1alpha1.SchemeGroupVersion).Encode(sv, &value); err != nil {
		t.Fatal(err)
	}
	return value.String()
}

func policyIn(encoding string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":"MutatingAdmissionPolicy","metadata":{"name":"p"}}`, encoding)
}

func TestCheckStorage(t *testing.T) {
	etcd := startStored(t)
	const sealed = "k8s:enc:aescbc:v1:key1:\x00"
	v1, v2 := agree.Encoding(admissionGroup+"/v1"), agree.Encoding(admissionGroup+"/v2")
	for name, test := range map[string]struct {
		// change alters the values of a cluster in which all is well; nil: there are none.
		change func(values map[string]string)
		// refused are parts of the error; none: the server starts.
		refused []string
		// untold is a part of what is logged; "" if nothing is.
		untold string
	}{
		"nothing is stored": {},
		"all is well":       {change: func(map[string]string) {}},
		"an older version is still stored": {change: func(v map[string]string) {
			v[stateKey(policies)] = stateOf(t, policies, 1, admissionGroup+"/v1alpha1", admissionGroup+"/v1beta1", v1)
		}},
		"a stored set with a newer version": {
			change:  func(v map[string]string) { v[stateKey(policies)] = stateOf(t, policies, 1, v2, v1) },
			refused: []string{"this binary (1.37) cannot decode", policies.String() + " as " + admissionGroup + "/v2:", "wait until", "--allow-undecodable-storage"},
		},
		"two resources": {
			change: func(v map[string]string) {
				v[stateKey(policies)] = stateOf(t, policies, 1, v2, "other/v1", v1)
				v[stateKey(schema.GroupResource{Resource: "configmaps"})] = stateOf(t, schema.GroupResource{Resource: "configmaps"}, 1, "v9")
			},
			refused: []string{"configmaps as v9; " + policies.String() + " as " + admissionGroup + "/v2, other/v1:"},
		},
		"a newer version since the state was written": {
			change: func(v map[string]string) {
				v[versionKey(policies)] = versionOf(t, policies, agree.History{Epoch: 3, Last: map[agree.Encoding]int64{v1: 3, v2: 2}})
			},
			refused: []string{policies.String() + " as " + string(v2)},
		},
		"Unknown, and values of a newer version": {
			change: func(v map[string]string) {
				v[stateKey(policies)] = stateOf(t, policies, 1, evolve.Unknown, v1)
				v["mutatingadmissionpolicies/a"], v["mutatingadmissionpolicies/b"] = policyIn(string(v1)), policyIn(string(v2))
			},
			refused: []string{policies.String() + " as " + string(v2)},
		},
		"Unknown, and values of another group": {
			change: func(v map[string]string) {
				v[stateKey(policies)] = stateOf(t, policies, 1, evolve.Unknown, v1)
				v["mutatingadmissionpolicies/a"] = policyIn("example.com/v1")
			},
			refused: []string{policies.String() + " as example.com/v1"},
		},
		"Unknown, and only values that can be decoded": {change: func(v map[string]string) {
			v[stateKey(policies)] = stateOf(t, policies, 1, evolve.Unknown, v1)
			v["mutatingadmissionpolicies/a"], v["mutatingadmissionpolicies/b"] = policyIn(string(v1)), policyIn(admissionGroup+"/v1beta1")
		}},
		"known, and values that nobody needs to read": {change: func(v map[string]string) { v["mutatingadmissionpolicies/a"] = "\xff" }},
		"no state, and values of a newer version": {
			change: func(v map[string]string) {
				delete(v, stateKey(policies))
				v["mutatingadmissionpolicies/a"] = policyIn(string(v2))
			},
			refused: []string{policies.String() + " as " + string(v2)},
		},
		"no state, and nothing stored": {change: func(v map[string]string) { delete(v, stateKey(policies)) }},
		"no StorageVersion": {
			change: func(v map[string]string) {
				delete(v, versionKey(policies))
				v["mutatingadmissionpolicies/a"] = policyIn(string(v2))
			},
			refused: []string{policies.String() + " as " + string(v2)},
		},
		"a damaged state": {
			change: func(v map[string]string) {
				v[stateKey(policies)] = `{"apiVersion":`
				v["mutatingadmissionpolicies/a"] = policyIn(string(v2))
			},
			refused: []string{policies.String() + " as " + string(v2)},
		},
		"a damaged state of values that can be decoded": {change: func(v map[string]string) {
			v[stateKey(policies)] = "\x00"
			v["mutatingadmissionpolicies/a"] = policyIn(string(v1))
		}},
		"a damaged StorageVersion": {
			change: func(v map[string]string) {
				v[versionKey(policies)] = "k8s\x00damaged"
				v["mutatingadmissionpolicies/a"] = policyIn(string(v2))
			},
			refused: []string{policies.String() + " as " + string(v2)},
		},
		"encrypted values": {
			change: func(v map[string]string) {
				v[stateKey(policies)] = stateOf(t, policies, 1, evolve.Unknown)
				v["mutatingadmissionpolicies/a"] = sealed
			},
			untold:  policies.String() + ": its stored set says Unknown, and 1 value is encrypted",
			refused: []string{"1 of " + policies.String() + " encrypted with aescbc:v1:key1"},
		},
		"encrypted values, and one of a newer version": {
			change: func(v map[string]string) {
				v[stateKey(policies)] = stateOf(t, policies, 1, evolve.Unknown)
				v["mutatingadmissionpolicies/a"], v["mutatingadmissionpolicies/b"] = sealed, policyIn(string(v2))
			},
			refused: []string{policies.String() + " as " + string(v2)},
		},
		"damaged values": {
			change: func(v map[string]string) {
				delete(v, stateKey(policies))
				v["mutatingadmissionpolicies/a"], v["mutatingadmissionpolicies/b"] = "\xff", "{}"
			},
			untold: policies.String() + ": it has no StorageState, and 2 values are unreadable",
		},
		"events share a store": {change: func(v map[string]string) {
			delete(v, stateKey(schema.GroupResource{Resource: "events"}))
			v["events/default/a"] = `{"apiVersion":"events.k8s.io/v1","kind":"Event"}`
		}},
		"what is no built-in resource's": {change: func(v map[string]string) {
			widgets := schema.GroupResource{Group: "example.com", Resource: "widgets"}
			v[stateKey(widgets)] = stateOf(t, widgets, 1, evolve.Unknown, "example.com/v1")
			v["example.com/widgets/default/a"] = `{"apiVersion":"example.com/v7","kind":"Widget"}`
			v["storageversions/odd"] = "odd"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var values map[string]string
			if test.change != nil {
				values = agreed(t)
				test.change(values)
			}
			prefix := etcd.fill(t, values)
			ctx, logged := logs(t)
			err := checkStorage(ctx, rewrite.NewEtcd(etcd.Client), prefix, testPlan(t), &keys{}, false)
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
			if err := checkStorage(ctx, rewrite.NewEtcd(etcd.Client), prefix, testPlan(t), &keys{}, true); err != nil {
				t.Errorf("not allowed: %v", err)
			}
			if loud := strings.Contains(logged(), "STARTING ALTHOUGH"); loud != (len(test.refused) > 0) {
				t.Errorf("with --%s it logged %q", allowUndecodableFlag, logged())
			}
		})
	}
}

// logs returns a context that collects what is logged, and what was.
func logs(t *testing.T) (context.Context, func() string) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	return klog.NewContext(t.Context(), logger), func() string {
		return logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	}
}

// countingReader counts ranges and what they return.
type countingReader struct {
	rewrite.Reader
	ranges, values atomic.Int64
}

// Range implements rewrite.Reader.
func (c *countingReader) Range(ctx context.Context, start, end string, limit, revision int64) (rewrite.Page, error) {
	page, err := c.Reader.Range(ctx, start, end, limit, revision)
	c.ranges.Add(1)
	c.values.Add(int64(len(page.Entries)))
	return page, err
}

// TestCheckStorageIsCheap asserts that a normal start reads the stored sets and nothing else.
func TestCheckStorageIsCheap(t *testing.T) {
	etcd := startStored(t)
	values := agreed(t)
	sets := len(values)
	for i := range 100 {
		values[fmt.Sprintf("configmaps/default/%d", i)] = "{}"
	}
	prefix := etcd.fill(t, values)
	reader := &countingReader{Reader: rewrite.NewEtcd(etcd)}
	if err := checkStorage(t.Context(), reader, prefix, testPlan(t), &keys{}, false); err != nil {
		t.Fatal(err)
	}
	if got := reader.values.Load(); got != int64(sets) {
		t.Errorf("read %d values of %d stored sets and StorageVersions", got, sets)
	}
	if got := reader.ranges.Load(); got > 4 {
		t.Errorf("%d ranges", got)
	}
}

// slowReader answers everything but the values of one resource.
type slowReader struct {
	rewrite.Reader
	slow string
}

// Range implements rewrite.Reader.
func (s slowReader) Range(ctx context.Context, start, end string, limit, revision int64) (rewrite.Page, error) {
	if limit > 1 && strings.HasPrefix(start, s.slow) {
		<-ctx.Done()
		return rewrite.Page{}, ctx.Err()
	}
	return s.Reader.Range(ctx, start, end, limit, revision)
}

// TestCheckStorageIsBounded asserts that a resource with too many values to read keeps no
// server from starting, and hides no other.
func TestCheckStorageIsBounded(t *testing.T) {
	etcd := startStored(t)
	values := agreed(t)
	delete(values, stateKey(schema.GroupResource{Resource: "configmaps"}))
	values["configmaps/default/a"], values["configmaps/default/b"] = "{}", "{}"
	prefix := etcd.fill(t, values)
	reader := slowReader{Reader: rewrite.NewEtcd(etcd), slow: prefix + "/configmaps/"}
	check := func() (string, error) {
		ctx, logged := logs(t)
		ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
		defer cancel()
		err := refuseStored(ctx, reader, prefix, testPlan(t).Target(), &keys{})
		return logged(), err
	}
	if logged, err := check(); err != nil || !strings.Contains(logged, "configmaps: it has no StorageState, and not all raw values were read: it took too long") {
		t.Errorf("got %v, logged %q", err, logged)
	}
	if _, err := etcd.Delete(t.Context(), prefix+"/"+stateKey(policies)); err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Put(t.Context(), prefix+"/mutatingadmissionpolicies/a", policyIn(admissionGroup+"/v2")); err != nil {
		t.Fatal(err)
	}
	if _, err := check(); err == nil || !strings.Contains(err.Error(), policies.String()) {
		t.Errorf("got %v, want a refusal for %s", err, policies)
	}
}

// TestCheckStorageWithoutEtcd asserts that a server does not start on what it cannot read.
func TestCheckStorageWithoutEtcd(t *testing.T) {
	etcd := startStored(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := checkStorage(ctx, rewrite.NewEtcd(etcd.Client), "/registry", testPlan(t), &keys{}, false); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("got %v", err)
	}
}

// TestRunRefusesUndecodableStorage asserts that the check stands before serving.
func TestRunRefusesUndecodableStorage(t *testing.T) {
	etcd := startStored(t)
	values := agreed(t)
	values[stateKey(policies)] = stateOf(t, policies, 1, admissionGroup+"/v2", admissionGroup+"/v1")
	o, err := parse(t, "--etcd-servers="+etcd.Endpoints()[0], "--etcd-prefix="+etcd.fill(t, values), "--secure-port=0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = Run(ctx, o, func(*Server) { cancel() })
	if err == nil || !strings.Contains(err.Error(), policies.String()+" as "+admissionGroup+"/v2") {
		t.Errorf("got %v", err)
	}
}
