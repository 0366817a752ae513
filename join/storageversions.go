package join

import (
	clientv3 "go.etcd.io/etcd/client/v3"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/join/internal/registry"
)

// serveStorageVersions installs the StorageVersions on a server. No APIService is made of
// them: kube-apiservers beside this one, which share its etcd and do not serve them, would
// take it that they should, and answer 404 where their discovery promises something. An
// aggregated server's own are for itself alone.
func (j *Join) serveStorageVersions(server *genericapiserver.GenericAPIServer) error {
	if j.hosting != nil {
		groups, err := localGroups(j.storing, j.etcd.client)
		if err != nil {
			return err
		}
		return j.local.Serve(groups...)
	}
	group, err := registry.Group(j.storing.storageOf, j.etcd.client, j.config.Etcd.Prefix)
	if err != nil {
		return err
	}
	j.config.Schemes = append(j.config.Schemes, registry.Scheme)
	return server.InstallAPIGroup(group)
}

// localGroups returns the groups that an aggregated server serves to itself.
func localGroups(s *storing, etcd *clientv3.Client) ([]*genericapiserver.APIGroupInfo, error) {
	versions, err := registry.Group(s.storageOf, etcd, s.config.Etcd.Prefix)
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
