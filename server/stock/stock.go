// Package stock has Kubernetes' own kube-apiserver and kube-controller-manager as they are:
// measurements and tests put them beside concord kube-apiserver.
package stock

import (
	"github.com/spf13/cobra"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

// Command returns the unmodified command of kube-apiserver, of the version of Kubernetes that
// this module requires.
func Command() *cobra.Command { return app.NewAPIServerCommand() }

// ControllerManagerCommand returns that of kube-controller-manager.
func ControllerManagerCommand() *cobra.Command {
	return controllermanager.NewControllerManagerCommand()
}

// MigratorFlag has kube-controller-manager run its migrator of stored objects alone, with the garbage
// collector that it needs.
const MigratorFlag = "--controllers=garbage-collector-controller,storage-version-migrator-controller"
