package stock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/beside"
)

// unsteady creates a MutatingAdmissionPolicy that changes widgets at every update.
func unsteady(w *beside.Widgets) (remove func()) {
	s, t := w.Server, w.Server.Cluster.T
	t.Helper()
	policies, bindings := s.Kube().AdmissionregistrationV1().MutatingAdmissionPolicies(), s.Kube().AdmissionregistrationV1().MutatingAdmissionPolicyBindings()
	_, err := policies.Create(t.Context(), &admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "unsteady"},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			FailurePolicy: ptr.To(admissionregistrationv1.Fail), ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{beside.Group}, APIVersions: []string{"*"}, Resources: []string{w.Plural}},
				},
			}}},
			Mutations: []admissionregistrationv1.Mutation{{
				PatchType: admissionregistrationv1.PatchTypeJSONPatch,
				JSONPatch: &admissionregistrationv1.JSONPatch{Expression: `[JSONPatch{op: "replace", path: "/spec/n", value: object.spec.n + 1}]`},
			}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = bindings.Create(t.Context(), &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "unsteady"}, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "unsteady"},
	}, metav1.CreateOptions{})
	must(t, err)
	beside.Eventually(t, beside.Patience, "admission changes widgets", func(ctx context.Context) error {
		one := s.Dynamic().Resource(w.In("v1")).Namespace(beside.Namespace)
		before, err := one.Get(ctx, beside.ObjectName(0), metav1.GetOptions{})
		if err != nil {
			return err
		}
		after, err := one.Patch(ctx, beside.ObjectName(0), types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
		if err == nil && after.GetResourceVersion() == before.GetResourceVersion() {
			err = errors.New("an empty patch changed nothing")
		}
		return err
	})
	return func() {
		must(t, bindings.Delete(t.Context(), "unsteady", metav1.DeleteOptions{}))
		beside.Eventually(t, beside.Patience, "admission leaves widgets alone", func(ctx context.Context) error {
			one := s.Dynamic().Resource(w.In("v1")).Namespace(beside.Namespace)
			if _, err := one.Patch(ctx, beside.ObjectName(0), types.MergePatchType, []byte("{}"), metav1.PatchOptions{}); err != nil {
				return err
			}
			before, err := one.Get(ctx, beside.ObjectName(0), metav1.GetOptions{})
			if err != nil {
				return err
			}
			after, err := one.Patch(ctx, beside.ObjectName(0), types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
			if err == nil && after.GetResourceVersion() != before.GetResourceVersion() {
				err = errors.New("an empty patch changed it")
			}
			return err
		})
	}
}

// testUnproven: if objects change with every write, nothing is proven, so nothing is pruned, and
// the migration says why. It is not made again for a long time, except for users that ask for it.
func testUnproven(t *testing.T, a *beside.APIServer) {
	const objects = 20
	w := a.Define("unprovens", false, nil)
	w.Fill(objects, nil)
	w.AwaitStored(beside.V1, beside.V1)
	steady := unsteady(w)
	w.Store("v2")
	beside.Eventually(t, beside.Patience, "the migration fails for lack of a proof", func(ctx context.Context) error {
		all, err := w.Migrations(ctx)
		for _, m := range all {
			if c := migrationv1alpha1.True(&m, migrationv1alpha1.MigrationFailed); c != nil && strings.Contains(c.Message, "admission changes it at every write") {
				if c.Reason != migrationv1alpha1.ReasonChangedByAdmission || m.Annotations[migrationv1alpha1.AttemptAnnotation] != "1" {
					t.Errorf("it failed with the reason %s, and has the annotations %v", c.Reason, m.Annotations)
				}
				return nil
			}
			err = errors.Join(err, fmt.Errorf("%s: %+v", m.Name, m.Status))
		}
		return errors.Join(err, fmt.Errorf("there are %d migrations", len(all)))
	})
	if versions, err := w.StoredVersions(t.Context()); err != nil || !slices.Equal(versions, []string{"v1", "v2"}) {
		t.Errorf("storedVersions are %v, %v", versions, err)
	}
	steady()
	again := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "again"}}
	again.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: beside.Group, Resource: w.Plural}
	must(t, a.Objects().Create(t.Context(), again))
	w.AwaitPruned(objects)
}
