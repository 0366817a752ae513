package join

import (
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/join/internal/local"
	"github.com/concord-dev/concord/join/internal/registry"
)

// serveStorageVersions installs the StorageVersions on a server. No APIService is made of
// them: kube-apiservers beside this one, which share its etcd and do not serve them, would
// take it that they should, and answer 404 where their discovery promises something. An
// aggregated server's own are for itself alone: they are served by own, which is nil in other servers.
func (s *storing) serveStorageVersions(server *genericapiserver.GenericAPIServer, own *local.API) error {
	if own != nil {
		groups, err := s.localGroups()
		if err != nil {
			return err
		}
		return own.Serve(groups...)
	}
	group, err := registry.Group(s.storageOf, s.etcd, s.config.Etcd.Prefix)
	if err != nil {
		return err
	}
	s.config.Schemes = append(s.config.Schemes, registry.Scheme)
	return server.InstallAPIGroup(group)
}

// localGroups returns the groups that an aggregated server serves to itself.
func (s *storing) localGroups() ([]*genericapiserver.APIGroupInfo, error) {
	versions, err := registry.Group(s.storageOf, s.etcd, s.config.Etcd.Prefix)
	if err != nil {
		return nil, err
	}
	leases, err := registry.LeaseGroup(s.storageOf)
	return []*genericapiserver.APIGroupInfo{versions, leases}, err
}

// isLocal reports whether a store belongs to the local API.
func isLocal(group string) bool {
	return group == storageversion.Resource.Group || group == registry.Leases.Group
}
