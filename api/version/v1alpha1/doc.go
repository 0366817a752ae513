// Package v1alpha1 holds the wire type of concord.dev/v1alpha1 ClusterVersion: the versions of a cluster's
// servers, and whether they allow each other (KEP-4330, "Risk: Unintended and out-of-allowance version skew").
// It is installed as a CustomResourceDefinition, see CRDs.
//
// +k8s:deepcopy-gen=package
// +groupName=concord.dev
package v1alpha1

// The file go:generate writes is the only generated one here.
//go:generate go run k8s.io/code-generator/cmd/deepcopy-gen@v0.37.2 --output-file zz_generated.deepcopy.go .
