package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/concord-dev/concord/status"
)

// TestStuck: a revert gives up at once for a problem that keeps its migration from going on, after settleTime for
// one that may pass by itself, and never for others, such as a server that is not ready.
func TestStuck(t *testing.T) {
	for _, test := range []struct {
		kinds        []status.Kind
		soon, atLast bool
	}{
		{nil, false, false},
		{[]status.Kind{status.NotReady}, false, false},
		{[]status.Kind{status.Idle}, false, true},
		{[]status.Kind{status.StockAnswered}, false, false},
		{[]status.Kind{status.NotReady, status.StockAnswered, status.Disagreement}, false, true},
		{[]status.Kind{status.Disagreement}, false, true},
		{[]status.Kind{status.DeadServer}, false, true},
		{[]status.Kind{status.LateServer}, false, false},
		{[]status.Kind{status.NoneRenews}, false, true},
		{[]status.Kind{status.Held}, false, true},
		{[]status.Kind{status.Stalled}, false, true},
		{[]status.Kind{status.Waiting}, false, true},
		{[]status.Kind{status.NotReady, status.BadObjects}, true, true},
		{[]status.Kind{status.WebhookDown}, true, true},
		{[]status.Kind{status.MigrationFailed}, true, true},
		{[]status.Kind{status.Paused}, true, true},
		{[]status.Kind{status.StockServer}, true, true},
		{[]status.Kind{status.SilentServer}, true, true},
	} {
		var a status.Answer
		for _, kind := range test.kinds {
			a.Problems = append(a.Problems, status.Problem{Kind: kind})
		}
		if soon, atLast := stuck(a, time.Second), stuck(a, settleTime+time.Second); soon != test.soon || atLast != test.atLast {
			t.Errorf("%v: stuck %t at first and %t later, want %t and %t", test.kinds, soon, atLast, test.soon, test.atLast)
		}
	}
}

// TestRevertAfterFailure: a revert does not give up because of a migration that failed while the revert counted the
// objects, that is, before it changed the CustomResourceDefinition.
func TestRevertAfterFailure(t *testing.T) {
	var mu sync.Mutex
	var counted, changed bool
	looks := 0 // number of reads of StorageStates since the definition was changed
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		storage, persisted, hashes, stored := "v2", `"example.com/v1", "example.com/v2"`, `"h", "h"`, `"v1", "v2"`
		if changed {
			storage = "v1"
		}
		if looks > 1 {
			persisted, hashes, stored = `"example.com/v1"`, `"h"`, `"v1"`
		}
		metadata := `"metadata": {"name": "widgets.example.com", "uid": "u"}`
		crd := fmt.Sprintf(`{"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1", %s,
			"spec": {"group": "example.com", "names": {"plural": "widgets", "kind": "Widget"}, "versions": [{"name": "v1", "served": true, "storage": %t}, {"name": "v2", "served": true, "storage": %t}]},
			"status": {"storedVersions": [%s]}}`, metadata, storage == "v1", storage == "v2", stored)
		w.Header().Set("Content-Type", "application/json")
		answer := ""
		switch path := r.URL.Path; {
		case path == "/apis/apiextensions.k8s.io/v1/customresourcedefinitions" && strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList"):
			answer = `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": [{` + metadata + `}]}`
		case path == "/apis/apiextensions.k8s.io/v1/customresourcedefinitions":
			answer = `{"items": [` + crd + `]}`
		case path == "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com":
			changed = changed || r.Method == http.MethodPut
			answer = crd
		case path == "/apis/migration.k8s.io/v1alpha1/storagestates":
			if changed {
				looks++
			}
			answer = fmt.Sprintf(`{"items": [{%s, "spec": {"resource": {"group": "example.com", "resource": "widgets"}},
				"status": {"currentEncoding": "example.com/%s", "currentStorageVersionHash": "h", "persistedEncodings": [%s], "persistedStorageVersionHashes": [%s], "storageVersionUID": "u", "epoch": 1}}]}`,
				metadata, storage, persisted, hashes)
		case path == "/apis/migration.k8s.io/v1alpha1/storageversionmigrations":
			condition := ""
			if counted {
				condition = `{"type": "Failed", "status": "True", "reason": "VersionNotServed", "message": "v3 is not served"}`
			}
			answer = `{"items": [{"metadata": {"name": "asked", "uid": "m"}, "spec": {"resource": {"group": "example.com", "version": "v3", "resource": "widgets"}}, "status": {"conditions": [` + condition + `]}}]}`
		default:
			counted = counted || strings.Contains(path, "census")
			http.NotFound(w, r)
		}
		_, _ = w.Write([]byte(answer)) // an error means that the client has gone
	}))
	defer api.Close()
	var out strings.Builder
	err := pluginOf(t, api.URL).revert(t.Context(), &out, "widgets.example.com", revertOptions{to: "v1", yes: true})
	if err != nil || !counted || !strings.HasSuffix(out.String(), "widgets.example.com: every object is in v1\n") {
		t.Errorf("%v; counted %t; it printed\n%s", err, counted, out.String())
	}
}
