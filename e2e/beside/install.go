package beside

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/utils/ptr"
)

// The ServiceAccount in the manifests of folder deploy.
const (
	DeployedNamespace = "concord-system"
	DeployedAccount   = "concord-controllers"
	DeployedUser      = "system:serviceaccount:" + DeployedNamespace + ":" + DeployedAccount
)

// Manifests reads the objects of a YAML file.
func Manifests(path string) (objects []*unstructured.Unstructured, err error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for documents := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096); ; {
		var object unstructured.Unstructured
		if err := documents.Decode(&object.Object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, &object)
		}
	}
}

// Install applies objects, one after the other.
func (s *APIServer) Install(objects []*unstructured.Unstructured) {
	t := s.Cluster.T
	t.Helper()
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(s.Kube().Discovery()))
	for _, object := range objects {
		kind := object.GroupVersionKind()
		Eventually(t, Patience, fmt.Sprintf("%s %s is applied", kind.Kind, object.GetName()), func(ctx context.Context) error {
			mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
			if err != nil {
				return err
			}
			var to dynamic.ResourceInterface = s.Dynamic().Resource(mapping.Resource)
			if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
				to = s.Dynamic().Resource(mapping.Resource).Namespace(object.GetNamespace())
			}
			_, err = to.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "test"})
			return err
		})
	}
}

// DeployedToken returns a token of the ServiceAccount in the manifests of folder deploy.
func (s *APIServer) DeployedToken() string {
	t := s.Cluster.T
	t.Helper()
	token, err := s.Kube().CoreV1().ServiceAccounts(DeployedNamespace).CreateToken(t.Context(), DeployedAccount,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return token.Status.Token
}
