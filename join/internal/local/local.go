// Package local serves API groups of a server to the server alone.
package local

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
)

// shutdown bounds how long the local API waits for its own clients at the end.
const shutdown = time.Second

// API serves the Leases and StorageVersions of an aggregated API server to the server itself, from its own etcd. With
// them the protocol runs there as in any cluster: the server's Lease, its report, and so its permission to write are
// stored beside the objects that it writes. They are in no discovery, and cannot be reached from outside of the
// process.
type API struct {
	connections chan net.Conn
	server      *http.Server
	ended       context.Context
	end         context.CancelFunc
	serving     sync.WaitGroup
}

// New returns an API that serves nothing yet.
func New() *API {
	l := &API{connections: make(chan net.Conn), server: &http.Server{ReadHeaderTimeout: time.Minute}}
	l.ended, l.end = context.WithCancel(context.Background())
	return l
}

// Config reaches the API. Until it is served connections wait.
func (l *API) Config() *rest.Config {
	return &rest.Config{Host: "http://local", QPS: -1, Dial: l.dial}
}

func (l *API) dial(ctx context.Context, _, _ string) (net.Conn, error) {
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
func (l *API) Accept() (net.Conn, error) {
	select {
	case c := <-l.connections:
		return c, nil
	case <-l.ended.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *API) Close() error { l.end(); return nil }

// Addr implements net.Listener.
func (l *API) Addr() net.Addr { return localAddr{} }

type localAddr struct{}

func (localAddr) Network() string { return "pipe" }
func (localAddr) String() string  { return "local" }

// Serve begins to answer, with the objects of groups.
func (l *API) Serve(groups ...*genericapiserver.APIGroupInfo) error {
	var err error
	if l.server.Handler, err = Handler(groups...); err != nil {
		return err
	}
	l.serving.Go(func() { _ = l.server.Serve(l) }) // returns when it is closed
	return nil
}

// Stop ends the API, and the requests that are under way.
func (l *API) Stop() error {
	l.end()
	ctx, cancel := context.WithTimeout(context.Background(), shutdown)
	defer cancel()
	err := l.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = l.server.Close() // watches
	}
	l.serving.Wait()
	return err
}

// install serves a group from a container. A generic server would require OpenAPI definitions for all types. These
// are not published, and nobody would read them here.
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

// Handler serves groups. It gives requests the context that the library's handlers need. All requests here come
// from this process, and are made as its user.
func Handler(groups ...*genericapiserver.APIGroupInfo) (http.Handler, error) {
	container := restful.NewContainer()
	for _, group := range groups {
		if err := install(container, group); err != nil {
			return nil, err
		}
	}
	self := &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}
	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		container.ServeHTTP(w, r.WithContext(apirequest.WithUser(r.Context(), self)))
	}))
	handler = filters.WithWarningRecorder(handler)
	handler = filters.WithRequestInfo(handler, &apirequest.RequestInfoFactory{APIPrefixes: sets.NewString(strings.Trim(genericapiserver.APIGroupPrefix, "/"))})
	handler = filters.WithRequestReceivedTimestamp(handler)
	return filters.WithAuditInit(handler), nil
}
