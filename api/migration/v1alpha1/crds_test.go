package v1alpha1

import (
	"context"
	"encoding/json"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/evolve"
)

func crd(t *testing.T, kind string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	for _, crd := range CRDs() {
		if crd.Spec.Names.Kind == kind {
			return crd
		}
	}
	t.Fatalf("no CRD for %s", kind)
	return nil
}

func internal(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	t.Helper()
	apiextensionsv1.SetDefaults_CustomResourceDefinition(crd)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	out := &apiextensions.CustomResourceDefinition{}
	must(t, apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, out, nil))
	out.Status.StoredVersions = []string{SchemeGroupVersion.Version}
	return out
}

func structural(t *testing.T, kind string) *structuralschema.Structural {
	t.Helper()
	v, err := apiextensions.GetSchemaForVersion(internal(t, crd(t, kind)), SchemeGroupVersion.Version)
	must(t, err)
	s, err := structuralschema.NewStructural(v.OpenAPIV3Schema)
	must(t, err)
	return s
}

func TestCRDsAreValid(t *testing.T) {
	for _, crd := range CRDs() {
		errs := validation.ValidateCustomResourceDefinition(context.Background(), internal(t, crd))
		for _, err := range errs {
			t.Errorf("%s: %v", crd.Name, err)
		}
		if crd.Spec.Scope != apiextensionsv1.ClusterScoped || crd.Spec.Versions[0].Subresources.Status == nil {
			t.Errorf("%s is not cluster-scoped with a status subresource", crd.Name)
		}
	}
}

func TestCRDsAreCopies(t *testing.T) {
	CRDs()[0].Name = "changed"
	if CRDs()[0].Name == "changed" {
		t.Error("CRDs returns what another caller changed")
	}
}

func toUnstructured(t *testing.T, obj runtime.Object) map[string]any {
	t.Helper()
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	must(t, err)
	return u
}

// validate runs the schema and the CEL rules, as the server does on create and update.
func validate(t *testing.T, kind string, obj, old runtime.Object) string {
	t.Helper()
	v, err := apiextensions.GetSchemaForVersion(internal(t, crd(t, kind)), SchemeGroupVersion.Version)
	must(t, err)
	validator, _, err := schemavalidation.NewSchemaValidator(v.OpenAPIV3Schema)
	must(t, err)
	u := toUnstructured(t, obj)
	errs := schemavalidation.ValidateCustomResource(nil, u, validator)
	rules := cel.NewValidator(structural(t, kind), true, celconfig.PerCallLimit)
	var oldObj any
	if old != nil {
		oldObj = toUnstructured(t, old)
	}
	more, _ := rules.Validate(context.Background(), field.NewPath(""), structural(t, kind), u, oldObj, celconfig.RuntimeCELCostBudget)
	if problems := append(errs, more...).ToAggregate(); problems != nil {
		return problems.Error()
	}
	return ""
}

func TestStateName(t *testing.T) {
	for _, test := range []struct {
		name  string
		gr    schema.GroupResource
		valid bool
	}{
		{name: "cronjobs.batch", gr: schema.GroupResource{Group: "batch", Resource: "cronjobs"}, valid: true},
		{name: "configmaps", gr: schema.GroupResource{Resource: "configmaps"}, valid: true},
		{name: "batch.cronjobs", gr: schema.GroupResource{Group: "batch", Resource: "cronjobs"}},
		{name: "configmaps.core", gr: schema.GroupResource{Resource: "configmaps"}},
		{name: "jobs.batch", gr: schema.GroupResource{Group: "batch", Resource: "cronjobs"}},
	} {
		state := &StorageState{
			ObjectMeta: metav1.ObjectMeta{Name: test.name},
			Spec:       StorageStateSpec{Resource: GroupResource{Group: test.gr.Group, Resource: test.gr.Resource}},
		}
		problem := validate(t, "StorageState", state, nil)
		if test.valid != (problem == "") {
			t.Errorf("%s for %v: %q", test.name, test.gr, problem)
		}
		if !test.valid && !strings.Contains(problem, `metadata.name must be "<spec.resource.resource>.<spec.resource.group>"`) {
			t.Errorf("%s for %v: the message does not help: %q", test.name, test.gr, problem)
		}
		if test.valid && StateName(test.gr) != test.name {
			t.Errorf("StateName(%v) = %s", test.gr, StateName(test.gr))
		}
	}
}

func TestResourceIsImmutable(t *testing.T) {
	old := &StorageVersionMigration{Spec: StorageVersionMigrationSpec{Resource: GroupVersionResource{Group: "batch", Version: "v1", Resource: "cronjobs"}}}
	if problem := validate(t, "StorageVersionMigration", old, old); problem != "" {
		t.Errorf("no change: %s", problem)
	}
	changed := old.DeepCopy()
	changed.Spec.Resource.Resource = "jobs"
	if problem := validate(t, "StorageVersionMigration", changed, old); !strings.Contains(problem, "spec.resource is immutable") {
		t.Errorf("another resource: %q", problem)
	}
}

// TestSchemaTakesWhatDecodes: the schema of the CRD refuses every value that Go's types cannot
// decode. One such object in etcd would make every list of the resource fail, in every server.
func TestSchemaTakesWhatDecodes(t *testing.T) {
	for _, test := range []struct {
		path  string
		value any
		taken bool
	}{
		{"spec.maxAddedLatency", "5ms", true},
		{"spec.maxAddedLatency", "1.5h", true},
		{"spec.maxAddedLatency", "24h", true},
		{"spec.maxAddedLatency", "24h1ns", false},
		{"spec.maxAddedLatency", "9999999h", false},
		{"spec.maxAddedLatency", "99999999999999999999ns", false},
		{"spec.maxAddedLatency", "-5ms", false},
		{"spec.maxAddedLatency", "5", false},
		{"spec.maxObjectsPerSecond", int64(1 << 40), true},
		{"spec.maxObjectsPerSecond", 1e30, false},
		{"spec.maxObjectsPerSecond", 1.5, false},
		{"spec.paused", "yes", false},
	} {
		object := map[string]any{"spec": map[string]any{"resource": map[string]any{"resource": "secrets"}}}
		must(t, unstructured.SetNestedField(object, test.value, strings.Split(test.path, ".")...))
		problem := validate(t, "StorageVersionMigration", &unstructured.Unstructured{Object: object}, nil)
		if (problem == "") != test.taken {
			t.Errorf("%s %v: %q", test.path, test.value, problem)
		}
		text, err := json.Marshal(object)
		must(t, err)
		if err := json.Unmarshal(text, &StorageVersionMigration{}); err != nil && test.taken {
			t.Errorf("%s %v is taken, and does not decode: %v", test.path, test.value, err)
		}
	}
}

// TestSchemasKeepAllFields asserts that the schemas prune nothing that the types hold.
func TestSchemasKeepAllFields(t *testing.T) {
	state := &StorageState{Spec: StorageStateSpec{Resource: GroupResource{Group: "batch", Resource: "cronjobs"}}}
	state.Name = "cronjobs.batch"
	SetState(state, evolve.State{Of: evolve.Ref{UID: "u", Epoch: 7}, Stored: []agree.Encoding{"batch/v1"}, Current: "batch/v1", Heartbeat: metav1.Now().Time}, "CronJob")
	migration := &StorageVersionMigration{
		Spec: StorageVersionMigrationSpec{Resource: GroupVersionResource{Group: "batch", Version: "v1", Resource: "cronjobs"}, ContinueToken: "c"},
		Status: StorageVersionMigrationStatus{
			Progress: &MigrationProgress{Total: 4, Done: 2, Failed: 1, ObjectsPerSecond: 9},
			Failures: []MigrationFailure{{Namespace: "n", Name: "o", Message: "m"}},
		},
	}
	SetCondition(migration, MigrationRunning, ReasonRewriting, "m", metav1.Now())
	for kind, obj := range map[string]runtime.Object{"StorageState": state, "StorageVersionMigration": migration} {
		if problem := validate(t, kind, obj, nil); problem != "" {
			t.Errorf("%s: %s", kind, problem)
		}
		pruned := pruning.PruneWithOptions(toUnstructured(t, obj), structural(t, kind), true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
		if len(pruned) > 0 {
			t.Errorf("%s: the schema lacks %v", kind, pruned)
		}
	}
	// A StorageState that was just created has no status yet, and must be accepted, too.
	state.Status = StorageStateStatus{}
	if problem := validate(t, "StorageState", state, nil); problem != "" {
		t.Errorf("state without status: %s", problem)
	}
}

func TestColumns(t *testing.T) {
	migration := &StorageVersionMigration{Spec: StorageVersionMigrationSpec{Resource: GroupVersionResource{Group: "batch", Version: "v1", Resource: "cronjobs"}}}
	migration.Name = "m"
	SetTarget(migration, evolve.Target{Ref: evolve.Ref{UID: "u", Epoch: 3}, Encoding: "batch/v1"})
	SetCondition(migration, MigrationRunning, ReasonRewriting, "m", metav1.Now())
	SetCondition(migration, MigrationSucceeded, ReasonSucceeded, "m", metav1.Now())
	migration.Status.Progress = &MigrationProgress{Total: 4, Done: 3, Failed: 1}
	got := row(t, "StorageVersionMigration", migration)
	for column, want := range map[string]any{"Resource": "cronjobs", "Encoding": "batch/v1", "Phase": "Succeeded", "Done": int64(3), "Total": int64(4), "Failed": int64(1)} {
		if got[column] != want {
			t.Errorf("column %s: %v, want %v", column, got[column], want)
		}
	}
	state := &StorageState{}
	view := evolve.State{Stored: []agree.Encoding{"batch/v1beta1", "batch/v1"}, Current: "batch/v1"}
	state.Annotations = Copies(view)
	SetState(state, view, "CronJob")
	got = row(t, "StorageState", state)
	for column, want := range map[string]any{"Stored": "batch/v1beta1,batch/v1", "Current": "batch/v1"} {
		if got[column] != want {
			t.Errorf("column %s: %v, want %v", column, got[column], want)
		}
	}
}

func row(t *testing.T, kind string, obj runtime.Object) map[string]any {
	t.Helper()
	convertor, err := tableconvertor.New(crd(t, kind).Spec.Versions[0].AdditionalPrinterColumns)
	must(t, err)
	table, err := convertor.ConvertToTable(context.Background(), &unstructured.Unstructured{Object: toUnstructured(t, obj)}, nil)
	must(t, err)
	cells := map[string]any{}
	for i, column := range table.ColumnDefinitions {
		cells[column.Name] = table.Rows[0].Cells[i]
	}
	return cells
}

// must ends the test if err is not nil.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
