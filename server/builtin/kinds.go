package builtin

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	admissionv1alpha1 "k8s.io/api/admissionregistration/v1alpha1"
	admissionv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1alpha1 "k8s.io/api/certificates/v1alpha1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1alpha2 "k8s.io/api/coordination/v1alpha2"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	storagemigrationv1beta1 "k8s.io/api/storagemigration/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Names of the groups served.
const (
	coreGroup             = corev1.GroupName
	eventsGroup           = eventsv1.GroupName
	admissionGroup        = admissionv1.GroupName
	apiserverGroup        = apiserverinternalv1alpha1.GroupName
	authenticationGroup   = authenticationv1.GroupName
	authorizationGroup    = authorizationv1.GroupName
	certificatesGroup     = certificatesv1.GroupName
	coordinationGroup     = coordinationv1.GroupName
	discoveryGroup        = discoveryv1.GroupName
	networkingGroup       = networkingv1.GroupName
	storagemigrationGroup = storagemigrationv1.GroupName
)

// A kind is one resource with all the versions this binary decodes.
// Invariant: versions[0] is the newest; its types hold objects in memory.
type kind struct {
	schema.GroupResource
	Kind     string
	versions []types
	storage  builder
	// transient kinds (reviews) are answered and never stored.
	transient bool
	// storedAs is another resource whose store this one shares; such a kind has no
	// storage of its own.
	storedAs schema.GroupResource
}

// A builder makes the REST storage of a kind.
type builder func(kind, generics) (stores, error)

// types are the Go types of one version of a kind. A transient kind has no list.
type types struct {
	version      string
	object, list runtime.Object
}

func (k kind) groupVersion(t types) schema.GroupVersion {
	return schema.GroupVersion{Group: k.Group, Version: t.version}
}

func (k kind) internal() schema.GroupVersion {
	return schema.GroupVersion{Group: k.Group, Version: runtime.APIVersionInternal}
}

var eventsResource = schema.GroupResource{Group: coreGroup, Resource: "events"}

func of(group, resource, name string, storage builder, versions ...types) kind {
	return kind{
		GroupResource: schema.GroupResource{Group: group, Resource: resource},
		Kind:          name,
		versions:      versions,
		storage:       storage,
	}
}

func review(group, resource, name string, storage builder, object runtime.Object) kind {
	k := of(group, resource, name, storage, types{"v1", object, nil})
	k.transient = true
	return k
}

// kinds returns everything this binary can serve. Versions that were removed before the
// oldest release a server may emulate are left out, even where k8s.io/api still has them.
func kinds() []kind {
	events := of(eventsGroup, "events", "Event", nil, types{"v1", &eventsv1.Event{}, &eventsv1.EventList{}})
	events.storedAs = eventsResource
	all := []kind{
		of(coreGroup, "namespaces", "Namespace", namespaceStorage,
			types{"v1", &corev1.Namespace{}, &corev1.NamespaceList{}}),
		of(coreGroup, "configmaps", "ConfigMap", configMapStorage,
			types{"v1", &corev1.ConfigMap{}, &corev1.ConfigMapList{}}),
		of(coreGroup, "secrets", "Secret", secretStorage,
			types{"v1", &corev1.Secret{}, &corev1.SecretList{}}),
		of(coreGroup, "serviceaccounts", "ServiceAccount", serviceAccountStorage,
			types{"v1", &corev1.ServiceAccount{}, &corev1.ServiceAccountList{}}),
		of(coreGroup, "services", "Service", serviceStorage,
			types{"v1", &corev1.Service{}, &corev1.ServiceList{}}),
		of(discoveryGroup, "endpointslices", "EndpointSlice", endpointSliceStorage,
			types{"v1", &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{}}),
		of(coreGroup, "events", "Event", eventStorage,
			types{"v1", &corev1.Event{}, &corev1.EventList{}}),
		events,
		of(apiserverGroup, "storageversions", "StorageVersion", storageVersionStorage,
			types{"v1alpha1", &apiserverinternalv1alpha1.StorageVersion{}, &apiserverinternalv1alpha1.StorageVersionList{}}),
		of(coordinationGroup, "leases", "Lease", leaseStorage,
			types{"v1", &coordinationv1.Lease{}, &coordinationv1.LeaseList{}}),
		of(coordinationGroup, "leasecandidates", "LeaseCandidate", leaseCandidateStorage,
			types{"v1beta1", &coordinationv1beta1.LeaseCandidate{}, &coordinationv1beta1.LeaseCandidateList{}},
			types{"v1alpha2", &coordinationv1alpha2.LeaseCandidate{}, &coordinationv1alpha2.LeaseCandidateList{}}),
		of(certificatesGroup, "clustertrustbundles", "ClusterTrustBundle", clusterTrustBundleStorage,
			types{"v1", &certificatesv1.ClusterTrustBundle{}, &certificatesv1.ClusterTrustBundleList{}},
			types{"v1beta1", &certificatesv1beta1.ClusterTrustBundle{}, &certificatesv1beta1.ClusterTrustBundleList{}},
			types{"v1alpha1", &certificatesv1alpha1.ClusterTrustBundle{}, &certificatesv1alpha1.ClusterTrustBundleList{}}),
		of(networkingGroup, "ipaddresses", "IPAddress", ipAddressStorage,
			types{"v1", &networkingv1.IPAddress{}, &networkingv1.IPAddressList{}},
			types{"v1beta1", &networkingv1beta1.IPAddress{}, &networkingv1beta1.IPAddressList{}}),
		of(networkingGroup, "servicecidrs", "ServiceCIDR", serviceCIDRStorage,
			types{"v1", &networkingv1.ServiceCIDR{}, &networkingv1.ServiceCIDRList{}},
			types{"v1beta1", &networkingv1beta1.ServiceCIDR{}, &networkingv1beta1.ServiceCIDRList{}}),
		of(storagemigrationGroup, "storageversionmigrations", "StorageVersionMigration", migrationStorage,
			types{"v1", &storagemigrationv1.StorageVersionMigration{}, &storagemigrationv1.StorageVersionMigrationList{}},
			types{"v1beta1", &storagemigrationv1beta1.StorageVersionMigration{}, &storagemigrationv1beta1.StorageVersionMigrationList{}}),
		review(authenticationGroup, "selfsubjectreviews", "SelfSubjectReview", selfSubjectReviewStorage, &authenticationv1.SelfSubjectReview{}),
		review(authorizationGroup, "subjectaccessreviews", "SubjectAccessReview", subjectAccessReviewStorage, &authorizationv1.SubjectAccessReview{}),
		review(authorizationGroup, "selfsubjectaccessreviews", "SelfSubjectAccessReview", selfSubjectAccessReviewStorage, &authorizationv1.SelfSubjectAccessReview{}),
		review(authorizationGroup, "localsubjectaccessreviews", "LocalSubjectAccessReview", localSubjectAccessReviewStorage, &authorizationv1.LocalSubjectAccessReview{}),
		review(authorizationGroup, "selfsubjectrulesreviews", "SelfSubjectRulesReview", selfSubjectRulesReviewStorage, &authorizationv1.SelfSubjectRulesReview{}),
	}
	return append(all, admissionKinds()...)
}

func admissionKinds() []kind {
	return []kind{
		of(admissionGroup, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", validatingWebhookStorage,
			types{"v1", &admissionv1.ValidatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfigurationList{}}),
		of(admissionGroup, "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", mutatingWebhookStorage,
			types{"v1", &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.MutatingWebhookConfigurationList{}}),
		of(admissionGroup, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", validatingPolicyStorage,
			types{"v1", &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyList{}},
			types{"v1beta1", &admissionv1beta1.ValidatingAdmissionPolicy{}, &admissionv1beta1.ValidatingAdmissionPolicyList{}},
			types{"v1alpha1", &admissionv1alpha1.ValidatingAdmissionPolicy{}, &admissionv1alpha1.ValidatingAdmissionPolicyList{}}),
		of(admissionGroup, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", validatingBindingStorage,
			types{"v1", &admissionv1.ValidatingAdmissionPolicyBinding{}, &admissionv1.ValidatingAdmissionPolicyBindingList{}},
			types{"v1beta1", &admissionv1beta1.ValidatingAdmissionPolicyBinding{}, &admissionv1beta1.ValidatingAdmissionPolicyBindingList{}},
			types{"v1alpha1", &admissionv1alpha1.ValidatingAdmissionPolicyBinding{}, &admissionv1alpha1.ValidatingAdmissionPolicyBindingList{}}),
		of(admissionGroup, "mutatingadmissionpolicies", "MutatingAdmissionPolicy", mutatingPolicyStorage,
			types{"v1", &admissionv1.MutatingAdmissionPolicy{}, &admissionv1.MutatingAdmissionPolicyList{}},
			types{"v1beta1", &admissionv1beta1.MutatingAdmissionPolicy{}, &admissionv1beta1.MutatingAdmissionPolicyList{}},
			types{"v1alpha1", &admissionv1alpha1.MutatingAdmissionPolicy{}, &admissionv1alpha1.MutatingAdmissionPolicyList{}}),
		of(admissionGroup, "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", mutatingBindingStorage,
			types{"v1", &admissionv1.MutatingAdmissionPolicyBinding{}, &admissionv1.MutatingAdmissionPolicyBindingList{}},
			types{"v1beta1", &admissionv1beta1.MutatingAdmissionPolicyBinding{}, &admissionv1beta1.MutatingAdmissionPolicyBindingList{}},
			types{"v1alpha1", &admissionv1alpha1.MutatingAdmissionPolicyBinding{}, &admissionv1alpha1.MutatingAdmissionPolicyBindingList{}}),
	}
}
