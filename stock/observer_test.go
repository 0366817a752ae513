package stock

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	testclock "k8s.io/utils/clock/testing"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/stock/observed"
)

// newTestObserver knows these definitions.
func newTestObserver(t *testing.T, crds ...*apiextensionsv1.CustomResourceDefinition) *observer {
	t.Helper()
	o := &observer{
		definitions: newDefinitions(), clock: testclock.NewFakeClock(now), logger: logr.Discard(),
		broadcast: watch.NewLongQueueBroadcaster(queued, watch.WaitIfChannelFull),
		memory:    observed.NewMemory(observed.Config{}), known: knownVersions{}, kinds: map[schema.GroupResource]string{},
	}
	t.Cleanup(o.broadcast.Shutdown)
	for _, crd := range crds {
		o.definitions.take(crd)
	}
	return o
}

// observing has one replica show a resource that is stored so; "" shows none.
func (o *observer) observing(gr schema.GroupResource, kind, gv string, age time.Duration) {
	p := observed.Process{Lease: "a", Holder: "1"}
	answer := observed.Answer{Release: "1.37", Shown: map[schema.GroupResource]observed.Shown{}}
	if parsed, err := schema.ParseGroupVersion(gv); err == nil && gv != "" {
		answer.Shown[gr] = observed.Shown{Hash: migrationv1alpha1.StorageVersionHash(parsed.WithKind(kind)), Kind: kind, Served: []string{gv}}
	}
	r := observed.Round{
		Began: now.Add(age), Before: []observed.Replica{{Process: p}}, After: []observed.Replica{{Process: p}},
		Answers: map[observed.Process]observed.Answer{p: answer}, Defined: o.definitions.defined(schema.GroupResource{}),
	}
	r.Versions = versionsOf(r.Answers)
	o.observe(r)
}

// TestTold: what is told of a resource has its history as it is now, whether or not it is a custom
// resource, whose definition is remembered.
func TestTold(t *testing.T) {
	o := newTestObserver(t, widgetDefinition("a", 1, "v1", "v1"))
	for i, gv := range []string{"example.com/v1", "example.com/v2"} {
		o.observing(widgets, "Widget", gv, time.Duration(i)*time.Minute)
		history, err := storageversion.History(o.known[widgets])
		must(t, err)
		if _, ok := history.Last[agree.Encoding(gv)]; !ok || !custom(o.known[widgets]) {
			t.Errorf("%s is stored, and what is told of a custom resource is %v", gv, o.known[widgets].Annotations)
		}
	}
	o.definitions.forget(widgetDefinition("a", 1, "v1", "v1"))
	o.observing(widgets, "Widget", "example.com/v1", 2*time.Minute)
	if !custom(o.known[widgets]) {
		t.Errorf("its definition is forgotten before the resource is: %v", o.known[widgets].Annotations)
	}
	jobs := schema.GroupResource{Group: "batch", Resource: "cronjobs"}
	for i, gv := range []string{"batch/v1", "batch/v1beta1", "batch/v1"} {
		o.observing(jobs, "CronJob", gv, time.Duration(i)*time.Minute)
		is, _ := o.memory.Of(jobs)
		if history, err := storageversion.History(o.known[jobs]); err != nil || history.Epoch != is.History.Epoch {
			t.Errorf("at epoch %d is told %d, %v", is.History.Epoch, history.Epoch, err)
		}
	}
}
