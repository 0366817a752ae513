// Package generic is `concord server`: a control plane without pods, assembled from
// Kubernetes' own generic control plane, an etcd and Kubernetes' controllers, all in one
// process.
package generic
