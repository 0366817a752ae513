// Package v1alpha1 holds the wire types of migration.k8s.io/v1alpha1 (KEP-2343, "API design"): StorageState, which
// records the encodings that may be stored, and StorageVersionMigration, a request to rewrite a resource. Both are
// field-compatible with kube-storage-version-migrator's types of the same names; fields that go beyond them say so.
// Both are installed as CustomResourceDefinitions, see CRDs.
//
// +k8s:deepcopy-gen=package
// +groupName=migration.k8s.io
package v1alpha1

// The file go:generate writes is the only generated one here.
//go:generate go run k8s.io/code-generator/cmd/deepcopy-gen@v0.37.2 --output-file zz_generated.deepcopy.go .
