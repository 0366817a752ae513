// Package controllers is the command that migrates beside stock kube-apiservers: "concord
// controllers", and the program concord-controllers, which holds no server.
package controllers

import (
	"flag"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/uuid"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of clients and work queues
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/concord-dev/concord/build"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/stock"
	"github.com/concord-dev/concord/stock/observed"
)

// defaultPort is that of health and metrics.
const defaultPort = 10258

// options are the flags of the command.
type options struct {
	stock.Config
	kubeconfig  string
	bindAddress string
	port        int
	pruneAfter  string
	verify      string
	mirror      string
	replicas    []string
	maxAdded    time.Duration
}

// NewCommand returns the command, by the name under which it is called.
func NewCommand(name string) *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:   name,
		Short: "Migrate stored objects in a cluster with stock kube-apiservers",
		Long: `Migrate stored objects in a cluster with stock kube-apiservers.

The controllers ask every kube-apiserver in which version it stores each resource. When the
storage version of a resource has changed and all kube-apiservers agree on the new one, they
rewrite its objects by empty patches. More empty patches, sent through every kube-apiserver,
prove that no object is left in another version. Some time later (--prune-after) they remove the
old version from status.storedVersions of the CustomResourceDefinition.

Several replicas may run; one of them is elected. Where any Concord server runs the
controllers do nothing and leave everything to the servers. docs/stock.md describes what the
controllers do and the limits of what they can know.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := o.complete()
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("max-added-latency") {
				config.MaxAddedLatency = &o.maxAdded
			}
			defer klog.Flush()
			ctrllog.SetLogger(klog.Background())
			klog.InfoS("Starting", "build", build.This().String())
			return stock.Run(cmd.Context(), config)
		},
	}
	o.addFlags(cmd)
	return cmd
}

func (o *options) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "the cluster (default $KUBECONFIG, and in a cluster its service account)")
	flags.BoolVar(&o.LeaderElect, "leader-elect", true, "work only while elected")
	flags.StringVar(&o.ElectionNamespace, "leader-elect-resource-namespace", "kube-system", "where the Lease of the election is")
	flags.StringVar(&o.bindAddress, "bind-address", "", "where /healthz, /readyz and /metrics are served, without TLS (default 127.0.0.1, in a cluster 0.0.0.0)")
	flags.IntVar(&o.port, "port", defaultPort, "the port for them; 0 for none")
	flags.StringVar(&o.pruneAfter, "prune-after", "10m", "how long storedVersions keeps a version that was proven not to be stored: a duration, now or never; the annotation "+observed.PruneAnnotation+" of a definition says it for that one")
	flags.Int64Var(&o.MaxObjectsPerSecond, "max-objects-per-second", 0, "how many objects a migration that does not say it itself may patch per second; 0 for no bound")
	flags.DurationVar(&o.maxAdded, "max-added-latency", 0, "by how much the patches of a migration that does not say it itself may lengthen each other, and so clients' requests; 0s for full speed (default: hardly at all)")
	flags.IntVar(&o.MaxParallel, "max-parallel", 0, "how many patches of a migration may be under way (default 32)")
	flags.StringVar(&o.verify, "verify", "sample", "which objects the proof patches: a sample of 1,000, or all")
	flags.BoolVar(&o.InstallDefinitions, "install-crds", true, "install and update the definitions of migration.k8s.io")
	flags.BoolVar(&o.Settings.BestEffort, "best-effort", false, "kube-apiservers cannot be reached one by one, as in some managed clusters: believe whoever answers, and prune storedVersions only where the annotation "+observed.PruneAnnotation+" says when")
	flags.StringVar(&o.mirror, "mirror", string(stock.MirrorAuto), "when to do migrations of storagemigration.k8s.io, too: auto, where kube-controller-manager's own migrator is seen to be off; always, where you know that it is off; never")
	flags.DurationVar(&o.MirrorAfter, "mirror-after", 0, "for how long kube-controller-manager has to leave a migration alone, until --mirror=auto takes its migrator for off (default 5m)")
	flags.BoolVar(&o.CleanFields, "clean-managed-fields", true, "take entries out of managedFields that name versions which a definition does not serve any more")
	flags.BoolVar(&o.Settings.BuiltIn, "built-in-resources", true, "also migrate resources that are no custom ones")
	flags.StringArrayVar(&o.replicas, "replica-address", nil, "for test rigs: where a kube-apiserver is reached, LEASE=host:port, or =host:port for those that no other names and whose Lease tells nothing")
	flags.DurationVar(&o.Poll, "poll", 0, "how often every kube-apiserver is asked (default 10s)")
	flags.DurationVar(&o.ReplicaTimeout, "replica-timeout", 0, "how long one may take to answer the first requests; those for each group/version may take half as long again together (default 10s)")
	flags.DurationVar(&o.Settle, "settle", 0, "for how long all have to store a version before that counts; longer than their --request-timeout (default 75s)")
	verbosity := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(verbosity)
	flags.AddGoFlag(verbosity.Lookup("v"))
}

// complete reads what the flags say.
func (o *options) complete() (stock.Config, error) {
	config := o.Config
	var err error
	if config.Settings.PruneAfter, err = observed.ParsePruneAfter(o.pruneAfter); err != nil {
		return config, fmt.Errorf("--prune-after: %w", err)
	}
	switch o.verify {
	case "all", "sample":
		config.VerifyAll = o.verify == "all"
	default:
		return config, fmt.Errorf("--verify is %q; it can be sample or all", o.verify)
	}
	config.Mirror = stock.MirrorMode(o.mirror)
	config.ReplicaAddresses = map[string]string{}
	for _, text := range o.replicas {
		lease, address, ok := strings.Cut(text, "=")
		if _, _, err := net.SplitHostPort(address); !ok || err != nil {
			return config, fmt.Errorf("--replica-address %q is not LEASE=host:port", text)
		}
		config.ReplicaAddresses[lease] = address
	}
	if o.bindAddress == "" {
		o.bindAddress = "127.0.0.1"
		if os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
			o.bindAddress = "0.0.0.0"
		}
	}
	if o.port != 0 {
		config.Address = net.JoinHostPort(o.bindAddress, strconv.Itoa(o.port))
	}
	cluster, err := connect.Kubeconfig(o.kubeconfig)
	if err != nil {
		return config, err
	}
	config.Rest = connect.AsComponent(cluster, compat.ConcordControllers, compat.BinaryVersion())
	host, err := os.Hostname()
	if err != nil {
		return config, err
	}
	config.Instance = host + "_" + string(uuid.NewUUID())
	config.Logger = klog.Background()
	return config, nil
}
