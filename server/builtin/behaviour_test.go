package builtin_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/server/builtin"
)

func newServer(t *testing.T) *testServer {
	t.Helper()
	return startServer(t, newPlan(t, "1.37", "1.36", everything), startEtcd(t))
}

func (s *testServer) create(t *testing.T, resource string, obj *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	gvr := obj.GroupVersionKind().GroupVersion().WithResource(resource)
	created, err := s.in(gvr, obj).Create(t.Context(), obj, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

func TestNamespaceLifecycle(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	namespaces := s.CoreV1().Namespaces()
	ns, err := namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "made-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ns.Labels[corev1.LabelMetadataName] != ns.Name || ns.Status.Phase != corev1.NamespaceActive || !slices.Equal(ns.Spec.Finalizers, []corev1.FinalizerName{"kubernetes"}) {
		t.Errorf("created as %+v", ns)
	}
	wrong := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("other"))}}
	if err := namespaces.Delete(ctx, ns.Name, wrong); !apierrors.IsConflict(err) {
		t.Errorf("delete with another uid: %v, want a conflict", err)
	}
	if err := namespaces.Delete(ctx, ns.Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if ns, err = namespaces.Get(ctx, ns.Name, noGet); err != nil || ns.DeletionTimestamp != nil {
		t.Fatalf("after a dry run: %v, %v", ns, err)
	}
	for range 2 { // the second changes nothing
		if err := namespaces.Delete(ctx, ns.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if ns, err = namespaces.Get(ctx, ns.Name, noGet); err != nil || ns.DeletionTimestamp == nil || ns.Status.Phase != corev1.NamespaceTerminating {
			t.Fatalf("after delete: %+v, %v, want Terminating", ns, err)
		}
	}
	list, err := namespaces.List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Terminating"})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("terminating namespaces: %v, %v", list, err)
	}
	ns.Spec.Finalizers = nil
	if _, err := namespaces.Update(ctx, ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if ns, err = namespaces.Get(ctx, ns.Name, noGet); err != nil || len(ns.Spec.Finalizers) != 1 {
		t.Fatalf("update removed the finalizer: %+v, %v", ns, err)
	}
	ns.Spec.Finalizers = nil
	if _, err := namespaces.Finalize(ctx, ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := namespaces.Get(ctx, ns.Name, noGet); !apierrors.IsNotFound(err) {
		t.Errorf("after finalize: %v, want not found", err)
	}
}

func TestNamespaceStatus(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	ns, err := s.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ns.Status.Phase = corev1.NamespaceTerminating
	_, err = s.CoreV1().Namespaces().UpdateStatus(ctx, ns, metav1.UpdateOptions{})
	expectField(t, err, "status.phase")
	ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive, Conditions: []corev1.NamespaceCondition{{Type: "T", Status: "True"}}}
	if ns, err = s.CoreV1().Namespaces().UpdateStatus(ctx, ns, metav1.UpdateOptions{}); err != nil || len(ns.Status.Conditions) != 1 {
		t.Errorf("status update: %+v, %v", ns, err)
	}
}

func TestSecrets(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	secrets := s.CoreV1().Secrets("default")
	got, err := secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Data:       map[string][]byte{"a": []byte("1"), "b": []byte("2")},
		StringData: map[string]string{"b": "3"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Type != corev1.SecretTypeOpaque || string(got.Data["a"]) != "1" || string(got.Data["b"]) != "3" || got.StringData != nil {
		t.Errorf("created as %+v", got)
	}
	got, err = secrets.Patch(ctx, "a", types.MergePatchType, []byte(`{"stringData":{"c":"4"}}`), metav1.PatchOptions{})
	if err != nil || string(got.Data["c"]) != "4" || got.StringData != nil {
		t.Errorf("patched to %+v, %v", got, err)
	}
	for selector, want := range map[string]int{"type=Opaque": 1, "type=other": 0, "metadata.name=a": 1, "metadata.name!=a": 0} {
		list, err := secrets.List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil || len(list.Items) != want {
			t.Errorf("%s selects %d secrets, %v, want %d", selector, len(list.Items), err, want)
		}
	}
	if _, err := secrets.List(ctx, metav1.ListOptions{FieldSelector: "data.a=1"}); !apierrors.IsBadRequest(err) {
		t.Errorf("selecting by an unknown field: %v, want a bad request", err)
	}
	big := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "big"}, Data: map[string][]byte{"a": make([]byte, 1<<20+1)}}
	_, err = secrets.Create(ctx, big, metav1.CreateOptions{})
	expectField(t, err, "data")
}

func TestImmutable(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Immutable: ptr.To(true), Data: map[string]string{"a": "1"}}
	if _, err := s.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Immutable: ptr.To(true), Data: map[string][]byte{"a": []byte("1")}}
	if _, err := s.CoreV1().Secrets("default").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ patch, field string }{
		{`{"data":{"a":"Mg=="}}`, "data"},
		{`{"data":null}`, "data"},
		{`{"immutable":null}`, "immutable"},
		{`{"metadata":{"labels":{"a":"b"}}}`, ""},
	} {
		_, err := s.CoreV1().ConfigMaps("default").Patch(ctx, "a", types.MergePatchType, []byte(c.patch), metav1.PatchOptions{})
		expectField(t, err, c.field)
		_, err = s.CoreV1().Secrets("default").Patch(ctx, "a", types.MergePatchType, []byte(c.patch), metav1.PatchOptions{})
		expectField(t, err, c.field)
	}
}

func TestEventsInTwoGroups(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	object := corev1.ObjectReference{Kind: "Pod", Name: "p", Namespace: "default"}
	_, err := s.EventsV1().Events("default").Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "new"}, EventTime: metav1.NowMicro(), Type: "Normal", Reason: "R", Action: "A",
		ReportingController: "c", ReportingInstance: "i", Regarding: object, Note: "note",
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.create(t, "events", sample(t, "events"))

	core, err := s.CoreV1().Events("default").Get(ctx, "new", noGet)
	if err != nil || core.Message != "note" || core.InvolvedObject != object || core.ReportingController != "c" {
		t.Errorf("read as core/v1: %+v, %v", core, err)
	}
	list, err := s.EventsV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "regarding.name=p,type=Warning"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Note != "hello" || list.Items[0].DeprecatedSource.Component != "sampler" {
		t.Errorf("read as events.k8s.io/v1: %+v, %v", list, err)
	}
	for selector, want := range map[string]int{"source=sampler": 1, "source=c": 1, "reportingComponent=c": 1, "involvedObject.kind=Pod": 2, "reason=R": 1} {
		list, err := s.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil || len(list.Items) != want {
			t.Errorf("%s selects %d events, %v, want %d", selector, len(list.Items), err, want)
		}
	}
	for _, name := range []string{"new", "sample"} {
		value, lease := s.stored(t, "/registry/events/default/"+name)
		if got := encodingOf(t, value); got != "v1" || lease == 0 {
			t.Errorf("event %s is stored as %s with lease %d, want v1 and one that expires", name, got, lease)
		}
	}
	_, err = s.EventsV1().Events("default").Create(ctx, &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Name: "bad"}, Regarding: object}, metav1.CreateOptions{})
	expectField(t, err, "eventTime")
	_, err = s.EventsV1().Events("default").Patch(ctx, "new", types.MergePatchType, []byte(`{"note":"other"}`), metav1.PatchOptions{})
	expectField(t, err, "note")
}

func TestLeases(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	lease := sample(t, "leases")
	gvr := lease.GroupVersionKind().GroupVersion().WithResource("leases")
	created, err := s.in(gvr, lease).Update(ctx, lease, metav1.UpdateOptions{})
	if err != nil {
		t.Fatalf("a PUT creates a lease: %v", err)
	}
	created.SetResourceVersion("")
	_, err = s.in(gvr, lease).Update(ctx, created, metav1.UpdateOptions{})
	expectField(t, err, "metadata.resourceVersion")
}

// coordination switches on what leases hold for coordinated leader election.
const coordination = "CoordinatedLeaderElection=true"

// TestCoordinationFields: data enters fields only where their feature is on, and stays.
func TestCoordinationFields(t *testing.T) {
	etcd, plan := startEtcd(t), newPlan(t, "1.37", "1.36", everything)
	off, on := startServer(t, plan, etcd), startServer(t, plan, etcd, coordination)
	strategy := coordinationv1.OldestEmulationVersion
	write := func(s *testServer, spec coordinationv1.LeaseSpec, want coordinationv1.LeaseSpec) {
		t.Helper()
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: spec}
		if stored, err := s.CoordinationV1().Leases("default").Get(t.Context(), "a", noGet); err == nil {
			lease.ResourceVersion = stored.ResourceVersion
		}
		got, err := s.CoordinationV1().Leases("default").Update(t.Context(), lease, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(got.Spec, want) {
			t.Errorf("written as %+v, want %+v", got.Spec, want)
		}
	}
	none, strategic := coordinationv1.LeaseSpec{}, coordinationv1.LeaseSpec{Strategy: &strategy}
	full := coordinationv1.LeaseSpec{Strategy: &strategy, PreferredHolder: ptr.To("me")}
	write(off, full, none) // creates it
	write(off, full, none)
	write(on, strategic, strategic)
	write(off, full, strategic)
	write(on, full, full)
	write(off, full, full)
	write(off, none, none)
	write(off, full, none)
}

func TestDefaults(t *testing.T) {
	s := newServer(t)
	webhook := s.create(t, "mutatingwebhookconfigurations", sample(t, "mutatingwebhookconfigurations"))
	hooks, _, _ := unstructured.NestedSlice(webhook.Object, "webhooks")
	hook := hooks[0].(map[string]any)
	for name, want := range map[string]string{
		"failurePolicy": "Fail", "matchPolicy": "Equivalent", "timeoutSeconds": "10", "reinvocationPolicy": "Never",
		"namespaceSelector": "map[]", "objectSelector": "map[]",
	} {
		if got := fmt.Sprint(hook[name]); got != want {
			t.Errorf("webhook %s is %s, want %s", name, got, want)
		}
	}
	webhook = s.create(t, "validatingwebhookconfigurations", sample(t, "validatingwebhookconfigurations"))
	if text := content(t, webhook); !strings.Contains(text, `"port":443`) || !strings.Contains(text, `"scope":"*"`) {
		t.Errorf("webhook without default port and scope: %s", text)
	}
	for _, version := range []string{"v1alpha1", "v1beta1", "v1"} {
		policy := sample(t, "mutatingadmissionpolicies")
		policy.SetName(version)
		policy.SetAPIVersion("admissionregistration.k8s.io/" + version)
		policy = s.create(t, "mutatingadmissionpolicies", policy)
		text := content(t, policy)
		for _, want := range []string{`"failurePolicy":"Fail"`, `"matchPolicy":"Equivalent"`, `"namespaceSelector":{}`, `"scope":"*"`} {
			if !strings.Contains(text, want) {
				t.Errorf("policy created through %s lacks %s: %s", version, want, text)
			}
		}
		binding := sample(t, "mutatingadmissionpolicybindings")
		binding.SetName(version)
		binding.SetAPIVersion("admissionregistration.k8s.io/" + version)
		set(t, binding, map[string]any{"name": "p"}, "spec", "paramRef")
		_, err := s.in(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: version, Resource: "mutatingadmissionpolicybindings"}, binding).
			Create(t.Context(), binding, metav1.CreateOptions{})
		if version == "v1alpha1" {
			expectField(t, err, "")
		} else {
			expectField(t, err, "spec.paramRef.parameterNotFoundAction")
		}
	}
}

// TestStatus: the main resource ignores status, the subresource everything else, and
// only changes of the desired state raise the generation.
func TestStatus(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	condition := map[string]any{"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2030-01-01T00:00:00Z"}
	for _, resource := range []string{"validatingadmissionpolicies", "servicecidrs", "storageversionmigrations"} {
		obj := sample(t, resource)
		set(t, obj, []any{condition}, "status", "conditions")
		obj = s.create(t, resource, obj)
		gvr := obj.GroupVersionKind().GroupVersion().WithResource(resource)
		if conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions"); len(conditions) != 0 {
			t.Errorf("%s: create kept status", resource)
		}
		spec, _, _ := unstructured.NestedMap(obj.Object, "spec")
		set(t, obj, map[string]any{}, "spec")
		set(t, obj, []any{condition}, "status", "conditions")
		obj.SetLabels(map[string]string{"a": "b"})
		generation := obj.GetGeneration()
		obj, err := s.in(gvr, obj).UpdateStatus(ctx, obj, metav1.UpdateOptions{})
		if err != nil {
			t.Fatalf("%s: %v", resource, err)
		}
		after, _, _ := unstructured.NestedMap(obj.Object, "spec")
		conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
		if fmt.Sprint(after) != fmt.Sprint(spec) || len(conditions) != 1 || obj.GetLabels() != nil || obj.GetGeneration() != generation {
			t.Errorf("%s: after a status update: %s", resource, content(t, obj))
		}
		set(t, obj, map[string]any{}, "status")
		obj.SetLabels(map[string]string{"a": "b"})
		if obj, err = s.in(gvr, obj).Update(ctx, obj, metav1.UpdateOptions{}); err != nil {
			t.Fatalf("%s: %v", resource, err)
		}
		conditions, _, _ = unstructured.NestedSlice(obj.Object, "status", "conditions")
		if len(conditions) != 1 || obj.GetLabels()["a"] != "b" || obj.GetGeneration() != generation {
			t.Errorf("%s: after an update: %s", resource, content(t, obj))
		}
	}
}

func TestMigrationStatus(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	obj := s.create(t, "storageversionmigrations", sample(t, "storageversionmigrations"))
	gvr := obj.GroupVersionKind().GroupVersion().WithResource("storageversionmigrations")
	for _, step := range []struct{ conditions, version, field string }{
		{"Running", "x", "status.resourceVersion"},
		{"Running", "7", ""},
		{"Running", "8", "status.resourceVersion"},
		{"Running Succeeded", "7", "status.conditions"},
		{"Succeeded Failed", "7", "status.conditions"},
		{"Succeeded", "7", ""},
		{"Failed", "7", "status.conditions"},
	} {
		var conditions []any
		for _, c := range strings.Fields(step.conditions) {
			conditions = append(conditions, map[string]any{"type": c, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2030-01-01T00:00:00Z"})
		}
		next := obj.DeepCopy()
		set(t, next, map[string]any{"conditions": conditions, "resourceVersion": step.version}, "status")
		got, err := s.in(gvr, obj).UpdateStatus(ctx, next, metav1.UpdateOptions{})
		expectField(t, err, step.field)
		if err == nil {
			obj = got
		}
	}
}

func TestReviews(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	self, err := s.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || self.Status.UserInfo.Username != "system:anonymous" {
		t.Errorf("self subject review: %+v, %v", self, err)
	}
	asked := &authorizationv1.ResourceAttributes{Verb: "get", Resource: "secrets", Namespace: "default"}
	access, err := s.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: asked}}, metav1.CreateOptions{})
	if err != nil || !access.Status.Allowed {
		t.Errorf("self subject access review: %+v, %v", access, err)
	}
	_, err = s.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{}, metav1.CreateOptions{})
	expectField(t, err, "spec.resourceAttributes")
	_, err = s.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: asked}}, metav1.CreateOptions{})
	expectField(t, err, "spec.user")
	local := &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: "default"},
		Spec: authorizationv1.SubjectAccessReviewSpec{User: "u", ResourceAttributes: asked}}
	if got, err := s.AuthorizationV1().LocalSubjectAccessReviews("default").Create(ctx, local, metav1.CreateOptions{}); err != nil || !got.Status.Allowed {
		t.Errorf("local subject access review: %+v, %v", got, err)
	}
	local.Spec.ResourceAttributes.Namespace = "other"
	_, err = s.AuthorizationV1().LocalSubjectAccessReviews("default").Create(ctx, local, metav1.CreateOptions{})
	expectField(t, err, "spec.resourceAttributes.namespace")
	rules, err := s.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}, metav1.CreateOptions{})
	if err != nil || !rules.Status.Incomplete {
		t.Errorf("self subject rules review: %+v, %v, want an incomplete answer", rules, err)
	}
}

// tables are the columns that kubectl shows by default, and the row of each sample.
var tables = map[string]string{
	"namespaces":                        "Name=sample Status=Active Age",
	"configmaps":                        "Name=sample Data=1 Age",
	"secrets":                           "Name=sample Type=Opaque Data=1 Age",
	"serviceaccounts":                   "Name=sample Secrets=0 Age",
	"events":                            "Last Seen=<unknown> Type=Warning Reason=Sampled Object=pod/p Message=hello",
	"leases":                            "Name=sample Holder=me Age",
	"leasecandidates":                   "Name=sample LeaseName=l BinaryVersion=1.37.0 EmulationVersion=1.36.0 Strategy=OldestEmulationVersion Age",
	"storageversions":                   "Name=sample.things Encoding=sample/v1 Agreed=Unknown Servers=1 Epoch=1 Age",
	"validatingwebhookconfigurations":   "Name=sample Webhooks=1 Age",
	"mutatingwebhookconfigurations":     "Name=sample Webhooks=1 Age",
	"validatingadmissionpolicies":       "Name=sample Validations=1 ParamKind=<unset> Age",
	"validatingadmissionpolicybindings": "Name=sample PolicyName=sample ParamRef=space/p Age",
	"mutatingadmissionpolicies":         "Name=sample Mutations=1 ParamKind=v1/ConfigMap Age",
	"mutatingadmissionpolicybindings":   "Name=sample PolicyName=sample ParamRef=<unset> Age",
	"clustertrustbundles":               "Name=example.com:signer:sample SignerName=example.com/signer Age",
	"ipaddresses":                       "Name=192.168.1.1 ParentRef=things.apps/space/t Age",
	"services":                          "Name=sample Type=ClusterIP Cluster-IP=<none> External-IP=<none> Port(s)=443/TCP Age",
	"endpointslices":                    "Name=sample AddressType=IPv4 Ports=8443 Endpoints=10.0.0.1 Age",
	"servicecidrs":                      "Name=sample CIDRs=10.0.0.0/24,2001:db8::/64 Age",
	"storageversionmigrations":          "Name=sample Resource=things.apps Status=Pending Age",
}

func TestTables(t *testing.T) {
	plan := newPlan(t, "1.37", "1.36", everything)
	s := startServer(t, plan, startEtcd(t))
	for _, p := range builtin.PersistedResources(plan) {
		resource := p.GroupResource.Resource
		obj := s.create(t, resource, sample(t, resource))
		table := s.table(t, obj.GroupVersionKind().GroupVersion().WithResource(resource))
		var shown []string
		for i, c := range table.ColumnDefinitions {
			switch {
			case c.Priority > 0:
			case c.Name == "Age":
				shown = append(shown, c.Name)
			default:
				shown = append(shown, fmt.Sprintf("%s=%v", c.Name, table.Rows[0].Cells[i]))
			}
			if c.Description == "" {
				t.Errorf("%s: column %s has no description", resource, c.Name)
			}
		}
		if got := strings.Join(shown, " "); got != tables[resource] {
			t.Errorf("%s shows %q, want %q", resource, got, tables[resource])
		}
		if len(table.Rows) != 1 || table.ResourceVersion == "" {
			t.Errorf("%s: table with %d rows at %q", resource, len(table.Rows), table.ResourceVersion)
		}
	}
}

func (s *testServer) table(t *testing.T, gvr schema.GroupVersionResource) *metav1.Table {
	t.Helper()
	path := "/apis/" + gvr.GroupVersion().String()
	if gvr.Group == "" {
		path = "/api/" + gvr.Version
	}
	table := &metav1.Table{}
	raw, err := s.RESTClient().Get().AbsPath(path+"/"+gvr.Resource).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	unmarshal(t, raw, table)
	return table
}

// TestNames: short names, singular names and categories by which kubectl finds resources.
func TestNames(t *testing.T) {
	s := newServer(t)
	_, lists, err := s.discovery.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	short, extensions := map[string]string{}, map[string]bool{}
	for _, list := range lists {
		for _, r := range list.APIResources {
			if r.SingularName != strings.ToLower(r.Kind) {
				t.Errorf("%s %s has the singular name %q", list.GroupVersion, r.Name, r.SingularName)
			}
			for _, name := range r.ShortNames {
				short[name] = r.Name
			}
			if slices.Contains(r.Categories, "api-extensions") {
				extensions[r.Name] = true
			}
			if r.Name == "namespaces" && slices.Contains(r.Verbs, "deletecollection") {
				t.Error("namespaces can be deleted as a collection")
			}
			if r.Name == "namespaces/finalize" && !slices.Equal(r.Verbs, []string{"update"}) {
				t.Errorf("namespaces/finalize has verbs %v", r.Verbs)
			}
		}
	}
	want := map[string]string{"cm": "configmaps", "ns": "namespaces", "sa": "serviceaccounts", "ev": "events", "ip": "ipaddresses", "svc": "services"}
	if !maps.Equal(short, want) {
		t.Errorf("short names %v, want %v", short, want)
	}
	if len(extensions) != 6 {
		t.Errorf("api-extensions are %v, want the six admission resources", extensions)
	}
}
