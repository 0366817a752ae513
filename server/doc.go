// Package server is Concord's control plane: a highly available, Kubernetes-style API
// server on k8s.io/apiserver, apiextensions-apiserver and kube-aggregator, whose storage
// is fenced (package fence), whose reports are kept (package member) and whose stored
// objects migrate by themselves (controller/..., rewrite). It only wires; decisions are
// made in the packages it imports.
package server
