// Package wardle is k8s.io/sample-apiserver, an aggregated API server of flunders and
// fischers, whose replicas agree by package join on the version in which flunders are stored.
// The ten lines marked "join" are what that takes.
package wardle

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	sampleapiserver "k8s.io/sample-apiserver/pkg/apiserver"
	sample "k8s.io/sample-apiserver/pkg/cmd/server"

	"github.com/concord-dev/concord/join" // join
)

// options are the options of k8s.io/sample-apiserver, and the version in which flunders are stored.
type options struct {
	*sample.WardleServerOptions
	storageVersion string
	joining        join.Config // join
}

// NewCommand returns the server's command, which runs until ctx ends.
func NewCommand(ctx context.Context, stdout, stderr io.Writer) *cobra.Command {
	o := &options{WardleServerOptions: sample.NewWardleServerOptions(stdout, stderr)}
	cmd := sample.NewCommandStartWardleServer(ctx, o.WardleServerOptions, false)
	cmd.Use, cmd.SilenceUsage = "aggregated", true
	cmd.Flags().StringVar(&o.storageVersion, "storage-version", "v1alpha1", "Version of wardle.example.com in which flunders are stored: v1alpha1 or v1beta1.")
	o.joining.AddFlags(cmd.Flags()) // join
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.Complete(); err != nil {
			return err
		}
		if err := o.Validate(args); err != nil {
			return err
		}
		return o.run(cmd.Context())
	}
	return cmd
}

// run serves until ctx ends.
func (o *options) run(ctx context.Context) error {
	config, err := o.Config()
	if err != nil {
		return err
	}
	config.GenericConfig.ShutdownWatchTerminationGracePeriod = 2 * time.Second // else a stop waits a minute for open watches
	if err := o.storeFlunders(config); err != nil {
		return err
	}
	j, err := o.joining.Join(ctx, config.GenericConfig, o.RecommendedOptions.Etcd, sampleapiserver.Scheme) // join
	if err != nil {                                                                                        // join
		return err // join
	} // join
	server, err := config.Complete().New()
	if err != nil {
		return err
	}
	if err := j.Start(server.GenericAPIServer); err != nil { // join
		return err // join
	} // join
	err = server.GenericAPIServer.AddPostStartHook("start-sample-server-informers", func(hook genericapiserver.PostStartHookContext) error {
		config.GenericConfig.SharedInformerFactory.Start(hook.Done())
		o.SharedInformerFactory.Start(hook.Done())
		return nil
	})
	if err != nil {
		return err
	}
	return server.GenericAPIServer.PrepareRun().RunWithContext(ctx)
}

// storeFlunders makes flunders be stored in the version of --storage-version. Fischers have only one version.
func (o *options) storeFlunders(config *sampleapiserver.Config) error {
	version := schema.GroupVersion{Group: flunders.Group, Version: o.storageVersion}
	if !sampleapiserver.Scheme.IsVersionRegistered(version) {
		return fmt.Errorf("--storage-version %s is not allowed: v1alpha1 or v1beta1", o.storageVersion)
	}
	config.GenericConfig.RESTOptionsGetter = storedIn{config.GenericConfig.RESTOptionsGetter, version}
	return nil
}
