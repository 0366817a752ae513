package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/census"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/embedded"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/server/planning"
	"github.com/concord-dev/concord/verdict"
)

const admission = "admissionregistration.k8s.io"

var (
	policies = schema.GroupResource{Group: admission, Resource: "mutatingadmissionpolicies"}
	widgets  = schema.GroupResource{Group: "example.com", Resource: "widgets"}
)

// judged runs the command and returns its report, if it printed one, its exit code and its error.
func judged(t *testing.T, args ...string) (report struct {
	Target, Verdict, Covers string
	Warnings                []verdict.Warning
	Resources               []struct {
		Resource, Verdict, Reason string
		Stored                    []string
	}
}, code int, err error) {
	t.Helper()
	out, err := runPreflight(t, append(args, "-o", "json")...)
	if out != "" {
		requireNoError(t, json.Unmarshal([]byte(out), &report))
	}
	return report, exitCode(err), err
}

func runPreflight(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := newPreflightCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// exitCode is the exit code that main makes of an error.
func exitCode(err error) int {
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
		return 0
	case errors.As(err, &coded):
		return coded.ExitCode()
	}
	return 1
}

// cluster is the content of a small cluster, with a StorageState for each resource.
type cluster struct {
	states   map[schema.GroupResource]*migrationv1alpha1.StorageState
	versions map[schema.GroupResource]*apiserverinternalv1alpha1.StorageVersion
	crds     []*apiextensionsv1.CustomResourceDefinition
	// censuses are the answers to requests for a census, where a server counts the resource.
	censuses map[schema.GroupResource]census.Resource
	// forbidden is a resource whose census the user may not read; moving is one whose
	// StorageVersion has another epoch at each read.
	forbidden, moving schema.GroupResource
}

// newCluster returns a cluster in which everything is stored as by a server at emulation version
// 1.36, which 1.35 to 1.38 can read, and widgets in two versions.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{
		states:   map[schema.GroupResource]*migrationv1alpha1.StorageState{},
		versions: map[schema.GroupResource]*apiserverinternalv1alpha1.StorageVersion{},
	}
	plan, err := compat.NewPlan(planning.Lifecycles(), compat.Options{Emulation: version.MustParseMajorMinor("1.36")})
	requireNoError(t, err)
	for _, r := range plan.Resources {
		if !r.Storage.Empty() {
			c.set(schema.GroupResource{Group: r.Group, Resource: r.Resource}, agree.Encoding(r.Storage.String()))
		}
	}
	c.set(widgets, "example.com/v1", "example.com/v2")
	crd := &apiextensionsv1.CustomResourceDefinition{TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}}
	crd.Name, crd.Spec.Group, crd.Spec.Names.Plural = widgets.String(), widgets.Group, widgets.Resource
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1"}, {Name: "v2", Storage: true}}
	crd.Status.StoredVersions = []string{"v1", "v2"}
	c.crds = append(migrationv1alpha1.CRDs(), crd)
	for _, gr := range []schema.GroupResource{migrationv1alpha1.StorageStates, migrationv1alpha1.StorageVersionMigrations} {
		c.set(gr, agree.Encoding(migrationv1alpha1.SchemeGroupVersion.String()))
	}
	return c
}

func (c *cluster) set(gr schema.GroupResource, stored ...agree.Encoding) {
	state := &migrationv1alpha1.StorageState{TypeMeta: metav1.TypeMeta{APIVersion: migrationv1alpha1.SchemeGroupVersion.String(), Kind: "StorageState"}}
	state.Name = migrationv1alpha1.StateName(gr)
	migrationv1alpha1.SetState(state, evolve.State{Of: evolve.Ref{UID: "uid", Epoch: 1}, Stored: stored, Current: stored[len(stored)-1]}, "Kind")
	c.states[gr] = state
	sv := &apiserverinternalv1alpha1.StorageVersion{TypeMeta: metav1.TypeMeta{APIVersion: apiserverinternalv1alpha1.SchemeGroupVersion.String(), Kind: "StorageVersion"}}
	sv.Name, sv.UID = storageversion.Name(gr), "uid"
	storageversion.SetHistory(sv, agree.History{Epoch: 1, Last: map[agree.Encoding]int64{stored[len(stored)-1]: 1}})
	c.versions[gr] = sv
}

// values returns what etcd has of the cluster; the keys are without prefix.
func (c *cluster) values(t *testing.T) map[string]string {
	t.Helper()
	values := map[string]string{
		"configmaps/default/a":           `{"apiVersion":"v1","kind":"ConfigMap"}`,
		"mutatingadmissionpolicies/a":    policyIn(admission + "/v1beta1"),
		"example.com/widgets/default/w1": `{"apiVersion":"example.com/v1","kind":"Widget"}`,
		"health":                         "true",
		"ranges/servicenodeports":        `{"apiVersion":"v1","kind":"RangeAllocation"}`,
		"masterleases/127.0.0.1":         `{"apiVersion":"v1","kind":"Endpoints"}`,
		"peerserverleases/apiserver-a":   `{"apiVersion":"v1","kind":"Endpoints"}`,
	}
	for gr, state := range c.states {
		values[stateKey(gr)] = asJSON(t, state)
	}
	for gr, sv := range c.versions {
		values["storageversions/"+storageversion.Name(gr)] = asJSON(t, sv)
	}
	for i, crd := range c.crds {
		value := asJSON(t, crd)
		if i == 0 {
			value = asStored(t, crd)
		}
		values["apiextensions.k8s.io/customresourcedefinitions/"+crd.Name] = value
	}
	return values
}

// asStored encodes a CustomResourceDefinition as servers store it.
func asStored(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) string {
	t.Helper()
	scheme := runtime.NewScheme()
	install.Install(scheme)
	internal := &apiextensions.CustomResourceDefinition{}
	requireNoError(t, scheme.Convert(crd, internal, nil))
	to := protobuf.NewSerializer(scheme, scheme)
	value, err := runtime.Encode(serializer.NewCodecFactory(scheme).EncoderForVersion(to, apiextensionsv1beta1.SchemeGroupVersion), internal)
	requireNoError(t, err)
	return string(value)
}

// withRule returns a CustomResourceDefinition whose schema has a CEL rule.
func withRule(plural, rule string) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: plural + ".example.com"}}
	crd.Spec = apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.com", Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural}, Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
		Name: "v1", Storage: true,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XValidations: apiextensionsv1.ValidationRules{{Rule: rule}}}},
	}}}
	return crd
}

func stateKey(gr schema.GroupResource) string {
	return "migration.k8s.io/storagestates/" + migrationv1alpha1.StateName(gr)
}

func policyIn(encoding string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":"MutatingAdmissionPolicy"}`, encoding)
}

func asJSON(t *testing.T, obj any) string {
	t.Helper()
	value, err := json.Marshal(obj)
	requireNoError(t, err)
	return string(value)
}

// A preflightCase is a release that the command is asked about, and the answer that is expected.
type preflightCase struct {
	to   string // --to, or --back-to a release before 1.37; "1.37" is this binary
	code int
	// reasons are parts of the reasons by resource; "" if the resource is not listed.
	reasons map[string]string
}

// run runs the command, checks its answer, and returns the resources that it calls unsafe.
func (test preflightCase) run(t *testing.T, source ...string) (unsafe []string) {
	t.Helper()
	flag := "--to"
	if test.to < "1.37" {
		flag = "--back-to"
	}
	report, code, err := judged(t, append(source, flag, test.to)...)
	if code != test.code || len(report.Resources) == 0 {
		t.Fatalf("exit %d: %v, want %d", code, err, test.code)
	}
	if err != nil && strings.Contains(err.Error(), "\n") {
		t.Errorf("%q has more than one line", err)
	}
	if want := map[int]string{0: "safe", 1: "unknown", 2: "unsafe"}[code]; report.Verdict != want || code != 0 && report.Resources[0].Verdict != want {
		t.Errorf("verdict %s, first %+v, want %s", report.Verdict, report.Resources[0], want)
	}
	listed := map[string]string{}
	for _, r := range report.Resources {
		listed[r.Resource] = r.Verdict + ": " + r.Reason
		if r.Verdict == "unsafe" {
			unsafe = append(unsafe, r.Resource)
		}
	}
	for resource, want := range test.reasons {
		if got := listed[resource]; !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: got %q, want %q", resource, got, want)
		}
	}
	return unsafe
}

func TestPreflightInEtcd(t *testing.T) {
	dir, err := os.MkdirTemp("", "preflight") // its path is short enough for a Unix socket
	requireNoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	etcd, err := embedded.StartEtcd(t.Context(), dir)
	requireNoError(t, err)
	t.Cleanup(func() { _ = etcd.Close() })
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint}, Logger: zap.NewNop()})
	requireNoError(t, err)
	t.Cleanup(func() { _ = client.Close() })

	v1, v1beta1 := agree.Encoding(admission+"/v1"), agree.Encoding(admission+"/v1beta1")
	cases := map[string]struct {
		change func(c *cluster, values map[string]string) // nil if all is well
		preflightCase
	}{
		"forward": {preflightCase: preflightCase{to: "1.38", code: 0, reasons: map[string]string{
			policies.String(): "safe: decoded by 1.38",
			widgets.String():  "safe: among the versions of its CustomResourceDefinition",
			"configmaps":      "safe: decoded by 1.38",
			"customresourcedefinitions.apiextensions.k8s.io": "safe",
		}}},
		"back":                  {preflightCase: preflightCase{to: "1.35", code: 0}},
		"back before the alpha": {preflightCase: preflightCase{to: "1.34", code: 0, reasons: map[string]string{"storageversionmigrations.storagemigration.k8s.io": "safe: 1.34 has only an alpha version of it, off by default (1.35 has more)"}}},
		"this binary": {preflightCase: preflightCase{to: "1.37", code: 0, reasons: map[string]string{
			policies.String(): "stored as " + admission + "/v1 from then on"}}},
		"back, with a newer version stored": {func(c *cluster, _ map[string]string) { c.set(policies, v1beta1, v1) },
			preflightCase{to: "1.35", code: 2, reasons: map[string]string{policies.String(): "unsafe: 1.35 cannot decode " + admission + "/v1 (introduced in 1.36; none stored, but servers write it)"}}},
		"Unknown, older values": {func(c *cluster, _ map[string]string) { c.set(policies, evolve.Unknown, v1beta1) },
			preflightCase{to: "1.35", code: 0}},
		"Unknown, newer values": {func(c *cluster, v map[string]string) {
			c.set(policies, evolve.Unknown, v1beta1)
			v["mutatingadmissionpolicies/b"] = policyIn(string(v1))
		}, preflightCase{to: "1.35", code: 2, reasons: map[string]string{policies.String(): "(introduced in 1.36; 1 stored)"}}},
		"no state": {func(c *cluster, v map[string]string) {
			delete(c.states, policies)
			v["mutatingadmissionpolicies/b"] = policyIn(admission + "/v1alpha1")
		}, preflightCase{to: "1.38", code: 2, reasons: map[string]string{policies.String(): admission + "/v1alpha1 (removed in 1.38; 1 stored)"}}},
		"a damaged state": {func(_ *cluster, v map[string]string) { v[stateKey(policies)] = "{" },
			preflightCase{to: "1.38", code: 1, reasons: map[string]string{
				policies.String(): "safe", migrationv1alpha1.StorageStates.String(): "unknown: 1 value is unreadable, for whatever release"}}},
		"a newer version remembered, and none stored": {func(c *cluster, _ map[string]string) { c.set(policies, v1, v1beta1) },
			preflightCase{to: "1.35", code: 0, reasons: map[string]string{policies.String(): "safe: decoded by 1.35"}}},
		"nobody serves it any more, and none stored": {func(c *cluster, _ map[string]string) {
			c.set(schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}, evolve.Unknown, "certificates.k8s.io/v1")
			delete(c.versions, schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"})
		}, preflightCase{to: "1.35", code: 0, reasons: map[string]string{"clustertrustbundles.certificates.k8s.io": "safe: nothing is stored"}}},
		"a damaged value, though the stored set is known": {func(_ *cluster, v map[string]string) { v["configmaps/default/torn"] = "{" },
			preflightCase{to: "1.38", code: 1, reasons: map[string]string{"configmaps": "unknown: 1 value is unreadable, for whatever release"}}},
		"a value damaged behind its envelope": {func(_ *cluster, v map[string]string) {
			v["configmaps/default/torn"] = `{"apiVersion":"v1","kind":"ConfigMap","data":7}`
			v["example.com/widgets/default/torn"] = `{"apiVersion":"example.com/v1","kind":"Widget","spec":{"si`
		}, preflightCase{to: "1.38", code: 1, reasons: map[string]string{
			"configmaps": "unknown: 1 value is unreadable, for whatever release", widgets.String(): "unknown: 1 value is unreadable, for whatever release"}}},
		"encrypted values": {func(c *cluster, v map[string]string) {
			c.set(policies, evolve.Unknown)
			v["mutatingadmissionpolicies/a"] = "k8s:enc:aescbc:v1:key1:\x00"
		}, preflightCase{to: "1.38", code: 1, reasons: map[string]string{policies.String(): "unknown: its stored set says Unknown, and 1 value is encrypted"}}},
		"a resource of unknown lifecycle": {func(_ *cluster, v map[string]string) {
			v["gadgets/default/a"] = `{"apiVersion":"v1","kind":"Gadget"}`
			v["rockets/default/a"] = `{"apiVersion":"apps/v1","kind":"Rocket"}`
		}, preflightCase{to: "1.38", code: 1, reasons: map[string]string{"gadgets": "unknown: it is not known which releases decode it", "rockets.apps": "unknown", "rockets": ""}}},
		"a version that left the definition": {func(c *cluster, _ map[string]string) { c.crds[2].Spec.Versions = c.crds[2].Spec.Versions[1:] },
			preflightCase{to: "1.38", code: 2, reasons: map[string]string{widgets.String(): "unsafe: its CustomResourceDefinition cannot decode example.com/v1"}}},
		"objects of a version that was never in the definition": {func(c *cluster, v map[string]string) {
			delete(c.states, widgets)
			v["example.com/widgets/default/w2"] = `{"apiVersion":"example.com/v0","kind":"Widget"}`
		}, preflightCase{to: "1.38", code: 2, reasons: map[string]string{widgets.String(): "example.com/v0 (not among its versions; 1 stored)"}}},
		"the definition is gone": {func(c *cluster, _ map[string]string) { c.crds = c.crds[:2] },
			preflightCase{to: "1.38", code: 1, reasons: map[string]string{widgets.String(): "unknown: it is not known"}}},
		"the definition cannot be read": {func(_ *cluster, v map[string]string) {
			v["apiextensions.k8s.io/customresourcedefinitions/widgets.example.com"] = "\xff"
		}, preflightCase{to: "1.38", code: 1, reasons: map[string]string{widgets.String(): "its CustomResourceDefinition cannot be read"}}},
		"an etcd without Concord": {func(c *cluster, _ map[string]string) { clear(c.states); clear(c.versions) },
			preflightCase{to: "1.38", code: 0, reasons: map[string]string{policies.String(): "safe: decoded by 1.38", "secrets": "safe: nothing is stored"}}},
	}
	number := 0
	for name, test := range cases {
		number++
		prefix := fmt.Sprintf("/case%d", number)
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			extra := map[string]string{}
			if test.change != nil {
				test.change(c, extra)
			}
			values := c.values(t)
			for key, value := range extra {
				values[key] = value
			}
			for key, value := range values {
				_, err := client.Put(t.Context(), prefix+"/"+key, value)
				requireNoError(t, err)
			}
			unsafe := test.run(t, "--etcd-servers", etcd.Endpoint, "--etcd-prefix", prefix)
			test.starts(t, client, prefix, unsafe)
		})
	}
	t.Run("objects that are not taken any more", func(t *testing.T) {
		for key, value := range map[string]string{
			"validatingadmissionpolicies/newer": `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"newer"},"spec":{"validations":[{"expression":"[1].includes(1)"}]}}`,
			"services/specs/default/1st":        `{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"default","name":"1st"}}`,
			"services/endpoints/default/2nd":    `{"apiVersion":"v1","kind":"Endpoints","metadata":{"namespace":"default","name":"2nd"}}`,
			"deviceclasses/sealed":              "k8s:enc:aescbc:v1:key1:\x00",
			// Encoded as servers store them; the command has to decode them and look at their
			// expressions.
			"mutatingadmissionpolicies/older":                                  `{"apiVersion":"admissionregistration.k8s.io/v1beta1","kind":"MutatingAdmissionPolicy","metadata":{"name":"older"},"spec":{"variables":[{"name":"a","expression":"[1].includes(1)"}]}}`,
			"apiextensions.k8s.io/customresourcedefinitions/gears.example.com": asStored(t, withRule("gears", "self.names.includes('a')")),
		} {
			_, err := client.Put(t.Context(), "/warned/"+key, value)
			requireNoError(t, err)
		}
		report, _, err := judged(t, "--back-to", "1.35", "--etcd-servers", etcd.Endpoint, "--etcd-prefix", "/warned")
		var found []string
		for _, w := range report.Warnings {
			found = append(found, w.Resource+" "+w.Object+": "+w.About)
		}
		want := []string{
			"customresourcedefinitions.apiextensions.k8s.io gears.example.com: CEL expressions with includes, which is newer than 1.35",
			"mutatingadmissionpolicies.admissionregistration.k8s.io older: CEL expressions with includes, which is newer than 1.35",
			"services default/1st: its name, which has to begin with a letter in 1.35",
			"validatingadmissionpolicies.admissionregistration.k8s.io newer: CEL expressions with includes, which is newer than 1.35",
		}
		if !slices.Equal(found, want) || !strings.HasSuffix(report.Covers, "nor deviceclasses.resource.k8s.io: 1 value is encrypted or does not decode") {
			t.Errorf("warned of %q, covering %q: %v", found, report.Covers, err)
		}
	})
	t.Run("a definition that cannot be read", func(t *testing.T) {
		const key = "/sealed/apiextensions.k8s.io/customresourcedefinitions/widgets.example.com"
		_, err := client.Put(t.Context(), key, "k8s:enc:aescbc:v1:key1:\x00")
		requireNoError(t, err)
		file := filepath.Join(t.TempDir(), "crd.json")
		requireNoError(t, os.WriteFile(file, []byte(asJSON(t, newCluster(t).crds[2])), 0o600))
		report, code, err := judged(t, "--etcd-servers", etcd.Endpoint, "--etcd-prefix", "/sealed", "--crd", file)
		if code != 1 || report.Resources[0].Reason != "its CustomResourceDefinition cannot be read" {
			t.Errorf("to be applied: exit %d of %+v: %v", code, report, err)
		}
	})
	t.Run("nothing is stored", func(t *testing.T) {
		if _, code, err := judged(t, "--to", "1.38", "--data-dir", dir); code != 1 || err == nil || !strings.HasPrefix(err.Error(), "nothing is stored under --etcd-prefix /registry:") {
			t.Errorf("it ends with %d, %v", code, err)
		}
	})
}

func TestPreflightVersions(t *testing.T) {
	path := newCluster(t).serve(t)
	for _, args := range [][]string{{"--emulation-version", "1.36"}, {"--emulation-version", "1.36", "--min-compatibility-version", "1.36"}, {"--min-compatibility-version", "1.37"}} {
		report, code, err := judged(t, append(args, "--kubeconfig", path)...)
		if code != 0 || !strings.HasPrefix(report.Target, "this binary (1.37") {
			t.Errorf("%v: exit %d of %s: %v", args, code, report.Target, err)
		}
	}
}

func TestPreflightTable(t *testing.T) {
	c := newCluster(t)
	c.set(policies, admission+"/v1beta1", admission+"/v1")
	c.set(schema.GroupResource{Resource: "gadgets"}, "v1")
	out, err := runPreflight(t, "--kubeconfig", c.serve(t), "--back-to", "1.35")
	if unsafe, untold := strings.Index(out, "\n"+policies.String()+": unsafe\n"), strings.Index(out, "\ngadgets: could not tell\n"); !strings.HasPrefix(out, "1.35: unsafe\n") || unsafe < 0 || untold < unsafe {
		t.Errorf("the unsafe resource is not the first, or the one of which nobody could tell not the next:\n%s", out)
	}
	for _, want := range []string{
		"  stored as " + admission + "/v1,\n  " + admission + "/v1beta1\n  1.35 cannot decode " + admission + "/v1 (introduced in 1.36)\n",
		"\n  it is not known which releases decode it\n",
		" resources are safe.\n",
		"What to do: run the servers with --min-compatibility-version=1.35, so that they\nstore what 1.35 reads, and wait",
		"This covers whether every stored object can be decoded, and warns of CEL",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	for _, line := range strings.Split(out, "\n") {
		if len(line) > 80 {
			t.Errorf("a line of %d columns: %s", len(line), line)
		}
	}
	if err == nil || !strings.Contains(err.Error(), "unsafe: "+policies.String()+" of ") || exitCode(err) != 2 {
		t.Errorf("got %v", err)
	}
}

// TestPreflightTellsItsVersion: requests of the command tell its version, so that a server does not
// count it among the components of unknown version (KEP-4330, "Risk: Unintended and
// out-of-allowance version skew").
func TestPreflightTellsItsVersion(t *testing.T) {
	sent := make(chan compat.Identity, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent <- compat.Identify(r.Header.Get(compat.ComponentVersionHeader), r.UserAgent())
		http.NotFound(w, r)
	}))
	defer s.Close()
	_, _, err := judged(t, "--kubeconfig", kubeconfig(t, s.URL), "--to", "1.38")
	if len(sent) == 0 {
		t.Fatalf("it asks nothing: %v", err)
	}
	if id := <-sent; id.Component != compat.ConcordCommand || id.Version == nil || !id.Version.EqualTo(compat.BinaryVersion()) {
		t.Errorf("it tells that it is %+v", id)
	}
}

func TestPreflightErrors(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	refuses := httptest.NewServer(http.NotFoundHandler())
	refuses.Close()
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no target":          {[]string{}, "say which server is to start"},
		"two targets":        {[]string{"--to", "1.38", "--back-to", "1.35"}, "give one of"},
		"a target and more":  {[]string{"--to", "1.38", "--emulation-version", "1.36"}, "give one of"},
		"too far":            {[]string{"--to", "1.40"}, "allowed versions are 1.34, 1.35, 1.36, 1.37, 1.38"},
		"too far back":       {[]string{"--back-to", "1.30"}, "allowed versions are 1.34"},
		"no version":         {[]string{"--to", "next"}, "not a version"},
		"no such emulation":  {[]string{"--emulation-version", "1.38"}, "allowed versions are 1.34, 1.35, 1.36, 1.37"},
		"min above":          {[]string{"--emulation-version", "1.35", "--min-compatibility-version", "1.36"}, "min-compatibility-version"},
		"two sources":        {[]string{"--to", "1.38", "--kubeconfig", "x", "--etcd-servers", "y"}, "not both"},
		"two other sources":  {[]string{"--to", "1.38", "--kubeconfig", "x", "--data-dir", "y"}, "not both"},
		"no such kubeconfig": {[]string{"--to", "1.38", "--kubeconfig", "/nowhere/kubeconfig"}, "/nowhere/kubeconfig"},
		"nobody there":       {[]string{"--to", "1.38", "--kubeconfig", kubeconfig(t, refuses.URL)}, "connection refused"},
		"no etcd there":      {[]string{"--to", "1.38", "--data-dir", t.TempDir()}, "there is no etcd in"},
		"no such output":     {[]string{"--to", "1.38", "-o", "yaml"}, "it can be text, json, sarif"},
		"an argument":        {[]string{"everything"}, "preflight takes flags alone"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := runPreflight(t, test.args...)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") || exitCode(err) != 1 {
				t.Fatalf("got %v, exit %d, want one line with %q", err, exitCode(err), test.want)
			}
			if out != "" {
				t.Fatalf("printed %q", out)
			}
		})
	}
}
