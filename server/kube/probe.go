// Package kube is going to be the assembly of the real kube-apiserver.
package kube

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver/app"
	_ "k8s.io/kubernetes/pkg/controller/certificates/approver"
	_ "k8s.io/kubernetes/pkg/controller/certificates/cleaner"
	_ "k8s.io/kubernetes/pkg/controller/certificates/signer"
	_ "k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	_ "k8s.io/kubernetes/pkg/controller/garbagecollector"
	_ "k8s.io/kubernetes/pkg/controller/namespace"
	_ "k8s.io/kubernetes/pkg/controller/resourcequota"
	_ "k8s.io/kubernetes/pkg/controller/serviceaccount"
	_ "k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	_ "k8s.io/kubernetes/pkg/controller/validatingadmissionpolicystatus"
	_ "k8s.io/kubernetes/pkg/controlplane/apiserver"
	_ "k8s.io/kubernetes/pkg/controlplane/apiserver/samples/generic/server"
)
