package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/concord-dev/concord/testbed/load"
)

// Endpoint is one server as its clients reach it. Nothing is retried here and nothing is
// throttled: every error is seen.
type Endpoint struct {
	Server   string
	HTTP     *http.Client
	builtins rest.Interface
	Customs  map[string]rest.Interface // by version
	CRDs     apiextensionsclient.Interface
	groups   *discovery.DiscoveryClient
}

// NewEndpoint returns a server's endpoint, with connections of its own. A patient one does not give up
// a silent connection.
func NewEndpoint(server string, config *rest.Config, patient bool) (*Endpoint, error) {
	client, err := newHTTPClient(config, patient)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", server, err)
	}
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.UserAgent = "concord-demo"
	e := &Endpoint{Server: server, HTTP: client, Customs: map[string]rest.Interface{}}
	versioned := func(gv schema.GroupVersion, contentType string) (rest.Interface, error) {
		c := rest.CopyConfig(config)
		c.GroupVersion, c.APIPath, c.ContentType = &gv, "/apis", contentType
		c.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
		return rest.RESTClientForConfigAndClient(c, client)
	}
	if e.builtins, err = versioned(admissionv1.SchemeGroupVersion, runtime.ContentTypeProtobuf); err != nil {
		return nil, err
	}
	for _, version := range CustomVersions {
		if e.Customs[version], err = versioned(schema.GroupVersion{Group: CustomGroup, Version: version}, runtime.ContentTypeJSON); err != nil {
			return nil, err
		}
	}
	if e.CRDs, err = apiextensionsclient.NewForConfigAndClient(config, client); err != nil {
		return nil, err
	}
	e.groups, err = discovery.NewDiscoveryClientForConfigAndClient(config, client)
	return e, err
}

const (
	// connectTimeout bounds how long a connection may take to be made.
	connectTimeout = 4 * time.Second
	// A connection that is silent for PingAfter is asked for a sign of life, and given up
	// after PingTimeout more.
	PingAfter   = time.Second
	PingTimeout = 3 * time.Second
)

func newHTTPClient(config *rest.Config, patient bool) (*http.Client, error) {
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		TLSClientConfig:     tls,
		ForceAttemptHTTP2:   true,
		DialContext:         (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSHandshakeTimeout: connectTimeout,
		HTTP2:               &http.HTTP2Config{},
	}
	if !patient {
		transport.HTTP2.SendPingTimeout, transport.HTTP2.PingTimeout = PingAfter, PingTimeout
	}
	return &http.Client{Transport: retryAfterReader{transport}}, nil
}

// rest returns the client for a resource, custom resources in the version.
func (e *Endpoint) rest(gr schema.GroupResource, version string) rest.Interface {
	if gr == Gadgets {
		return e.Customs[version]
	}
	return e.builtins
}

func (e *Endpoint) create(ctx context.Context, key load.Key, version string, m load.Mark) error {
	body, err := NewBody(key, version, m)
	if err != nil {
		return err
	}
	request := e.rest(key.Resource, version).Post().Resource(key.Resource.Resource).MaxRetries(0)
	if raw, ok := body.([]byte); ok {
		request.SetHeader("Content-Type", runtime.ContentTypeJSON)
		body = raw
	}
	return send(ctx, request.Body(body))
}

func (e *Endpoint) update(ctx context.Context, key load.Key, version string, from, to load.Mark) error {
	body, err := patch(from, to)
	if err != nil {
		return err
	}
	return send(ctx, e.rest(key.Resource, version).Patch(types.JSONPatchType).Resource(key.Resource.Resource).Name(key.Name).MaxRetries(0).Body(body))
}

type retryAfterKey struct{}

// send makes a request, once.
func send(ctx context.Context, request *rest.Request) error {
	var retryAfter string
	err := request.Do(context.WithValue(ctx, retryAfterKey{}, &retryAfter)).Error()
	if err != nil && retryAfter != "" {
		return load.Delayed{Err: err}
	}
	return err
}

// retryAfterReader puts the header Retry-After of an answer where send looks for it.
type retryAfterReader struct{ next *http.Transport }

// CloseIdleConnections lets http.Client.CloseIdleConnections through.
func (r retryAfterReader) CloseIdleConnections() { r.next.CloseIdleConnections() }

// RoundTrip implements http.RoundTripper.
func (r retryAfterReader) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(request)
	if into, ok := request.Context().Value(retryAfterKey{}).(*string); ok && err == nil {
		*into = response.Header.Get("Retry-After")
	}
	return response, err
}

// read returns the mark in an object, as the API returns it.
func (e *Endpoint) read(ctx context.Context, key load.Key, version string) (load.Mark, error) {
	raw, err := e.rest(key.Resource, version).Get().Resource(key.Resource.Resource).Name(key.Name).
		SetHeader("Accept", runtime.ContentTypeJSON).MaxRetries(0).Do(ctx).Raw()
	if err != nil {
		return load.Mark{}, err
	}
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(raw, &object); err != nil {
		return load.Mark{}, fmt.Errorf("read %s from %s: %w", key, e.Server, err)
	}
	return readMark(object.Annotations)
}

// listPage is how many objects one answer of a list holds.
const listPage = 500

// List reads all objects of one of the demo's resources.
func (e *Endpoint) List(ctx context.Context, gr schema.GroupResource, version string, found map[load.Key]load.Stored) error {
	for token := ""; ; {
		raw, err := e.rest(gr, version).Get().Resource(gr.Resource).
			SpecificallyVersionedParams(&metav1.ListOptions{Limit: listPage, Continue: token}, scheme.ParameterCodec, schema.GroupVersion{Version: "v1"}).
			SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw()
		if err != nil {
			return fmt.Errorf("list %s from %s: %w", gr.Resource, e.Server, err)
		}
		var page struct {
			Metadata metav1.ListMeta `json:"metadata"`
			Items    []listed        `json:"items"`
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return fmt.Errorf("list %s from %s: %w", gr.Resource, e.Server, err)
		}
		for _, item := range page.Items {
			found[load.Key{Resource: gr, Name: item.Metadata.Name}] = item.stored()
		}
		if token = page.Metadata.Continue; token == "" {
			return nil
		}
	}
}

// listed has the fields that the demo reads of an object of any of its resources.
type listed struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Payload   string `json:"payload"`
		Variables []struct {
			Expression string `json:"expression"`
		} `json:"variables"`
	} `json:"spec"`
}

// stored returns the object's mark, zero if it has none, and its filler.
func (l listed) stored() load.Stored {
	m, err := readMark(l.Metadata.Annotations)
	if err != nil {
		m = load.Mark{}
	}
	s := load.Stored{Mark: m, Filler: l.Spec.Payload + l.Metadata.Annotations[fillerAnnotation]}
	for _, v := range l.Spec.Variables {
		if n := len(v.Expression); n >= 2 {
			s.Filler += v.Expression[1 : n-1]
		}
	}
	return s
}

// Hashes returns the storage version's hash of each resource, as discovery shows it.
func (e *Endpoint) Hashes() (map[schema.GroupResource]string, error) {
	legacy := *e.groups
	legacy.UseLegacyDiscovery = true // the aggregated form has no hashes
	_, lists, err := legacy.ServerGroupsAndResources()
	if err != nil {
		return nil, fmt.Errorf("discovery of %s: %w", e.Server, err)
	}
	found := map[schema.GroupResource]string{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("discovery of %s: %w", e.Server, err)
		}
		for _, resource := range list.APIResources {
			if resource.StorageVersionHash != "" {
				found[schema.GroupResource{Group: gv.Group, Resource: resource.Name}] = resource.StorageVersionHash
			}
		}
	}
	return found, nil
}
