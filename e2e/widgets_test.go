package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

// The custom resource of the tests: two versions that differ in nothing but their names.
const widgetGroup = "e2e.concord.dev"

var (
	widgets   = schema.GroupResource{Group: widgetGroup, Resource: "widgets"}
	policies  = load.Policies().GroupResource()
	widgetsV1 = load.Custom(widgets.WithVersion("v1"), "Widget", metav1.NamespaceDefault)

	policyV1      = agree.Encoding("admissionregistration.k8s.io/v1")
	policyV1beta1 = agree.Encoding("admissionregistration.k8s.io/v1beta1")
)

func widgetEncoding(version string) agree.Encoding {
	return agree.Encoding(widgetGroup + "/" + version)
}

// widgetCRD returns the CRD with the version that is stored.
func widgetCRD(storage string) *apiextensionsv1.CustomResourceDefinition {
	return widgetLike(widgets, storage)
}

// widgetLike returns such a CRD of another resource.
func widgetLike(gr schema.GroupResource, storage string) *apiextensionsv1.CustomResourceDefinition {
	crd := cluster.Definition(gr, storage)
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{
			Type:       "object",
			Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"text": text, "padding": text}}},
		}
	}
	return crd
}

// createWidgets makes the CRD and waits until every server serves it.
func createWidgets(t *testing.T, storage string, servers ...*cluster.Server) {
	t.Helper()
	createCRD(t, widgetCRD(storage), servers...)
}

// createCRD makes a CRD whose versions are v1 and v2 and waits until every server serves it.
func createCRD(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, servers ...*cluster.Server) {
	t.Helper()
	must(t, servers[0].Objects().Create(t.Context(), crd))
	for _, s := range servers {
		cluster.Eventually(t, time.Minute, s.Name+" serves the custom resource", func(ctx context.Context) error {
			_, err := s.Dynamic().Resource(schema.ParseGroupResource(crd.Name).WithVersion("v2")).List(ctx, metav1.ListOptions{Limit: 1})
			return err
		})
	}
}

// storeWidgetsIn changes the CRD's storage version.
func storeWidgetsIn(t *testing.T, s *cluster.Server, version string) {
	t.Helper()
	storeIn(t, s, widgets, version)
}

// storeIn changes the storage version of a custom resource.
func storeIn(t *testing.T, s *cluster.Server, gr schema.GroupResource, version string) {
	t.Helper()
	must(t, cluster.ChangeDefinition(t.Context(), s.Objects(), gr.String(), cluster.Store(version)))
}

// fill creates n objects of the resource through a server.
func fill(t *testing.T, s *cluster.Server, resource load.Resource, n int) {
	t.Helper()
	must(t, load.Fill(t.Context(), load.Endpoint{Name: s.Name, Client: s.Dynamic()}, resource, "fill", n))
}

// wantEncoding fails unless all stored objects of the resource, and at least so many, are
// in the encoding.
func wantEncoding(t *testing.T, c *cluster.Cluster, gr schema.GroupResource, encoding agree.Encoding, atLeast int) {
	t.Helper()
	if err := encodedAs(c, gr, encoding, atLeast); err != nil {
		t.Error(err)
	}
}

func encodedAs(c *cluster.Cluster, gr schema.GroupResource, encoding agree.Encoding, atLeast int) error {
	found := c.Encodings(gr)
	if found[encoding] < atLeast || len(found) != 1 {
		return fmt.Errorf("objects of %s are stored as %v, want at least %d, all in %s", gr, found, atLeast, encoding)
	}
	return nil
}
