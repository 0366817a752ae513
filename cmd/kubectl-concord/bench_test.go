package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	e2e "github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/status"
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

// definition returns a CustomResourceDefinition with 200 properties, a schema of about 20 KiB.
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
