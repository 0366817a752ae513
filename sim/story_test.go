package sim

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.etcd.io/etcd/api/v3/mvccpb"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/sim/invariant"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/registry"
	"github.com/concord-dev/concord/sim/script"
)

// TestStories runs the stories in testdata. Commands:
//
//	world slots=2 ...   begins a new world
//	do                  runs the events below; prints only the events that were not possible
//	trace               the same, and prints what happens
//	show                prints what is stored
//	replay              runs the script below in a world of its own, and says how it ended
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := NewWorld(script.DefaultConfig(), nil)
		defer func() { w.Close() }()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "world":
				config, err := script.ParseConfig(args(d))
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				w.Close()
				w = NewWorld(config, nil)
				return ""
			case "do", "trace":
				return act(t, d, w)
			case "show":
				return w.show()
			case "replay":
				config, script, err := script.ParseStory(d.Input)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				run := Replay(config, script, nil)
				if run.Violation != nil {
					return run.String()
				}
				return "no violation"
			}
			d.Fatalf(t, "unknown command %q", d.Cmd)
			return ""
		})
	})
}

func args(d *datadriven.TestData) string {
	var words []string
	for _, a := range d.CmdArgs {
		words = append(words, a.Key+"="+strings.Join(a.Vals, ","))
	}
	return strings.Join(words, " ")
}

func act(t *testing.T, d *datadriven.TestData, w *World) string {
	script, err := script.Parse(d.Input)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	var out bytes.Buffer
	if d.Cmd == "trace" {
		w.trace = &out
	}
	for _, e := range script {
		if !w.Do(e) && w.trace == nil {
			fmt.Fprintf(&out, "not possible now: %s\n", e)
		}
	}
	w.trace = nil
	if w.checker.Violation != nil {
		fmt.Fprintf(&out, "violation of %s\n", w.checker.Violation)
	}
	return out.String()
}

// show prints the objects of the protocol, and the stored objects.
func (w *World) show() string {
	var b strings.Builder
	for _, lease := range w.api.Shelf(registry.Leases) {
		fmt.Fprintf(&b, "lease %s of %s\n", lease.Name, w.checker.Owner[agree.ServerID(lease.Name)])
	}
	for _, r := range object.All {
		sv, state := w.api.LookStorageVersion(r), w.api.LookState(r)
		if sv != nil || state != nil {
			fmt.Fprintf(&b, "%s: %s; %s\n", r.Name, invariant.Describe(sv), invariant.DescribeState(state))
		}
		w.store.Scan(r.Prefix, func(kv *mvccpb.KeyValue) {
			fmt.Fprintf(&b, "  %s %s\n", strings.TrimPrefix(string(kv.Key), "/registry/"), kv.Value)
		})
	}
	for _, stored := range w.api.Shelf(registry.Definitions) {
		crd := stored.Object.(*apiextensionsv1.CustomResourceDefinition)
		fmt.Fprintf(&b, "definition %s stores %s, storedVersions %v\n", crd.Name, registry.StoredBy(crd), crd.Status.StoredVersions)
	}
	for _, stored := range w.api.Shelf(registry.Migrations) {
		m := migrationv1alpha1.ViewMigration(stored.Object.(*migrationv1alpha1.StorageVersionMigration))
		fmt.Fprintf(&b, "migration %s for %s %s\n", m.Name, m.Target, m.Phase)
		if m.Waiting != "" {
			fmt.Fprintf(&b, "  waits: %s\n", m.Waiting)
		}
	}
	return b.String()
}
