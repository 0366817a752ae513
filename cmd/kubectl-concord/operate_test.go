package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/concord-dev/concord/cmd/migrating"
)

// TestChangeAll: a migration or resource that cannot be changed does not keep the command from changing the others.
func TestChangeAll(t *testing.T) {
	const own, asked = `{"name": "own", "uid": "o", "labels": {"concord.dev/made-by": "trigger"}}`, `{"name": "asked", "uid": "a"}`
	const kept = "migration own was made by Concord itself, and would be made again; it is paused already"
	const definitions, states = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/migration.k8s.io/v1alpha1/storagestates"
	const spec = `"spec": {"group": "example.com", "names": {"plural": "widgets"}, "versions": [{"name": "v2", "served": true, "storage": true}]}, "status": {"storedVersions": ["v1"]}`
	const state = `{"metadata": {"name": "widgets.example.com"}, "spec": {"resource": {"group": "example.com", "resource": "widgets"}},
		"status": {"persistedStorageVersionHashes": ["h"], "persistedEncodings": ["example.com/v1"], "currentEncoding": "example.com/v1", "currentStorageVersionHash": "h", "storageVersionUID": "u", "epoch": 1}}`
	const refused = "storageversionmigrations.migration.k8s.io is forbidden"
	widgets := []string{"widgets.example.com"}
	for name, test := range map[string]struct {
		args           []string
		migrations     []string
		what           change
		forbids        string
		out, err       string
		wrote, deleted []string
		lists          map[string]string // what there is besides, by path
	}{
		"one of a definition that goes": {args: widgets, migrations: []string{`{"name": "own", "uid": "o", "annotations": {"concord.dev/attempt": "1"}}`}, what: change{done: "cancelled", remove: true},
			out: "widgets.example.com: cancelled: migration own\n", deleted: []string{"own"}, lists: map[string]string{definitions: `{"metadata": {"name": "widgets.example.com", "deletionTimestamp": "2026-11-24T10:02:00Z"}, ` + spec + `}`}},
		"one of a resource that is in one version by now": {args: widgets, migrations: []string{own}, what: change{done: "cancelled", remove: true},
			out: "widgets.example.com: cancelled: migration own\n", deleted: []string{"own"}, lists: map[string]string{definitions: `{"metadata": {"name": "widgets.example.com"}, ` + strings.ReplaceAll(spec, "v2", "v1") + `}`, states: state}},
		"one of a resource whose definition stores another version now": {args: widgets, migrations: []string{own}, what: change{done: "cancelled", remove: true},
			err: kept, lists: map[string]string{definitions: `{"metadata": {"name": "widgets.example.com"}, ` + spec + `}`, states: state}},
		"one that is due": {args: widgets, what: paused(true), lists: map[string]string{definitions: `{"metadata": {"name": "widgets.example.com"}, ` + spec + `}`, states: state},
			err: "widgets.example.com has no migration under way yet: Concord makes one as soon as it can, and kubectl concord why widgets.example.com says what it waits for; or ask for one with kubectl concord migrate widgets.example.com: it waits for the same, but you can pause and throttle it while it waits"},
		"one that is not due": {args: widgets, what: paused(true), lists: map[string]string{definitions: `{"metadata": {"name": "widgets.example.com"}, ` + strings.ReplaceAll(spec, "v2", "v1") + `}`, states: state},
			err: "widgets.example.com has no migration under way; kubectl concord migrate widgets.example.com asks for one"},
		"a built-in one beside stock kube-apiservers, which Concord may not migrate by itself": {args: widgets, what: paused(true), lists: map[string]string{states: strings.ReplaceAll(state, `["example.com/v1"]`, `["example.com/v1", "example.com/v2"]`)},
			err: "widgets.example.com has no migration under way; kubectl concord migrate widgets.example.com asks for one"},
		"one that servers do not agree on": {args: widgets, what: paused(true), lists: map[string]string{states: state, "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions": `{"metadata": {"name": "example.com.widgets"},
			"status": {"storageVersions": [{"apiServerID": "a", "encodingVersion": "example.com/v1", "decodableVersions": ["example.com/v1"]}, {"apiServerID": "b", "encodingVersion": "example.com/v2", "decodableVersions": ["example.com/v2"]}]}}`},
			err: "widgets.example.com has no migration under way; kubectl concord migrate widgets.example.com asks for one"},
		"one of both is taken back": {widgets, []string{own, asked}, change{done: "cancelled", remove: true}, "", "widgets.example.com: cancelled: migration asked\nwidgets.example.com: not cancelled: " + kept + "\n", "", nil, []string{"asked"}, nil},
		"none is":                   {widgets, []string{own}, change{done: "cancelled", remove: true}, "", "", kept, nil, nil, nil},
		"one that was handed on":    {widgets, []string{`{"name": "own", "uid": "o", "annotations": {"concord.dev/attempt": "1"}}`}, change{done: "cancelled", remove: true}, "", "", kept, nil, nil, nil},
		"none is, for two reasons":  {widgets, []string{asked, own}, change{done: "cancelled", remove: true}, "asked", "", "delete migration asked: " + refused + "\n" + kept, nil, nil, nil},
		"one resource of three is": {[]string{"gears.example.com", "widgets.example.com", "gizmos.example.com"}, []string{asked}, paused(false), "", "widgets.example.com: resumed: migration asked\n",
			fmt.Sprintf("%q: %s\n%q: %s", "gears.example.com", migrating.NobodyLooks, "gizmos.example.com", migrating.NobodyLooks), []string{"asked"}, nil, nil},
		"one is resumed": {widgets, []string{own, asked}, paused(false), "own", "widgets.example.com: resumed: migration asked\n", "migration own: " + refused, []string{"asked"}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var wrote, deleted []string
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				w.Header().Set("Content-Type", "application/json")
				const list = "/apis/migration.k8s.io/v1alpha1/storageversionmigrations"
				switch m := strings.TrimPrefix(r.URL.Path, list+"/"); {
				case r.URL.Path == list:
					var items []string
					for _, metadata := range test.migrations {
						items = append(items, `{"metadata": `+metadata+`, "spec": {"paused": true, "resource": {"group": "example.com", "resource": "widgets"}}}`)
					}
					_, _ = fmt.Fprintf(w, `{"items": [%s]}`, strings.Join(items, ",")) // an error means that the client has gone
				case test.lists[r.URL.Path] != "":
					_, _ = fmt.Fprintf(w, `{"items": [%s]}`, test.lists[r.URL.Path])
				case m == r.URL.Path:
					http.NotFound(w, r)
				case m == test.forbids:
					w.WriteHeader(http.StatusForbidden)
					_, _ = fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": %q}`, refused)
				default:
					if r.Method == http.MethodDelete {
						deleted = append(deleted, m)
					} else {
						wrote = append(wrote, m)
					}
					_, _ = fmt.Fprintf(w, `{"kind": "StorageVersionMigration", "apiVersion": "migration.k8s.io/v1alpha1", "metadata": {"name": %q},
						"spec": {"resource": {"group": "example.com", "resource": "widgets"}}}`, m)
				}
			}))
			defer api.Close()
			var out strings.Builder
			err := pluginOf(t, api.URL).change(t.Context(), &out, test.args, test.what, false)
			if said := fmt.Sprint(err); out.String() != test.out || (err != nil || test.err != "") && said != test.err || !slices.Equal(wrote, test.wrote) || !slices.Equal(deleted, test.deleted) {
				t.Errorf("it says\n%s%v\nand wrote %q and deleted %q", out.String(), err, wrote, deleted)
			}
		})
	}
}
