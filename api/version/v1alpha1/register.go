package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of ClusterVersion.
const GroupName = "concord.dev"

// SchemeGroupVersion is the group and version of this package.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

// ClusterVersions is this package's resource.
var ClusterVersions = schema.GroupResource{Group: GroupName, Resource: "clusterversions"}

// AddToScheme registers the types.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion, &ClusterVersion{}, &ClusterVersionList{})
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
