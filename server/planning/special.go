package planning

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/version"
)

// The tables of this file hold the facts that Kubernetes' types do not say of themselves. The tests compare them with other
// sources in the module k8s.io/kubernetes and its neighbours: the discovery documents of 1.37, the objects that earlier releases
// stored, and the REST storage that is really built.

// resourceless are the groups whose kinds are no resources of any API server, but the bodies of webhook calls.
var resourceless = map[string]bool{
	"admission.k8s.io":   true,
	"imagepolicy.k8s.io": true,
}

// unlisted are the kinds without a List that are resources all the same: they can only be created, and are answered
// instead of stored. All other kinds without a List are bodies of subresources (Scale, TokenRequest, the Eviction of pods), parts of
// requests, or values that stand in etcd under no API (RangeAllocation).
var unlisted = map[schema.GroupKind]bool{
	{Group: "", Kind: "Binding"}:                                      true,
	{Group: "authentication.k8s.io", Kind: "SelfSubjectReview"}:       true,
	{Group: "authentication.k8s.io", Kind: "TokenReview"}:             true,
	{Group: "authorization.k8s.io", Kind: "LocalSubjectAccessReview"}: true,
	{Group: "authorization.k8s.io", Kind: "SelfSubjectAccessReview"}:  true,
	{Group: "authorization.k8s.io", Kind: "SelfSubjectRulesReview"}:   true,
	{Group: "authorization.k8s.io", Kind: "SubjectAccessReview"}:      true,
}

// unstored are the resources with a List that have no storage of their own.
var unstored = map[schema.GroupResource]bool{
	// Asked of the components each time.
	{Group: "", Resource: "componentstatuses"}: true,
	// Cohabits with the events of the core group, in whose version both are stored.
	{Group: "events.k8s.io", Resource: "events"}: true,
}

// formerHome is the group in which Deployments, DaemonSets, ReplicaSets, NetworkPolicies and Ingresses began. It is
// not served since 1.22. Its resources are stored with the resources of the same name in other groups, which still
// decode values that were written in it.
const formerHome = "extensions"

// storedAs are the resources that are stored in another version than the window allows.
var storedAs = map[schema.GroupResource]schema.GroupVersion{
	// Kubernetes stores CRDs in v1beta1 until https://issue.k8s.io/82292 is resolved: some are too big for etcd in v1. The
	// version is served by no release in range, and decoded by all.
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}: {Group: "apiextensions.k8s.io", Version: "v1beta1"},
}

// elsewhere are the resources that package join serves in Kubernetes' stead: our registry of StorageVersions keeps their epochs.
var elsewhere = map[schema.GroupResource]bool{
	{Group: "internal.apiserver.k8s.io", Resource: "storageversions"}: true,
}

// span is the part of a lifecycle that a type can be silent about. An empty string means none, or none so far.
type span struct{ introduced, deprecated, removed string }

// untold are the versions whose types do not say when they were introduced and removed.
var untold = map[schema.GroupVersion]span{
	{Group: "internal.apiserver.k8s.io", Version: "v1alpha1"}: {introduced: "1.20"},
	{Group: "scheduling.k8s.io", Version: "v1alpha3"}:         {introduced: "1.37"},
	// Long gone from every API; the types are kept to read old values.
	{Group: "node.k8s.io", Version: "v1alpha1"}:               {"1.14", "1.20", "1.24"},
	{Group: "rbac.authorization.k8s.io", Version: "v1alpha1"}: {"1.6", "1.17", "1.23"},
}

// lost are the versions that a release in range served and decoded, and whose types k8s.io/api no longer has.
var lost = []struct {
	schema.GroupVersionResource
	kind string
	span
}{
	{schema.GroupVersionResource{Group: "certificates.k8s.io", Version: "v1alpha1", Resource: "podcertificaterequests"}, "PodCertificateRequest", span{introduced: "1.34", removed: "1.35"}},
	{schema.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1alpha1", Resource: "workloads"}, "Workload", span{introduced: "1.35", removed: "1.36"}},
	{schema.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1alpha2", Resource: "workloads"}, "Workload", span{introduced: "1.36", removed: "1.37"}},
	{schema.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1alpha2", Resource: "podgroups"}, "PodGroup", span{introduced: "1.36", removed: "1.37"}},
	{schema.GroupVersionResource{Group: "storagemigration.k8s.io", Version: "v1alpha1", Resource: "storageversionmigrations"}, "StorageVersionMigration", span{"1.30", "1.33", "1.35"}},
}

// release is a row's release; nil for "".
func release(s string) *version.Version {
	if s == "" {
		return nil
	}
	return version.MustParseMajorMinor(s)
}

// genericCore lists the resources of the core group that a control plane without pods serves: upstream's, and
// Services, which say where webhooks and aggregated APIs are.
var genericCore = sets.New("configmaps", "events", "namespaces", "resourcequotas", "secrets", "serviceaccounts", "services")

// genericAlso are resources that it serves beyond upstream's, for the same reason.
var genericAlso = sets.New(schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"})

// podBound are the resources of other groups that such a control plane does not serve, although it serves their group.
var podBound = sets.New(
	schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"},
)

// needed are the resources by which a server reports itself, and in which it keeps what it knows of migrations.
var needed = []schema.GroupVersionResource{
	{Version: "v1", Resource: "namespaces"},
	{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
	{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
}
