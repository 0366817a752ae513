package claim

import (
	"context"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

func TestChoose(t *testing.T) {
	const api, rewrite, none = migrationv1alpha1.EngineAPI, migrationv1alpha1.EngineRewrite, migrationv1alpha1.MigrationEngine("")
	for _, test := range []struct {
		asked     migrationv1alpha1.MigrationEngine
		reports   bool
		elsewhere string
		want      migrationv1alpha1.MigrationEngine
	}{
		{none, true, "", rewrite},
		{none, true, "somebody serves it", rewrite},
		{none, false, "somebody serves it", api},
		{none, false, "", none},
		{api, true, "", api},
		{api, false, "somebody serves it", api},
		{api, false, "", none},
	} {
		got, ok := choose(test.asked, test.reports, test.elsewhere)
		if got.name != test.want || ok != (test.want != none) || ok != (got.reason != "") {
			t.Errorf("%+v: %+v, %t", test, got, ok)
		}
	}
}

func TestServedVersions(t *testing.T) {
	events := schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	for _, test := range []struct {
		encoding agree.Encoding
		named    string
		defined  bool
		served   []string
		want     []string
	}{
		{"events.k8s.io/v1", "v1beta1", false, nil, []string{"v1", "v1beta1"}},
		{"events.k8s.io/v2", "v1", false, []string{"events.k8s.io/v1", "events.k8s.io/v2"}, []string{"v2", "v1"}},
		{"v1", "v1beta1", false, nil, []string{"v1beta1"}},
		// The objects may be patched in another version if it is the only one that is served. That is not
		// done for a custom resource, since its versions may lack fields.
		{"events.k8s.io/v2", "", false, []string{"events.k8s.io/v1", "v9"}, []string{"v1"}},
		{"v9", "v1beta1", false, []string{"events.k8s.io/v1", "v9"}, []string{"v1", "v1beta1"}},
		{"events.k8s.io/v2", "v1", true, []string{"events.k8s.io/v1"}, []string{"v2", "v1"}},
		// If several versions are served, one may lack fields that another has.
		{"events.k8s.io/v3", "v1", false, []string{"events.k8s.io/v1", "events.k8s.io/v2"}, []string{"v3", "v1", "v2"}},
	} {
		if got := servedVersions(events, test.encoding, test.named, test.defined, []agree.Report{{Served: test.served}}); !slices.Equal(got, test.want) {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

// TestAPIEngine: a resource for which the engine API is asked for, or that is served elsewhere, is migrated
// through the API, with the same checks before and after, and the status says so.
func TestAPIEngine(t *testing.T) {
	reports := map[string][]agree.Report{
		"asked for":        {{Server: self, Encoding: v1}, {Server: other, Encoding: v1}},
		"served elsewhere": {{Server: other, Encoding: v1}},
	}
	for name, reports := range reports {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.report(reports...)
			w.migration(func(m *migrationv1alpha1.StorageVersionMigration) {
				if name == "asked for" {
					m.Spec.Engine = migrationv1alpha1.EngineAPI
				}
			})
			if name != "asked for" {
				// As long as it is not known that another program serves the resource, this server leaves the
				// migration alone.
				w.step()
				if w.claimedBy() != "" {
					t.Fatal("it is claimed")
				}
				w.elsewhere = "another program serves it"
			}
			w.api = func(_ context.Context, job Job, _ func(Progress)) (Result, error) {
				if !slices.Equal(job.Versions, []string{"v1"}) || job.Encoding != v1 {
					t.Errorf("job %+v", job)
				}
				if m := w.read(); m.Status.Engine != migrationv1alpha1.EngineAPI || m.Status.EngineReason == "" {
					t.Errorf("status %+v", m.Status)
				}
				return Result{Progress: Progress{Total: 3, Done: 3}}, nil
			}
			w.Calls = nil
			w.step()
			w.expectTrue(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
			looks := 0 // once before and once after
			for _, call := range w.Calls {
				if call == "get StorageVersion" {
					looks++
				}
			}
			if looks != 2 || slices.Contains(w.Calls, "rewrite") {
				t.Errorf("calls %v", w.Calls)
			}
		})
	}
}

// TestEnginesDoNotShareTokens: an engine does not go on at the position that the other engine saved.
func TestEnginesDoNotShareTokens(t *testing.T) {
	w := newMigrating(t)
	crashHalfway(w)
	w.edit(func(m *migrationv1alpha1.StorageVersionMigration) { m.Spec.Engine = migrationv1alpha1.EngineAPI })
	w.api = func(_ context.Context, job Job, _ func(Progress)) (Result, error) {
		if job.Resume != "" {
			t.Errorf("it goes on at %q", job.Resume)
		}
		return Result{Progress: Progress{Total: 10, Done: 10}}, nil
	}
	w.step()
	w.expectTrue(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
}
