package owncrds

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
)

// gadgets returns a definition of a revision, empty for none, that allows these phases.
func gadgets(revision string, phases ...string) *apiextensionsv1.CustomResourceDefinition {
	phase := apiextensionsv1.JSONSchemaProps{Type: "string"}
	for _, p := range phases {
		phase.Enum = append(phase.Enum, apiextensionsv1.JSON{Raw: []byte(`"` + p + `"`)})
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = "gadgets.concord.dev"
	if revision != "" {
		crd.Annotations = map[string]string{RevisionAnnotation: revision}
	}
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Schema: &apiextensionsv1.CustomResourceValidation{
		OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"phase": phase}},
	}}}
	return crd
}

// TestNeverBack: a definition of a higher revision is left as it is, whatever differs in it; every other one is brought up to
// date, with its annotation.
func TestNeverBack(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	ours := gadgets("2", "a", "b")
	for name, test := range map[string]struct {
		have *apiextensionsv1.CustomResourceDefinition
		left bool
	}{
		"none":                                 {nil, false},
		"ours":                                 {gadgets("2", "a", "b"), true},
		"an older one":                         {gadgets("1", "a"), false},
		"a newer one":                          {gadgets("3", "a", "b", "c"), true},
		"a newer one that allows less":         {gadgets("10", "a"), true},
		"one without a revision":               {gadgets("", "a"), false},
		"ours, but for the annotation":         {gadgets("", "a", "b"), false},
		"ours, overwritten by an older server": {gadgets("2", "a"), false},
		"ours, overwritten by a laxer one":     {gadgets("2", "a", "b", "c"), false},
		"one with a revision of no number":     {gadgets("new", "a"), false},
	} {
		objects := fake.NewClientBuilder().WithScheme(scheme)
		want := ours
		if test.have != nil {
			apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(test.have) // as an API server does
			objects = objects.WithObjects(test.have.DeepCopy())
		}
		if test.left {
			want = test.have
		}
		c := objects.Build()
		var before, now apiextensionsv1.CustomResourceDefinition
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(ours), &before); client.IgnoreNotFound(err) != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := Install(t.Context(), c, []*apiextensionsv1.CustomResourceDefinition{ours.DeepCopy()}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(ours), &now); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if written := now.ResourceVersion != before.ResourceVersion; written == test.left {
			t.Errorf("%s: it was written: %v", name, written)
		}
		if !equality.Semantic.DeepEqual(now.Spec, want.Spec) || revision(&now) != revision(want) {
			t.Errorf("%s: it has revision %d with %s", name, revision(&now), now.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["phase"].Enum)
		}
	}
}

// TestRevisions: the revision of a definition was increased with each change of its spec. testdata/revisions.txt has a line
// for each revision that ever was, and is only added to.
func TestRevisions(t *testing.T) {
	const file = "testdata/revisions.txt"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, crd := range append(migrationv1alpha1.CRDs(), versionv1alpha1.CRDs()...) {
		spec, err := json.Marshal(crd.Spec)
		if err != nil {
			t.Fatal(err)
		}
		of := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !strings.HasPrefix(line, crd.Name+" ") })
		line := fmt.Sprintf("%s %d %x", crd.Name, revision(crd), sha256.Sum256(spec))
		switch {
		case len(of) > 0 && of[len(of)-1] == line && revision(crd) == len(of):
		case revision(crd) == len(of)+1:
			t.Errorf("add the new revision to the end of %s: %s", file, line)
		default:
			t.Errorf("the spec of %s is not that of its revision %d: increase the revision, the annotation %s of its manifest, to %d", crd.Name, revision(crd), RevisionAnnotation, len(of)+1)
		}
	}
}
