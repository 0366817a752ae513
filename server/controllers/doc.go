// Package controllers runs Kubernetes' own controllers that a control plane without pods
// needs, in the server's process, while that server is elected. Each has the identity, and
// so the rights, that it has in kube-controller-manager.
package controllers
