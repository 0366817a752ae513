package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// Client is an API over HTTP. Unlike client-go's metadata client, whose requests it makes,
// it does not repeat them by itself, which would hide from the engine that the server is
// too busy.
type Client struct {
	rest *rest.RESTClient
	// through names the subresource that patches go to, empty for the resource itself.
	through func(schema.GroupVersionResource) string
	// wrote, if not nil, is called with the resourceVersion of each object that a patch changed.
	wrote func(resourceVersion string)
}

var _ API = (*Client)(nil)

// NewClient returns a Client of the server that config names.
func NewClient(config *rest.Config) (*Client, error) {
	config = metadata.ConfigFor(config)
	config.QPS = -1 // the engine adapts
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return cutting{next} })
	config.GroupVersion = &schema.GroupVersion{}
	c, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("a client for metadata: %w", err)
	}
	return &Client{rest: c, through: func(schema.GroupVersionResource) string { return "" }}, nil
}

// Through returns a Client that patches the subresource named by of, if any. A patch of the status meets fewer
// obstacles than one of the object: no validation of the other fields, and fewer webhooks.
func (c *Client) Through(of func(schema.GroupVersionResource) string) *Client {
	return &Client{rest: c.rest, through: of, wrote: c.wrote}
}

// Telling returns a Client that passes the new resourceVersion of each object that a patch changed to wrote, from
// several goroutines at once.
func (c *Client) Telling(wrote func(resourceVersion string)) *Client {
	return &Client{rest: c.rest, through: c.through, wrote: wrote}
}

// fieldManager is the owner of the fields that the patches change: there are none.
const fieldManager = "concord-migration"

// List implements API. It returns fewer objects than allowed if they are larger than 4 MiB together.
func (c *Client) List(ctx context.Context, resource schema.GroupVersionResource, limit int64, from string) (*metav1.PartialObjectMetadataList, error) {
	for ; limit > 1; limit /= 2 {
		within, cut := withCut(ctx)
		if list, err := c.list(within, resource, limit, from); !*cut {
			return list, err
		}
	}
	return c.list(ctx, resource, limit, from)
}

func (c *Client) list(ctx context.Context, resource schema.GroupVersionResource, limit int64, from string) (*metav1.PartialObjectMetadataList, error) {
	list := &metav1.PartialObjectMetadataList{}
	request := c.request("GET", resource, types.NamespacedName{}, "PartialObjectMetadataList").Param("limit", strconv.FormatInt(limit, 10))
	if from != "" {
		request = request.Param("continue", from)
	}
	return list, request.Do(ctx).Into(list)
}

// Get implements API.
func (c *Client) Get(ctx context.Context, resource schema.GroupVersionResource, object types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	found := &metav1.PartialObjectMetadata{}
	return found, c.request("GET", resource, object, "PartialObjectMetadata").Do(ctx).Into(found)
}

// Patch implements API. There is nothing in a patch to be validated strictly, which costs
// the server a second decoding.
func (c *Client) Patch(ctx context.Context, resource schema.GroupVersionResource, object types.NamespacedName, patch []byte) error {
	answer := c.request("PATCH", resource, object, "PartialObjectMetadata").Suffix(c.through(resource)).
		SetHeader("Content-Type", string(types.MergePatchType)).
		Param("fieldManager", fieldManager).Param("fieldValidation", metav1.FieldValidationIgnore).Body(patch).Do(ctx)
	before, now := metav1.PartialObjectMetadata{}, &metav1.PartialObjectMetadata{}
	if err := answer.Error(); err != nil || c.wrote == nil || answer.Into(now) != nil || json.Unmarshal(patch, &before) != nil {
		return err
	}
	if now.ResourceVersion != before.ResourceVersion { // else it is the resourceVersion of somebody else's write
		c.wrote(now.ResourceVersion)
	}
	return nil
}

// request begins one for an object, or for all if it has no name, whose answer is only its
// metadata.
func (c *Client) request(verb string, resource schema.GroupVersionResource, object types.NamespacedName, as string) *rest.Request {
	root := []string{"apis", resource.Group, resource.Version}
	if resource.Group == "" {
		root = []string{"api", resource.Version}
	}
	if object.Namespace != "" {
		root = append(root, "namespaces", object.Namespace)
	}
	root = append(root, resource.Resource)
	if object.Name != "" {
		root = append(root, object.Name)
	}
	form := ";as=" + as + ";g=meta.k8s.io;v=v1"
	return c.rest.Verb(verb).AbsPath(root...).MaxRetries(0).
		SetHeader("Accept", "application/vnd.kubernetes.protobuf"+form+",application/json"+form+",application/json")
}
