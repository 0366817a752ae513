package beside

import (
	"context"
	"fmt"
	"regexp"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
)

// StorageVersions returns the StorageVersions by resource. It is an error if there are fewer than a kube-apiserver has.
func StorageVersions(ctx context.Context, objects client.Client) (map[schema.GroupResource]*apiserverinternalv1alpha1.StorageVersion, error) {
	list := &apiserverinternalv1alpha1.StorageVersionList{}
	if err := objects.List(ctx, list); err != nil {
		return nil, err
	}
	if len(list.Items) < 50 {
		return nil, fmt.Errorf("there are %d StorageVersions", len(list.Items))
	}
	found := map[schema.GroupResource]*apiserverinternalv1alpha1.StorageVersion{}
	for i := range list.Items {
		gr, err := storageversion.GroupResource(list.Items[i].Name)
		if err != nil {
			return nil, err
		}
		found[gr] = &list.Items[i]
	}
	return found, nil
}

// States checks the StorageState of each StorageVersion with holds.
func States(ctx context.Context, objects client.Client, holds func(*apiserverinternalv1alpha1.StorageVersion, migrationv1alpha1.StorageStateStatus) bool) error {
	versions, err := StorageVersions(ctx, objects)
	if err != nil {
		return err
	}
	list := &migrationv1alpha1.StorageStateList{}
	if err := objects.List(ctx, list); err != nil {
		return err
	}
	states := map[schema.GroupResource]migrationv1alpha1.StorageStateStatus{}
	for i := range list.Items {
		states[schema.GroupResource(list.Items[i].Spec.Resource)] = list.Items[i].Status
	}
	for gr, sv := range versions {
		if !holds(sv, states[gr]) {
			return fmt.Errorf("%s: stored are %v, %s", gr, states[gr].PersistedEncodings, storageversion.WaitsFor(sv))
		}
	}
	return nil
}

// advice is the command that the condition of a StorageVersion advises for a server that crashed.
var advice = regexp.MustCompile(`kubectl delete lease -n (\S+) (\S+)$`)

// Blamed returns the identity Lease that is, according to the conditions of all StorageVersions, the only reason why
// no resource has an agreement. It is an error if the conditions say otherwise, or the Lease does not exist.
func Blamed(ctx context.Context, objects client.Client) (lease string, err error) {
	versions, err := StorageVersions(ctx, objects)
	if err != nil {
		return "", err
	}
	for gr, sv := range versions {
		told := storageversion.WaitsFor(sv)
		match := advice.FindStringSubmatch(told)
		if common, ok := storageversion.Agreement(sv); ok || match == nil || match[1] != storageversion.IdentityNamespace || lease != "" && match[2] != lease {
			return "", fmt.Errorf("%s: agreed on is %q, it says %q", gr, common, told)
		}
		lease = match[2]
	}
	return lease, objects.Get(ctx, client.ObjectKey{Namespace: storageversion.IdentityNamespace, Name: lease}, &coordinationv1.Lease{})
}

// MutatingPolicy returns an object that releases of Kubernetes store in different versions.
func MutatingPolicy(name string) *admissionregistrationv1.MutatingAdmissionPolicy {
	rule := admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{"example.org"}, APIVersions: []string{"*"}, Resources: []string{"gadgets"}},
	}
	p := &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.MatchConstraints = &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: rule}}}
	p.Spec.ReinvocationPolicy = admissionregistrationv1.NeverReinvocationPolicy
	p.Spec.Mutations = []admissionregistrationv1.Mutation{{
		PatchType:          admissionregistrationv1.PatchTypeApplyConfiguration,
		ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: `Object{metadata: Object.metadata{labels: {"a": "b"}}}`},
	}}
	return p
}
