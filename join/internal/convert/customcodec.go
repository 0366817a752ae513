// Package convert converts stored custom resources for migrations, as their
// CustomResourceDefinitions say: by name, or by a webhook, many objects in one call.
package convert

import (
	"context"
	"fmt"
	"io"
	"path"

	noopoteltrace "go.opentelemetry.io/otel/trace/noop"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/migrate/claim"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// Resources says how stored custom resources are rewritten: converted as their
// CustomResourceDefinition says, and else left as they are. The codec of the resource's
// own handler would not do: it prunes by the schema it was built with, which need not be
// that of the generation the migration is pinned to.
type Resources struct {
	client   client.Client
	storage  generic.RESTOptionsGetter
	services webhook.ServiceResolver
	resolver webhook.AuthenticationInfoResolverWrapper
}

// New returns Resources that read definitions with c. Until Stored is called, webhooks are
// found by DNS.
func New(c client.Client, loopback *rest.Config) *Resources {
	resolver := webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, loopback, noopoteltrace.NewTracerProvider())
	return &Resources{client: c, services: webhook.NewDefaultServiceResolver(), resolver: resolver}
}

// Stored says how custom resources are stored, and how their conversion webhooks are found
// and reached; a nil services or resolver leaves the present one in place.
func (r *Resources) Stored(getter generic.RESTOptionsGetter, services webhook.ServiceResolver, resolver webhook.AuthenticationInfoResolverWrapper) {
	r.storage = getter
	if services != nil {
		r.services = services
	}
	if resolver != nil {
		r.resolver = resolver
	}
}

// RESTOptions returns how a custom resource is stored.
func (r *Resources) RESTOptions(gr schema.GroupResource) (generic.RESTOptions, error) {
	if r.storage == nil {
		return generic.RESTOptions{}, fmt.Errorf("this server stores no custom resources, so not %s", gr)
	}
	return r.storage.GetRESTOptions(gr, nil)
}

// convertor converts between the definition's versions, and calls its webhook while ctx
// lasts. It may change its argument.
func (r *Resources) convertor(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) (runtime.ObjectConvertor, *webhookCalls, error) {
	calls := &webhookCalls{ctx: ctx, timeout: webhookTimeout}
	converters, err := conversion.NewCRConverterFactory(r.services, calls.resolver(r.resolver))
	if err != nil {
		return nil, nil, err
	}
	_, unsafe, err := converters.NewConverter(crd)
	return unsafe, calls, err
}

// Target completes the target of a job on a custom resource. The definition has to be the one
// the job is pinned to.
func (r *Resources) Target(ctx context.Context, job claim.Job, t *migratestore.Target) error {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := r.client.Get(ctx, client.ObjectKey{Name: job.GroupResource.String()}, crd); err != nil {
		return fmt.Errorf("read the CustomResourceDefinition: %w", err)
	}
	if string(crd.UID) != job.CRD.UID || crd.Generation != job.CRD.Generation {
		return fmt.Errorf("%w: the CustomResourceDefinition has changed", claim.ErrFenced)
	}
	encoding, err := schema.ParseGroupVersion(string(t.Encoding))
	if err != nil {
		return err
	}
	convertor, calls, err := r.convertor(ctx, crd)
	if err != nil {
		return fmt.Errorf("conversion of %s: %w", crd.Name, err)
	}
	options, err := r.RESTOptions(job.GroupResource)
	if err != nil {
		return err
	}
	t.Prefix = path.Join("/", options.StorageConfig.Prefix, options.ResourcePrefix) + "/"
	t.New = func() runtime.Object { return &unstructured.Unstructured{} }
	t.Codec = customCodec{convertor: convertor, encoding: encoding}
	t.Shortcut = renaming(crd, t.Encoding)
	if crd.Spec.Conversion != nil && crd.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter {
		t.Convert = newWebhookConversion(crd, encoding, convertor, calls).convert
	}
	return nil
}

// renaming returns the function that converts between versions of a definition that differ in name only; nil if a
// webhook converts. Values in a version that the definition does not have are left to the codec, which returns an
// error.
func renaming(crd *apiextensionsv1.CustomResourceDefinition, encoding agree.Encoding) func([]byte, agree.Encoding) ([]byte, bool) {
	if c := crd.Spec.Conversion; c == nil || c.Strategy != apiextensionsv1.NoneConverter {
		return nil
	}
	known := sets.New[agree.Encoding]()
	for _, v := range crd.Spec.Versions {
		known.Insert(migrationv1alpha1.EncodingOf(crd, v.Name))
	}
	return func(plain []byte, from agree.Encoding) ([]byte, bool) {
		if !known.Has(from) || !known.Has(encoding) {
			return nil, false
		}
		return migratestore.Rename(plain, encoding)
	}
}

// customCodec decodes stored custom resources in any of their definition's versions and
// encodes them in one. It is used by several goroutines at once.
type customCodec struct {
	// convertor may change its argument.
	convertor runtime.ObjectConvertor
	encoding  schema.GroupVersion
}

var _ runtime.Codec = customCodec{}

// Decode implements runtime.Decoder. The result is in the codec's encoding, and a new object.
func (c customCodec) Decode(data []byte, _ *schema.GroupVersionKind, _ runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	decoded := &unstructured.Unstructured{}
	if err := Decode(data, decoded); err != nil {
		return nil, nil, err
	}
	gvk := decoded.GroupVersionKind()
	converted, err := c.convertor.ConvertToVersion(decoded, c.encoding)
	return converted, &gvk, err
}

// Encode implements runtime.Encoder.
func (c customCodec) Encode(obj runtime.Object, w io.Writer) error {
	if got := obj.GetObjectKind().GroupVersionKind().GroupVersion(); got != c.encoding {
		return fmt.Errorf("an object in %s is not to be stored in %s", got, c.encoding)
	}
	return unstructured.UnstructuredJSONScheme.Encode(obj, w)
}

// Identifier implements runtime.Encoder.
func (c customCodec) Identifier() runtime.Identifier {
	return runtime.Identifier(fmt.Sprintf(`{"name":"concord-rewrite","encodeGV":%q}`, agree.Encoding(c.encoding.String())))
}
