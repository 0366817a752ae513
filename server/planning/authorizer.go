package planning

import (
	"fmt"
	"slices"

	authorizerapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// ByRBAC says whether RBAC is among the authorizers of a server, by --authorization-mode or by the file of
// --authorization-config. A file that is changed later keeps RBAC, or does not get it: Kubernetes refuses the change.
func ByRBAC(options *kubeoptions.BuiltInAuthorizationOptions) (bool, error) {
	config, err := options.ToAuthorizationConfig(nil)
	if err != nil {
		return false, fmt.Errorf("authorization: %w", err)
	}
	return slices.ContainsFunc(config.AuthorizationConfiguration.Authorizers, func(a authorizerapi.AuthorizerConfiguration) bool {
		return a.Type == authorizerapi.AuthorizerType(modes.ModeRBAC)
	}), nil
}
