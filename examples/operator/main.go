// Command operator is the least that an operator has to do so that the objects of its own
// CustomResourceDefinition are stored in one version: it migrates those of
// widgets.example.com, with $KUBECONFIG or the ServiceAccount of its pod.
package main

import (
	"flag"
	"log"

	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/concord-dev/concord/migrator"
)

func main() {
	settle := flag.Duration("settle", 0, "see migrator.Options")
	flag.Parse()
	ctrl.SetLogger(klog.Background())
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		log.Fatal(err)
	}
	if err := migrator.SetupWithManager(mgr, migrator.Options{CRDs: []string{"widgets.example.com"}, Settle: *settle}); err != nil {
		log.Fatal(err)
	}
	if err := mgr.Start(ctrl.SetupSignalHandler()); err != nil {
		log.Fatal(err)
	}
}
