// Package connect is how programs of this project reach a cluster. It has the flags of a kubeconfig, sets the
// component and release that requests name, and makes a client for the kinds that the protocol uses. It contains no
// part of a server.
package connect

import (
	"fmt"
	"net/http"
	goruntime "runtime"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
	"github.com/concord-dev/concord/compat"
)

// UserAgent names a component of this binary as client-go names others.
func UserAgent(component compat.Component) string {
	return fmt.Sprintf("%s/v%s.0 (%s/%s) kubernetes/concord", component, compat.BinaryVersion(), goruntime.GOOS, goruntime.GOARCH)
}

// AsComponent returns a copy of config whose requests name the component that sends them, and its release. If it is
// applied twice, the last call counts.
func AsComponent(config *rest.Config, component compat.Component, emulation *version.Version) *rest.Config {
	config = rest.CopyConfig(config)
	config.UserAgent = UserAgent(component)
	told := compat.ComponentVersion(component, emulation)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return tells{next: next, value: told} })
	return config
}

// AsCommand returns a copy of config whose requests say that this program's command sends them.
func AsCommand(config *rest.Config) *rest.Config {
	return AsComponent(config, compat.ConcordCommand, compat.BinaryVersion())
}

// tells is a transport that adds the component's version to requests.
type tells struct {
	next  http.RoundTripper
	value string
}

var _ utilnet.RoundTripperWrapper = tells{}

// RoundTrip implements http.RoundTripper.
func (t tells) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get(compat.ComponentVersionHeader) != "" {
		return t.next.RoundTrip(r)
	}
	r = utilnet.CloneRequest(r)
	r.Header.Set(compat.ComponentVersionHeader, t.value)
	return t.next.RoundTrip(r)
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (t tells) WrappedRoundTripper() http.RoundTripper { return t.next }

// NewClient returns a client for the kinds that the protocol uses. It needs no
// discovery, so it works while a server starts.
func NewClient(config *rest.Config) (client.WithWatch, error) {
	return NewClientWith(config, schema.GroupVersion{})
}

// NewClientWith returns a client like NewClient's that also knows the migrations of storagemigration.k8s.io in the
// given version, if any: their types are the same as in v1.
func NewClientWith(config *rest.Config, migrations schema.GroupVersion) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		authenticationv1.AddToScheme, corev1.AddToScheme, coordinationv1.AddToScheme, eventsv1.AddToScheme,
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
			authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview"),
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
	config = rest.CopyConfig(config)
	// Named, since client-go prefers CBOR where its feature gates say so and nothing is named, which this
	// client does not write. Answers come in protobuf for the kinds that have it.
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	if !migrations.Empty() && migrations != storagemigrationv1.SchemeGroupVersion {
		config.AcceptContentTypes = runtime.ContentTypeJSON // whose fields have names: in protobuf v1's types may have other numbers
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return c, nil
}
