package v1alpha1

import (
	"context"
	"maps"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource/tableconvertor"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

func internal(t *testing.T) *apiextensions.CustomResourceDefinition {
	t.Helper()
	crd := CRDs()[0]
	apiextensionsv1.SetDefaults_CustomResourceDefinition(crd)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	out := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, out, nil); err != nil {
		t.Fatal(err)
	}
	out.Status.StoredVersions = []string{SchemeGroupVersion.Version}
	return out
}

func schemas(t *testing.T) (*apiextensions.CustomResourceValidation, *structuralschema.Structural) {
	t.Helper()
	v, err := apiextensions.GetSchemaForVersion(internal(t), SchemeGroupVersion.Version)
	if err != nil {
		t.Fatal(err)
	}
	s, err := structuralschema.NewStructural(v.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	return v, s
}

// validate runs the schema and the CEL rules, as the API server does.
func validate(t *testing.T, obj map[string]any) string {
	t.Helper()
	v, s := schemas(t)
	validator, _, err := schemavalidation.NewSchemaValidator(v.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	errs := schemavalidation.ValidateCustomResource(nil, obj, validator)
	more, _ := cel.NewValidator(s, true, celconfig.PerCallLimit).Validate(context.Background(), field.NewPath(""), s, obj, nil, celconfig.RuntimeCELCostBudget)
	if problems := append(errs, more...).ToAggregate(); problems != nil {
		return problems.Error()
	}
	return ""
}

func object(t *testing.T, cluster *ClusterVersion) map[string]any {
	t.Helper()
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cluster)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// full returns a ClusterVersion with a value in every field.
func full() *ClusterVersion {
	cluster := &ClusterVersion{ObjectMeta: metav1.ObjectMeta{Name: ClusterVersionName}}
	cluster.Status = ClusterVersionStatus{
		ServerCount: 2, OldestEmulation: "1.36", NewestEmulation: "1.37",
		Servers: []ServerVersion{
			{ID: "apiserver-a", Binary: "1.37", Emulation: "1.36", MinCompatibility: "1.35"},
			{ID: "apiserver-b", Binary: "1.37", Emulation: "1.37", MinCompatibility: "1.36"},
		},
		Conditions: []metav1.Condition{
			{Type: ConditionVersionsAgree, Status: metav1.ConditionFalse, Reason: ReasonDifferent, Message: "m", LastTransitionTime: metav1.Now(), ObservedGeneration: 1},
			{Type: ConditionSkewAllowed, Status: metav1.ConditionTrue, Reason: ReasonWithinAllowance, LastTransitionTime: metav1.Now()},
		},
	}
	return cluster
}

func TestCRDIsValid(t *testing.T) {
	crd := internal(t)
	for _, err := range validation.ValidateCustomResourceDefinition(context.Background(), crd) {
		t.Error(err)
	}
	if got, want := crd.Name, ClusterVersions.String(); got != want {
		t.Errorf("name %s, want %s", got, want)
	}
	if v := CRDs()[0].Spec.Versions[0]; v.Name != SchemeGroupVersion.Version || v.Subresources.Status == nil || CRDs()[0].Spec.Scope != apiextensionsv1.ClusterScoped {
		t.Errorf("%s is not cluster-scoped with a status subresource", v.Name)
	}
	CRDs()[0].Name = "changed"
	if CRDs()[0].Name == "changed" {
		t.Error("CRDs returns what another caller changed")
	}
}

// TestSchema: the schema keeps every field of the type, accepts an object without status, and
// refuses an object with another name.
func TestSchema(t *testing.T) {
	obj := object(t, full())
	if problem := validate(t, obj); problem != "" {
		t.Error(problem)
	}
	_, s := schemas(t)
	if pruned := pruning.PruneWithOptions(obj, s, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}); len(pruned) > 0 {
		t.Errorf("the schema lacks %v", pruned)
	}
	if problem := validate(t, object(t, &ClusterVersion{ObjectMeta: metav1.ObjectMeta{Name: ClusterVersionName}})); problem != "" {
		t.Errorf("without status: %s", problem)
	}
	if problem := validate(t, object(t, &ClusterVersion{ObjectMeta: metav1.ObjectMeta{Name: "second"}})); !strings.Contains(problem, `metadata.name must be "cluster"`) {
		t.Errorf("another name: %q", problem)
	}
}

// TestColumns checks the columns that kubectl get shows.
func TestColumns(t *testing.T) {
	convertor, err := tableconvertor.New(CRDs()[0].Spec.Versions[0].AdditionalPrinterColumns)
	if err != nil {
		t.Fatal(err)
	}
	table, err := convertor.ConvertToTable(context.Background(), &unstructured.Unstructured{Object: object(t, full())}, nil)
	if err != nil {
		t.Fatal(err)
	}
	cells := map[string]any{}
	for i, column := range table.ColumnDefinitions {
		cells[column.Name] = table.Rows[0].Cells[i]
	}
	delete(cells, "Age")
	if want := map[string]any{
		"Name": "cluster", "Servers": int64(2), "Oldest": "1.36", "Newest": "1.37",
		"Versions-Agree": "False", "Skew-Allowed": "True", "Message": "",
	}; !maps.Equal(cells, want) {
		t.Errorf("cells %v, want %v", cells, want)
	}
}
