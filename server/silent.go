package server

import (
	"context"
	"net/http"

	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
	"github.com/concord-dev/concord/member"
	"github.com/concord-dev/concord/server/gates"
	"github.com/concord-dev/concord/stored"
)

// What a server does whose feature gate StorageVersionAPI is off (DESIGN 3.8).
const (
	// silentCheck passes when everybody can know that this server does not report.
	silentCheck = "identity"
	// silentLock elects among the servers that run no controllers of the protocol. They
	// must not keep those who do from it, so that these run beside theirs: namespaces and
	// versions bear being looked after twice.
	silentLock = controllersLock + "-without-storage-versions"
)

// silent says whether this server reports nothing.
func (o *Options) silent() bool { return !o.gates.Enabled(gates.StorageVersionAPI) }

// newSilentMember makes the member that only has a Lease.
func (p *protocol) newSilentMember(clients *clients) error {
	config := p.memberConfig(clients)
	config.Erase = eraseStorageVersions(p.etcd.client, p.options.Etcd.StorageConfig.Prefix)
	var err error
	if p.member, err = member.New(config); err != nil {
		return err
	}
	p.keyring.Listen(p.member.SetEncryption)
	return nil
}

func addSilentHooks(server *genericapiserver.GenericAPIServer, running *running) error {
	if err := server.AddPostStartHook("concord-"+silentCheck, running.start); err != nil {
		return err
	}
	if err := server.AddPreShutdownHook("concord-depart", running.depart); err != nil {
		return err
	}
	return server.AddReadyzChecks(healthz.NamedCheck(silentCheck, func(*http.Request) error { return running.p.member.Ready() }))
}

// eraseStorageVersions returns what deletes all StorageVersions, with one request to etcd:
// the server does not serve them.
func eraseStorageVersions(etcd *clientv3.Client, prefix string) func(context.Context) error {
	key := stored.ResourcePrefix(prefix, storageversion.Resource, false)
	return func(ctx context.Context) error {
		_, err := etcd.Delete(ctx, key, clientv3.WithPrefix())
		return err
	}
}

// ownCRDs are the definitions that the server itself needs. Those of migrations stay where
// they are, but a server without migrations does not make them.
func (o *Options) ownCRDs() []*apiextensionsv1.CustomResourceDefinition {
	if o.silent() {
		return versionv1alpha1.CRDs()
	}
	return append(migrationv1alpha1.CRDs(), versionv1alpha1.CRDs()...)
}
