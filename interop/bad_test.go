package interop

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/cluster"
)

// objects is how many objects each resource has, and bad is the number of the one that cannot be rewritten.
const objects, bad = 100, 42

// badObject is a resource of which one object cannot be rewritten.
type badObject struct {
	plural string
	// status says that the resource has a status subresource, through which the controllers write: what is wrong with
	// the other fields does not matter then.
	status bool
	// v2 is the schema of the version that is to be stored.
	v2 apiextensionsv1.JSONSchemaProps
	// edit makes this object one that cannot be rewritten, refuse makes the server refuse to update it, and damage
	// changes its stored value.
	edit   func(*unstructured.Unstructured)
	refuse func(testing.TB, *beside.Widgets)
	damage string
	// reason and text say how the migration names the object.
	reason migrationv1alpha1.MigrationFailureReason
	text   string
	// inTreeEnds says that Kubernetes' in-tree migration of the resource comes to an end.
	inTreeEnds bool

	widgets *beside.Widgets
}

var badObjects = []badObject{
	{
		plural:     "requireds",
		v2:         apiextensionsv1.JSONSchemaProps{Required: []string{"mandatory"}, Properties: map[string]apiextensionsv1.JSONSchemaProps{"mandatory": {Type: "string"}}},
		edit:       func(o *unstructured.Unstructured) { delete(o.Object, "mandatory") },
		reason:     migrationv1alpha1.FailureRejected,
		text:       "mandatory: Required value",
		inTreeEnds: true,
	},
	{
		plural:     "throughstatuses",
		status:     true,
		v2:         apiextensionsv1.JSONSchemaProps{Required: []string{"mandatory"}, Properties: map[string]apiextensionsv1.JSONSchemaProps{"mandatory": {Type: "string"}}},
		edit:       func(o *unstructured.Unstructured) { delete(o.Object, "mandatory") },
		inTreeEnds: true,
	},
	{
		plural: "transitions",
		v2: apiextensionsv1.JSONSchemaProps{
			Properties:   map[string]apiextensionsv1.JSONSchemaProps{"frozen": {Type: "string"}},
			XValidations: apiextensionsv1.ValidationRules{{Rule: "!has(oldSelf.frozen) || !has(self.frozen)", Message: "what is frozen has to thaw"}},
		},
		edit:       func(o *unstructured.Unstructured) { o.Object["frozen"] = "yes" },
		reason:     migrationv1alpha1.FailureRejected,
		text:       "what is frozen has to thaw",
		inTreeEnds: true,
	},
	{plural: "policies", refuse: policy, reason: migrationv1alpha1.FailureRejected, text: "this one stays as it is", inTreeEnds: true},
	{plural: "refusals", refuse: refusingWebhook, reason: migrationv1alpha1.FailureRejected, text: "refused by a webhook", inTreeEnds: true},
	{plural: "outages", refuse: absentWebhook, reason: migrationv1alpha1.FailureRejected, text: "failed calling webhook"},
	{plural: "damages", damage: "\x00\xffnot an object", reason: migrationv1alpha1.FailureDoesNotDecode, text: "", inTreeEnds: true},
}

// arrange creates all these resources with their objects.
func arrange(t testing.TB, a *beside.APIServer) []*badObject {
	t.Helper()
	var all []*badObject
	for _, b := range badObjects {
		b.widgets = a.Define(b.plural, b.status, map[string]apiextensionsv1.JSONSchemaProps{"v2": b.v2})
		b.widgets.Fill(objects, func(i int, o *unstructured.Unstructured) {
			if i == bad && b.edit != nil {
				b.edit(o)
			}
		})
		if b.refuse != nil {
			b.refuse(t, b.widgets)
			beside.Eventually(t, beside.Patience, "an update of the bad one of "+b.plural+" is refused", func(ctx context.Context) error {
				if _, err := a.Dynamic().Resource(b.widgets.In("v1")).Namespace(beside.Namespace).
					Patch(ctx, beside.ObjectName(bad), types.MergePatchType, []byte("{}"), metav1.PatchOptions{}); err == nil {
					return errors.New("it is not")
				}
				return nil
			})
		}
		if b.damage != "" {
			if _, err := a.Cluster.Raw.Put(t.Context(), b.widgets.Keys()+beside.Namespace+"/"+beside.ObjectName(bad), b.damage); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, &b)
	}
	return all
}

// rules returns a rule that matches updates of the resource.
func rules(w *beside.Widgets) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{beside.Group}, APIVersions: []string{"*"}, Resources: []string{w.Plural}},
	}
}

// isBad is a CEL expression that is true for the bad object.
var isBad = fmt.Sprintf("object.metadata.name == %q", beside.ObjectName(bad))

func policy(t testing.TB, w *beside.Widgets) {
	t.Helper()
	api := w.Server.Kube().AdmissionregistrationV1()
	_, err := api.ValidatingAdmissionPolicies().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: w.Plural},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: rules(w)}}},
			Validations:      []admissionregistrationv1.Validation{{Expression: "!(" + isBad + ")", Message: "this one stays as it is"}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = api.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: w.Plural},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: w.Plural, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}, metav1.CreateOptions{})
	must(t, err)
}

// webhook makes updates of the bad object go to an admission webhook at a URL.
func webhook(t testing.TB, w *beside.Widgets, url string, bundle []byte) {
	t.Helper()
	_, err := w.Server.Kube().AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: w.Plural},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: w.Plural + ".example.com", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: bundle},
			Rules: []admissionregistrationv1.RuleWithOperations{rules(w)}, FailurePolicy: ptr.To(admissionregistrationv1.Fail), TimeoutSeconds: ptr.To[int32](5),
			SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "bad", Expression: isBad}},
		}},
	}, metav1.CreateOptions{})
	must(t, err)
}

func refusingWebhook(t testing.TB, w *beside.Widgets) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(answer, "no review", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: "refused by a webhook", Code: http.StatusForbidden}}
		review.Request = nil
		if err := json.NewEncoder(answer).Encode(review); err != nil {
			t.Errorf("answer of the webhook: %v", err)
		}
	}))
	t.Cleanup(server.Close)
	webhook(t, w, server.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

func absentWebhook(t testing.TB, w *beside.Widgets) {
	t.Helper()
	webhook(t, w, "https://"+cluster.FreeAddress(t), nil)
}

// TestBadObjects: of each resource one object among a hundred cannot be rewritten, for different reasons. All others
// are migrated, and the object is named with the reason. (Before 1.37 an object that cannot be read is not named, and
// none behind it is migrated.) storedVersions keeps v1; v1 cannot be removed from the CRD's versions, and nobody else
// can remove it from storedVersions. Where a status subresource is, an object that is only invalid is migrated, too, and
// v1 is pruned.
func TestBadObjects(t *testing.T) {
	c := newCluster(t)
	a := guarded(t, c)
	deployed(a, tested(t).places(a))
	cases := arrange(t, a)
	for _, b := range cases {
		if b.damage == "" {
			b.widgets.AwaitStored(beside.V1, beside.V1)
		}
	}
	for _, b := range cases {
		b.widgets.Store("v2")
	}
	for _, b := range cases {
		t.Run(b.plural, func(t *testing.T) {
			switch {
			case b.status:
				b.widgets.AwaitPruned(objects)
				return
			case b.damage == "" || tested(t).names:
				b.widgets.AwaitFailed(objects, beside.ObjectName(bad), b.reason, b.text)
			default:
				b.placed(t)
			}
			b.kept(t)
		})
	}
	t.Run("without one guard", func(t *testing.T) { testWithoutOneGuard(t, cases[0].widgets) })
}

// placed waits for the migration that says behind which object it ended, since the server does not name the next one,
// which is the bad one.
func (b *badObject) placed(t *testing.T) {
	beside.Eventually(t, 2*beside.Patience, "the migration fails at the object", func(ctx context.Context) error {
		all, err := b.widgets.Migrations(ctx)
		for _, m := range all {
			failed := migrationv1alpha1.True(&m, migrationv1alpha1.MigrationFailed)
			if failed != nil && strings.Contains(failed.Message, fmt.Sprintf("behind %q", beside.Namespace+"/"+beside.ObjectName(bad-1))) {
				t.Logf("it says: %s", failed.Message)
				return nil
			}
			err = errors.Join(err, fmt.Errorf("%s: %+v", m.Name, m.Status))
		}
		return errors.Join(err, fmt.Errorf("there are %d migrations", len(all)))
	})
	if counts, err := b.widgets.Stored(t.Context(), 0); err != nil || counts[beside.V2] != bad {
		t.Errorf("stored are %v, %v", counts, err)
	}
}

// kept checks that v1 stays in storedVersions and in the CRD's versions.
func (b *badObject) kept(t *testing.T) {
	if versions, err := b.widgets.StoredVersions(t.Context()); err != nil || !slices.Equal(versions, []string{"v1", "v2"}) {
		t.Errorf("storedVersions are %v, %v", versions, err)
	}
	if err := b.widgets.TakeOut(); err == nil || !strings.Contains(err.Error(), "v1") {
		t.Errorf("take out v1: %v", err)
	}
	if err := forget(b.widgets); err == nil || !strings.Contains(err.Error(), "concord-stored-versions") {
		t.Errorf("take v1 out of storedVersions: %v", err)
	}
}

// forget removes v1 from storedVersions.
func forget(w *beside.Widgets) error {
	ctx, objects, crd := w.Server.Cluster.T.Context(), w.Server.Objects(), &apiextensionsv1.CustomResourceDefinition{}
	if err := objects.Get(ctx, client.ObjectKey{Name: w.Name()}, crd); err != nil {
		return err
	}
	crd.Status.StoredVersions = []string{"v2"}
	return objects.Status().Update(ctx, crd)
}

// testWithoutOneGuard: somebody deletes the guard of storedVersions and removes v1 from them. v1 still cannot be
// removed from the CRD's versions, and the controllers put it back into storedVersions.
func testWithoutOneGuard(t *testing.T, w *beside.Widgets) {
	err := w.Server.Kube().AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(t.Context(), "concord-stored-versions", metav1.DeleteOptions{})
	must(t, err)
	beside.Eventually(t, beside.Patience, "the guard of versions refuses", func(context.Context) error {
		if err := forget(w); err != nil {
			return err
		}
		err := w.TakeOut()
		if err == nil {
			t.Fatal("v1 was taken out")
		}
		if !strings.Contains(err.Error(), "concord-versions") {
			return err // it had been put back already
		}
		return nil
	})
	beside.Eventually(t, beside.Patience, "v1 is put back", func(ctx context.Context) error {
		versions, err := w.StoredVersions(ctx)
		if err == nil && !slices.Contains(versions, "v1") {
			err = fmt.Errorf("storedVersions are %v", versions)
		}
		return err
	})
}
