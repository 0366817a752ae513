package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/concord-dev/concord/agree"
	e2e "github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/status"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// definitions is how many CustomResourceDefinitions the benchmarks have.
const definitions = 1000

// BenchmarkStatusOfServer runs the plugin, as people do, on a server that runs and has 1,000
// CustomResourceDefinitions: the time from its start to its end.
//
//	go test ./cmd/kubectl-concord -run '^$' -bench StatusOfServer
func BenchmarkStatusOfServer(b *testing.B) {
	program := buildPlugin(b)
	server := e2e.New(b).Start(e2e.Options{}, "one")[0]
	var creating errgroup.Group
	creating.SetLimit(8)
	for i := range definitions {
		creating.Go(func() error { return server.Objects().Create(b.Context(), definition(fmt.Sprintf("things%d", i))) })
	}
	must(b, creating.Wait())
	run := func(args ...string) []byte {
		out, err := exec.Command(program, append(args, "--kubeconfig", server.Kubeconfig())...).Output()
		if err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		return out
	}
	err := wait.PollUntilContextTimeout(b.Context(), time.Second, patience, true, func(context.Context) (bool, error) {
		var now struct {
			Resources status.Counts `json:"resources"`
		}
		err := json.Unmarshal(run("status", "-o", "json"), &now)
		return now.Resources.Settled > definitions, err
	})
	if err != nil {
		b.Fatalf("the definitions are not all reported: %v", err)
	}
	for b.Loop() {
		run("status")
	}
}

// definition is one with a schema of 20 KiB, of 200 properties.
func definition(plural string) *apiextensionsv1.CustomResourceDefinition {
	properties := map[string]apiextensionsv1.JSONSchemaProps{}
	for i := range 200 {
		properties[fmt.Sprintf("property%d", i)] = apiextensionsv1.JSONSchemaProps{Type: "string", Description: strings.Repeat("x", 60)}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: plural[:5] + plural[6:], Kind: "T" + plural[1:], ListKind: "T" + plural[1:] + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties},
			}}},
		},
	}
}

// BenchmarkStatus reads and shows a cluster with 1,000 CustomResourceDefinitions, of which it needs
// only the metadata, over HTTP: the plugin's own work, without the time that an API server takes to list them.
//
//	go test ./cmd/kubectl-concord -run '^$' -bench Status
func BenchmarkStatus(b *testing.B) {
	var crds, versions, states []any
	for i := range definitions {
		plural := fmt.Sprintf("things%d", i)
		crds = append(crds, map[string]any{"metadata": map[string]any{"name": plural + ".example.com"}})
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
		list := map[string]any{"items": items}
		if strings.HasSuffix(path, "/customresourcedefinitions") {
			list["kind"], list["apiVersion"] = "PartialObjectMetadataList", "meta.k8s.io/v1"
		}
		answer, err := json.Marshal(list)
		must(b, err)
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
	must(b, clientcmd.WriteToFile(*config, file))
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}
	c, err := (&plugin{flags: clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)}).cluster()
	must(b, err)
	for b.Loop() {
		o, err := c.glance(b.Context())
		must(b, err)
		if now := status.Of(o); now.Counts.Settled != definitions || now.Text(status.Style{Width: 80}) == "" {
			b.Fatalf("it shows %+v", now.Counts)
		}
	}
}
