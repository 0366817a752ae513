package join

import (
	"fmt"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
	"github.com/concord-dev/concord/compat"
)

// clients reach this very server over the loopback, as its own user. None of them
// caches.
type clients struct {
	config *rest.Config
	kube   kubernetes.Interface
	// objects is what member and the controllers use.
	objects client.WithWatch
	// controllers are those of the controllers, which tell that they are.
	controllers *clients
}

// newClients returns clients of the server itself, with those of the controllers, which
// stand for the same release.
func newClients(config Config) (*clients, error) {
	loopback := AsComponent(config.Loopback, compat.ConcordServer, config.Emulation)
	// kube-apiserver's loopback asks for protobuf, which CustomResourceDefinitions' clients
	// and those of custom resources do not read.
	loopback.ContentType, loopback.AcceptContentTypes = "", ""
	own, err := clientsOf(loopback)
	if err != nil {
		return nil, err
	}
	controllers := AsComponent(loopback, compat.ConcordControllers, config.Emulation)
	if config.ControllerUser != "" {
		controllers.Impersonate = rest.ImpersonationConfig{UserName: config.ControllerUser}
	}
	own.controllers, err = clientsOf(controllers)
	return own, err
}

func clientsOf(config *rest.Config) (*clients, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := NewClient(config)
	if err != nil {
		return nil, err
	}
	return &clients{config: config, kube: kube, objects: objects}, nil
}

// NewClient returns a client for the kinds that the protocol uses. It needs no
// discovery, so it works while a server starts.
func NewClient(config *rest.Config) (client.WithWatch, error) {
	return newClient(config, schema.GroupVersion{})
}

// newClient returns such a client that also knows the migrations of storagemigration.k8s.io,
// if one of its versions is given: their types are v1's in all of them.
func newClient(config *rest.Config, migrations schema.GroupVersion) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, coordinationv1.AddToScheme, eventsv1.AddToScheme,
		apiserverinternalv1alpha1.AddToScheme, apiextensionsv1.AddToScheme, migrationv1alpha1.AddToScheme, versionv1alpha1.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	if !migrations.Empty() {
		scheme.AddKnownTypes(migrations, &storagemigrationv1.StorageVersionMigration{}, &storagemigrationv1.StorageVersionMigrationList{})
		metav1.AddToGroupVersion(scheme, migrations)
		mapper.Add(migrations.WithKind("StorageVersionMigration"), meta.RESTScopeRoot)
	}
	for scope, kinds := range map[meta.RESTScope][]schema.GroupVersionKind{
		meta.RESTScopeRoot: {
			corev1.SchemeGroupVersion.WithKind("Namespace"),
			apiserverinternalv1alpha1.SchemeGroupVersion.WithKind("StorageVersion"),
			apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"),
			migrationv1alpha1.SchemeGroupVersion.WithKind("StorageState"),
			versionv1alpha1.SchemeGroupVersion.WithKind("ClusterVersion"),
			migrationv1alpha1.SchemeGroupVersion.WithKind("StorageVersionMigration"),
		},
		meta.RESTScopeNamespace: {
			corev1.SchemeGroupVersion.WithKind("ConfigMap"),
			corev1.SchemeGroupVersion.WithKind("Event"),
			eventsv1.SchemeGroupVersion.WithKind("Event"),
			coordinationv1.SchemeGroupVersion.WithKind("Lease"),
		},
	} {
		for _, kind := range kinds {
			mapper.Add(kind, scope)
		}
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return c, nil
}
