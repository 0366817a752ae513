package join_test

import (
	"context"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	basecompatibility "k8s.io/component-base/compatibility"

	"github.com/concord-dev/concord/join"
)

// server is an aggregated API server, as its author may have it.
type server struct {
	scheme  *runtime.Scheme
	options *genericoptions.RecommendedOptions
	group   *genericapiserver.APIGroupInfo
	joining join.Config
}

func (s *server) addFlags(flags *pflag.FlagSet) {
	s.options.AddFlags(flags)
	s.joining.AddFlags(flags)
}

func (s *server) run(ctx context.Context) error {
	config := genericapiserver.NewRecommendedConfig(serializer.NewCodecFactory(s.scheme))
	config.EffectiveVersion = basecompatibility.NewEffectiveVersionFromString("1.0", "", "") // the server's own release
	if err := s.options.ApplyTo(config); err != nil {
		return err
	}
	// Join is called between the configuration and the making of the server.
	j, err := s.joining.Join(ctx, config, s.options.Etcd, s.scheme)
	if err != nil {
		return err
	}
	generic, err := config.Complete().New("example", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return err
	}
	if err := generic.InstallAPIGroup(s.group); err != nil {
		return err
	}
	// Start is called when all API groups are installed, and before PrepareRun.
	if err := j.Start(generic); err != nil {
		return err
	}
	return generic.PrepareRun().RunWithContext(ctx)
}

// An aggregated API server joins by ten lines. A kube-apiserver, whose chain has several
// servers, calls New, Storage for each of them and Handlers for the last, as server/kube does.
func Example() {
	s := &server{scheme: runtime.NewScheme()}
	s.options = genericoptions.NewRecommendedOptions("/registry/example.com", nil)
	s.addFlags(pflag.CommandLine)
	pflag.Parse()
	if err := s.run(genericapiserver.SetupSignalContext()); err != nil {
		panic(err)
	}
}
