package kube

import (
	"fmt"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/server/flagz"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of clients and work queues, as kube-apiserver has them
	"k8s.io/component-base/term"
	"k8s.io/component-base/version/verflag"
	kubeoptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/concord-dev/concord/gates"
	"github.com/concord-dev/concord/join"
	"github.com/concord-dev/concord/stored"
)

func init() {
	utilruntime.Must(logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate))
}

// Options are the options that the server has beyond kube-apiserver's flags.
type Options struct {
	// Join is the part of the protocol's configuration that operators set.
	Join join.Config
	// AllowUndecodableStorage starts the server although objects may be stored that it cannot
	// decode.
	AllowUndecodableStorage bool
}

// NewCommand returns kube-apiserver's command with all its flags and those of the protocol.
func NewCommand() *cobra.Command {
	s, own := kubeoptions.NewServerRunOptions(), &Options{Join: join.Defaults()}
	registry := s.GenericServerRunOptions.ComponentGlobalsRegistry
	utilruntime.Must(gates.Register(registry))
	flags := s.Flags()
	verflag.AddFlags(flags.FlagSet("global"))
	versions, err := gates.Adapt(flags.FlagSet("generic"), registry)
	utilruntime.Must(err)
	cmd := &cobra.Command{
		Use:   "kube-apiserver",
		Short: "Run kube-apiserver with Concord, in place of the stock one of a control plane",
		Long: `Run the kube-apiserver of Kubernetes with all its flags and defaults. In addition, the server
reports in which version it stores every resource, accepts no write before that report is
known, and migrates stored objects when all API servers of the cluster agree. To use it,
replace the stock image in the static pod of the control plane (docs/kubeadm.md).`,
		SilenceUsage: true,
		Args:         cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			logs.InitLogs()
			if err := versions.Set(); err != nil {
				return err
			}
			own.Join.Silent = !registry.FeatureGateFor(gates.Concord).Enabled(gates.StorageVersionAPI)
			// The loopback clients' own warnings are not for the log.
			rest.SetDefaultWarningHandler(rest.NoWarnings{})
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			defer logs.FlushLogs()
			if printed, err := printVersion(cmd, registry); printed || err != nil {
				return err
			}
			return runCommand(cmd, s, own)
		},
	}
	cmd.SetGlobalNormalizationFunc(cliflag.WordSepNormalizeFunc) // --feature_gates, too
	s.Flagz = flagz.NamedFlagSetsReader{FlagSets: flags}
	globalflag.AddGlobalFlags(flags.FlagSet("global"), cmd.Name(), logs.SkipLoggingConfigurationFlags())
	own.Join.AddFlags(flags.FlagSet("storage migration"))
	flags.FlagSet("storage migration").BoolVar(&own.AllowUndecodableStorage, stored.AllowFlag, false, stored.AllowUsage)
	for _, set := range flags.FlagSets {
		cmd.Flags().AddFlagSet(set)
	}
	columns, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, flags, columns)
	return cmd
}

// printVersion prints the version if flag --version asks for it, in kube-apiserver's form.
func printVersion(cmd *cobra.Command, registry basecompatibility.ComponentGlobalsRegistry) (printed bool, err error) {
	info := gates.Reported(registry.EffectiveVersionFor(gates.Kube), registry).Info()
	switch cmd.Flags().Lookup("version").Value.String() {
	case string(verflag.VersionTrue):
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "Kubernetes %s\n", info)
	case string(verflag.VersionRaw):
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%#v\n", *info)
	default:
		return false, nil
	}
	return true, err
}

func runCommand(cmd *cobra.Command, s *kubeoptions.ServerRunOptions, own *Options) error {
	registry := s.GenericServerRunOptions.ComponentGlobalsRegistry
	if err := logsapi.ValidateAndApply(s.Logs, registry.FeatureGateFor(gates.Kube)); err != nil {
		return err
	}
	cliflag.PrintFlags(cmd.Flags())
	completed, err := s.Complete(cmd.Context())
	if err != nil {
		return err
	}
	if errs := completed.Validate(); len(errs) != 0 {
		return utilerrors.NewAggregate(errs)
	}
	return Run(cmd.Context(), completed, own)
}
