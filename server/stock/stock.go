// Package stock runs Kubernetes' own kube-apiserver as it is, which is what measurements and
// tests put beside concord kube-apiserver.
package stock

import (
	"github.com/spf13/cobra"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

// Command returns the unmodified command of kube-apiserver, of the version of Kubernetes that
// this module requires.
func Command() *cobra.Command { return app.NewAPIServerCommand() }
