package server

import (
	"context"
	"time"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	openapicontroller "k8s.io/apiextensions-apiserver/pkg/controller/openapi"
	openapiv3controller "k8s.io/apiextensions-apiserver/pkg/controller/openapiv3"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// customOpenAPILimit bounds how long the OpenAPI documents of custom resources wait.
const customOpenAPILimit = time.Minute

const readyPoll = 10 * time.Millisecond

// customOpenAPI has the OpenAPI documents of custom resources built when this server has
// reported them. A thousand definitions keep the processors busy for half a minute, and
// agreement on all of them would wait for that.
type customOpenAPI struct {
	extensions *apiextensionsapiserver.CustomResourceDefinitions
	static     *spec.Swagger
	reported   func() bool
}

// takeOver is called between PrepareRun, which makes what the extension server's OpenAPI
// controllers need, and Run, which starts them if it is there.
func (c *customOpenAPI) takeOver() {
	server := c.extensions.GenericAPIServer
	c.static, server.StaticOpenAPISpec = server.StaticOpenAPISpec, nil
}

// start is a post-start hook.
func (c *customOpenAPI) start(hook genericapiserver.PostStartHookContext) error {
	if c.static == nil {
		return nil
	}
	go func() {
		// That the time is over is as good.
		_ = wait.PollUntilContextTimeout(hook, readyPoll, customOpenAPILimit, true, func(context.Context) (bool, error) { return c.reported(), nil })
		server, crds := c.extensions.GenericAPIServer, c.extensions.Informers.Apiextensions().V1().CustomResourceDefinitions()
		if server.OpenAPIVersionedService != nil {
			go openapicontroller.NewController(crds).Run(c.static, server.OpenAPIVersionedService, hook.Done())
		}
		if server.OpenAPIV3VersionedService != nil {
			go openapiv3controller.NewController(crds).Run(server.OpenAPIV3VersionedService, hook.Done())
		}
	}()
	return nil
}
