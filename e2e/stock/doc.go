// Package stock tests the controllers beside stock kube-apiservers: real processes of
// Kubernetes' own code on one etcd.
package stock
