package generic_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNamespaceHasWhatClientsExpect(t *testing.T) {
	ns := shared.namespace(t)
	ca := string(must[[]byte](t)(os.ReadFile(filepath.Join(filepath.Dir(shared.Kubeconfig()), "ca.crt"))))
	eventually(t, "kube-root-ca.crt", func(ctx context.Context) error {
		published, err := shared.kube.CoreV1().ConfigMaps(ns).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if err == nil && published.Data["ca.crt"] != ca {
			err = fmt.Errorf("it has %q", published.Data)
		}
		return err
	})
}

func TestTrustBundle(t *testing.T) {
	ca := string(must[[]byte](t)(os.ReadFile(filepath.Join(filepath.Dir(shared.Kubeconfig()), "ca.crt"))))
	eventually(t, "the cluster's trust bundle", func(ctx context.Context) error {
		bundles, err := shared.kube.CertificatesV1().ClusterTrustBundles().List(ctx, metav1.ListOptions{FieldSelector: "spec.signerName=kubernetes.io/kube-apiserver-serving"})
		if err == nil && (len(bundles.Items) != 1 || strings.TrimSpace(bundles.Items[0].Spec.TrustBundle) != strings.TrimSpace(ca)) {
			err = fmt.Errorf("there are %v", bundles.Items)
		}
		return err
	})
}

// An object goes with its owner: Kubernetes' garbage collector runs.
func TestCascade(t *testing.T) {
	ctx, ns := t.Context(), shared.namespace(t)
	maps := shared.kube.CoreV1().ConfigMaps(ns)
	owner := must[*corev1.ConfigMap](t)(maps.Create(ctx, configMap("owner", nil), metav1.CreateOptions{}))
	must[*corev1.ConfigMap](t)(maps.Create(ctx, configMap("owned", nil, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID}), metav1.CreateOptions{}))
	mustDo(t, maps.Delete(ctx, "owner", metav1.DeleteOptions{}))
	eventually(t, "the deletion of what it owned", func(ctx context.Context) error {
		_, err := maps.Get(ctx, "owned", metav1.GetOptions{})
		return gone(err)
	})
}

func TestQuota(t *testing.T) {
	ctx, ns := t.Context(), shared.namespace(t)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/secrets": resource.MustParse("1")}}}
	must[*corev1.ResourceQuota](t)(shared.kube.CoreV1().ResourceQuotas(ns).Create(ctx, quota, metav1.CreateOptions{}))
	eventually(t, "the quota's status", func(ctx context.Context) error {
		q, err := shared.kube.CoreV1().ResourceQuotas(ns).Get(ctx, "q", metav1.GetOptions{})
		if err == nil && len(q.Status.Hard) == 0 {
			err = errors.New("it is empty")
		}
		return err
	})
	secret := func(name string) *corev1.Secret { return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	must[*corev1.Secret](t)(shared.kube.CoreV1().Secrets(ns).Create(ctx, secret("a"), metav1.CreateOptions{}))
	if _, err := shared.kube.CoreV1().Secrets(ns).Create(ctx, secret("b"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota") {
		t.Errorf("a second secret: %v", err)
	}
	// Only the controller counts what was deleted.
	mustDo(t, shared.kube.CoreV1().Secrets(ns).Delete(ctx, "a", metav1.DeleteOptions{}))
	eventually(t, "room for a secret", func(ctx context.Context) error {
		_, err := shared.kube.CoreV1().Secrets(ns).Create(ctx, secret("b"), metav1.CreateOptions{})
		return err
	})
}

func TestPolicies(t *testing.T) {
	ctx, ns := t.Context(), shared.namespace(t)
	api := shared.kube.AdmissionregistrationV1()
	rules := &admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}},
		ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
		}}},
	}
	named := metav1.ObjectMeta{Name: ns}
	must[*admissionv1.ValidatingAdmissionPolicy](t)(api.ValidatingAdmissionPolicies().Create(ctx, &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: named,
		Spec: admissionv1.ValidatingAdmissionPolicySpec{MatchConstraints: rules, Validations: []admissionv1.Validation{{Expression: "object.metadata.name != 'bad'", Message: "bad is not allowed"}}}}, metav1.CreateOptions{}))
	must[*admissionv1.ValidatingAdmissionPolicyBinding](t)(api.ValidatingAdmissionPolicyBindings().Create(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: named,
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: ns, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}, metav1.CreateOptions{}))
	must[*admissionv1.MutatingAdmissionPolicy](t)(api.MutatingAdmissionPolicies().Create(ctx, &admissionv1.MutatingAdmissionPolicy{ObjectMeta: named,
		Spec: admissionv1.MutatingAdmissionPolicySpec{MatchConstraints: rules, ReinvocationPolicy: admissionv1.NeverReinvocationPolicy, Mutations: []admissionv1.Mutation{{
			PatchType:          admissionv1.PatchTypeApplyConfiguration,
			ApplyConfiguration: &admissionv1.ApplyConfiguration{Expression: "Object{metadata: Object.metadata{labels: {'marked': 'yes'}}}"},
		}}}}, metav1.CreateOptions{}))
	must[*admissionv1.MutatingAdmissionPolicyBinding](t)(api.MutatingAdmissionPolicyBindings().Create(ctx, &admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: named,
		Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: ns}}, metav1.CreateOptions{}))
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	eventually(t, "a policy that refuses", func(ctx context.Context) error {
		_, err := shared.kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap("bad", nil), dry)
		if err == nil || !strings.Contains(err.Error(), "bad is not allowed") {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	eventually(t, "a policy that changes", func(ctx context.Context) error {
		got, err := shared.kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap("good", nil), dry)
		if err == nil && got.Labels["marked"] != "yes" {
			err = fmt.Errorf("labels %v", got.Labels)
		}
		return err
	})
	eventually(t, "the policy's status", func(ctx context.Context) error {
		p, err := api.ValidatingAdmissionPolicies().Get(ctx, ns, metav1.GetOptions{})
		if err == nil && (p.Status.TypeChecking == nil || p.Status.ObservedGeneration != p.Generation) {
			err = errors.New("it was not checked")
		}
		return err
	})
}
