package join

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/emicklei/go-restful/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/join/internal/registry"
)

// localShutdown bounds how long the local API waits for its own clients at the end.
const localShutdown = time.Second

// localAPI serves Leases and StorageVersions of an aggregated API server to itself, from its
// own etcd. With them the protocol runs there as in any cluster: the server's Lease, its
// report and so its permission to write are objects beside those that it writes. They are in
// nobody's discovery, and no connection leads here from outside the process.
type localAPI struct {
	connections chan net.Conn
	server      *http.Server
	ended       context.Context
	end         context.CancelFunc
	serving     sync.WaitGroup
}

func newLocalAPI() *localAPI {
	l := &localAPI{connections: make(chan net.Conn), server: &http.Server{ReadHeaderTimeout: time.Minute}}
	l.ended, l.end = context.WithCancel(context.Background())
	return l
}

// config reaches the API. Until it is served connections wait.
func (l *localAPI) config() *rest.Config {
	return &rest.Config{Host: "http://local", QPS: -1, Dial: l.dial}
}

func (l *localAPI) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	var err error
	select {
	case l.connections <- there:
		return here, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-l.ended.Done():
		err = net.ErrClosed
	}
	return nil, errors.Join(err, here.Close(), there.Close())
}

// Accept implements net.Listener.
func (l *localAPI) Accept() (net.Conn, error) {
	select {
	case c := <-l.connections:
		return c, nil
	case <-l.ended.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *localAPI) Close() error { l.end(); return nil }

// Addr implements net.Listener.
func (l *localAPI) Addr() net.Addr { return localAddr{} }

type localAddr struct{}

func (localAddr) Network() string { return "pipe" }
func (localAddr) String() string  { return "local" }

// serve begins to answer, with the objects that storing keeps.
func (l *localAPI) serve(s *storing, etcd *clientv3.Client) error {
	groups, err := localGroups(s, etcd)
	if err != nil {
		return err
	}
	container := restful.NewContainer()
	for _, group := range groups {
		if err := install(container, group); err != nil {
			return err
		}
	}
	l.server.Handler = localHandler(container)
	l.serving.Go(func() { _ = l.server.Serve(l) }) // returns when it is closed
	return nil
}

// stop ends the API, and the requests that are under way.
func (l *localAPI) stop() error {
	l.end()
	ctx, cancel := context.WithTimeout(context.Background(), localShutdown)
	defer cancel()
	err := l.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = l.server.Close() // watches
	}
	l.serving.Wait()
	return err
}

func localGroups(s *storing, etcd *clientv3.Client) ([]*genericapiserver.APIGroupInfo, error) {
	versions, err := storageVersions(s, etcd)
	if err != nil {
		return nil, err
	}
	codec, err := registry.LeaseCodec()
	if err != nil {
		return nil, err
	}
	options, err := s.storageOf(registry.Leases, codec)
	if err != nil {
		return nil, err
	}
	leases, err := registry.LeaseGroup(options)
	return []*genericapiserver.APIGroupInfo{versions, leases}, err
}

// isLocal says whether a store is one of the local API's.
func isLocal(group string) bool {
	return group == storageversion.Resource.Group || group == registry.Leases.Group
}

// install serves a group from a container. A generic server would want definitions for
// OpenAPI of all types, which are not published; nobody reads them here.
func install(container *restful.Container, info *genericapiserver.APIGroupInfo) error {
	for _, gv := range info.PrioritizedVersions {
		version := &endpoints.APIGroupVersion{
			Root: genericapiserver.APIGroupPrefix, GroupVersion: gv,
			Storage:          info.VersionedResourcesStorageMap[gv.Version],
			MetaGroupVersion: info.MetaGroupVersion, OptionsExternalVersion: info.OptionsExternalVersion,
			ParameterCodec: info.ParameterCodec, Serializer: info.NegotiatedSerializer,
			Creater: info.Scheme, Convertor: info.Scheme, ConvertabilityChecker: info.Scheme, Defaulter: info.Scheme, Typer: info.Scheme,
			UnsafeConvertor:            runtime.UnsafeObjectConvertor(info.Scheme),
			Namer:                      runtime.Namer(meta.NewAccessor()),
			TypeConverter:              managedfields.NewDeducedTypeConverter(),
			EquivalentResourceRegistry: runtime.NewEquivalentResourceRegistry(),
		}
		if _, _, err := version.InstallREST(container); err != nil {
			return fmt.Errorf("serve %s: %w", gv, err)
		}
	}
	return nil
}

// localHandler gives requests the context that the library's handlers need. All requests here come from this
// process, and are made as its user.
func localHandler(container http.Handler) http.Handler {
	self := &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}
	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		container.ServeHTTP(w, r.WithContext(apirequest.WithUser(r.Context(), self)))
	}))
	handler = filters.WithWarningRecorder(handler)
	handler = filters.WithRequestInfo(handler, &apirequest.RequestInfoFactory{APIPrefixes: sets.NewString(strings.Trim(genericapiserver.APIGroupPrefix, "/"))})
	handler = filters.WithRequestReceivedTimestamp(handler)
	return filters.WithAuditInit(handler)
}
