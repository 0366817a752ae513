package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/status"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// BenchmarkStatus reads and shows a cluster with 1,000 CustomResourceDefinitions, of 20 KiB
// each, over HTTP: what the plugin does itself, without what an API server takes to list them.
//
//	go test ./cmd/kubectl-concord -run '^$' -bench Status
func BenchmarkStatus(b *testing.B) {
	const definitions = 1000
	var crds, versions, states []any
	for i := range definitions {
		plural := fmt.Sprintf("things%d", i)
		crds = append(crds, map[string]any{
			"metadata": map[string]any{"name": plural + ".example.com"},
			"spec": map[string]any{
				"group": "example.com", "names": map[string]any{"plural": plural, "kind": "Thing"},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"description": strings.Repeat("x", 20<<10)}}},
			},
			"status": map[string]any{"storedVersions": []string{"v1"}},
		})
		versions = append(versions, map[string]any{
			"metadata": map[string]any{"name": "example.com." + plural, "uid": "u", "annotations": map[string]string{"concord.dev/epoch": "1", "concord.dev/encoding-epochs": `{"example.com/v1":1}`}},
			"status": map[string]any{
				"commonEncodingVersion": "example.com/v1",
				"storageVersions":       []any{map[string]any{"apiServerID": "apiserver-0", "encodingVersion": "example.com/v1", "decodableVersions": []string{"example.com/v1"}}},
			},
		})
		state := migrationv1alpha1.StorageState{}
		state.Name = plural + ".example.com"
		state.Spec.Resource = migrationv1alpha1.GroupResource{Group: "example.com", Resource: plural}
		v1 := agree.Encoding("example.com/v1")
		migrationv1alpha1.SetState(&state, evolve.State{Of: evolve.Ref{UID: "u", Epoch: 1}, Stored: []agree.Encoding{v1}, Current: v1}, "Thing")
		states = append(states, state)
	}
	mux := http.NewServeMux()
	for path, items := range map[string][]any{
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions":    crds,
		"/apis/internal.apiserver.k8s.io/v1alpha1/storageversions":   versions,
		"/apis/migration.k8s.io/v1alpha1/storagestates":              states,
		"/apis/migration.k8s.io/v1alpha1/storageversionmigrations":   {},
		"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases": {},
	} {
		answer, err := json.Marshal(map[string]any{"items": items})
		if err != nil {
			b.Fatal(err)
		}
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(answer) // the client is gone
		})
	}
	server := httptest.NewServer(mux)
	defer server.Close()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: server.URL}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "c"
	file := filepath.Join(b.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		b.Fatal(err)
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}
	c, err := (&plugin{flags: clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)}).cluster()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		o, err := c.observe(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if now := status.Of(o); now.Counts.Settled != definitions || now.Text(status.Style{Width: 80}) == "" {
			b.Fatalf("it shows %+v", now.Counts)
		}
	}
}
