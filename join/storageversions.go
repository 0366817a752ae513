package join

import (
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/join/registry"
)

// serveStorageVersions installs the StorageVersions on a server. No APIService is made of
// them: kube-apiservers beside this one, which share its etcd and do not serve them, would
// take it that they should, and answer 404 where their discovery promises something.
func (j *Join) serveStorageVersions(server *genericapiserver.GenericAPIServer) error {
	codec, err := registry.Codec()
	if err != nil {
		return err
	}
	options, err := j.storing.storageOf(storageversion.Resource, codec)
	if err != nil {
		return err
	}
	options.Decorator = tolerant(j.etcd.client, j.config.Etcd.Prefix, options.Decorator)
	group, err := registry.Group(options)
	if err != nil {
		return err
	}
	j.config.Schemes = append(j.config.Schemes, registry.Scheme)
	return server.InstallAPIGroup(group)
}
