package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

// Convertibles have two versions that a webhook converts: v1 has spec.text, where v2 has
// spec.message.text.
var (
	convertibles   = schema.GroupResource{Group: widgetGroup, Resource: "convertibles"}
	convertiblesV1 = load.Custom(convertibles.WithVersion("v1"), "Convertible", metav1.NamespaceDefault)
)

// converterService is the Service by which the webhook may be named.
const converterService = "converter"

// convertibleCRD returns a CRD that stores v1.
func convertibleCRD(converter *converter) *apiextensionsv1.CustomResourceDefinition {
	crd := widgetLike(convertibles, "v1")
	spec := crd.Spec.Versions[1].Schema.OpenAPIV3Schema.Properties["spec"]
	spec.Properties = map[string]apiextensionsv1.JSONSchemaProps{
		"padding": {Type: "string"},
		"message": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"text": {Type: "string"}}},
	}
	crd.Spec.Versions[1].Schema.OpenAPIV3Schema.Properties["spec"] = spec
	url := "https://" + converter.address + "/convert"
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: cluster.EncodePEM(converter.ca.Cert.Raw)},
			ConversionReviewVersions: []string{"v1"},
		},
	}
	return crd
}

// behindService has a CRD name the webhook by a Service, as users that run it in a cluster do.
func (c *converter) behindService(s *cluster.Server, crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	c.t.Helper()
	_, text, err := net.SplitHostPort(c.address)
	must(c.t, err)
	port, err := strconv.ParseInt(text, 10, 32)
	must(c.t, err)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: converterService}}
	service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost", Ports: []corev1.ServicePort{{Port: int32(port)}}}
	if _, err := s.Kube().CoreV1().Services(metav1.NamespaceDefault).Create(c.t.Context(), service, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	by := crd.Spec.Conversion.Webhook.ClientConfig
	by.URL = nil
	by.Service = &apiextensionsv1.ServiceReference{Namespace: metav1.NamespaceDefault, Name: converterService, Path: ptr.To("/convert"), Port: ptr.To(int32(port))}
	return crd
}

// asV1 brings a convertible's fields to those of v1.
func asV1(fields map[string]any) {
	text, ok, _ := unstructured.NestedString(fields, "spec", "message", "text")
	if ok {
		unstructured.RemoveNestedField(fields, "spec", "message")
		_ = unstructured.SetNestedField(fields, text, "spec", "text")
	}
}

// asV2 brings a convertible's fields to those of v2.
func asV2(fields map[string]any) {
	text, ok, _ := unstructured.NestedString(fields, "spec", "text")
	if ok {
		unstructured.RemoveNestedField(fields, "spec", "text")
		_ = unstructured.SetNestedField(fields, text, "spec", "message", "text")
	}
}

// converter is the conversion webhook of convertibles: a real HTTPS server with a CA of its
// own, which can go down and come up again at the same address.
type converter struct {
	t       *testing.T
	ca      *cluster.Authority
	tls     tls.Certificate
	address string

	mu     sync.Mutex
	server *http.Server
	// poisoned are the names of objects that it refuses to convert.
	poisoned sets.Set[string]
	// delay is how long it takes for a call.
	delay time.Duration
	// left is how many objects it converts to v2 before it goes down; negative: it stays up.
	left int
	// answered counts the calls that it answered.
	answered int
	// down is closed when it has gone down because nothing was left.
	down chan struct{}
	// downSince is when it last went down.
	downSince time.Time
}

func startConverter(t *testing.T) *converter {
	t.Helper()
	c := &converter{t: t, ca: cluster.NewAuthority(t, "conversion-ca"), poisoned: sets.New[string](), left: -1, down: make(chan struct{})}
	cert, key := c.ca.Issue(converterService + "." + metav1.NamespaceDefault + ".svc")
	var err error
	if c.tls, err = tls.X509KeyPair(cert, key); err != nil {
		t.Fatal(err)
	}
	c.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(cluster.FreePort(t)))
	c.start()
	t.Cleanup(c.stop)
	return c
}

func (c *converter) start() {
	c.t.Helper()
	listener, err := tls.Listen("tcp", c.address, &tls.Config{Certificates: []tls.Certificate{c.tls}, MinVersion: tls.VersionTLS12})
	must(c.t, err)
	server := &http.Server{Handler: c, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	c.mu.Lock()
	c.server, c.left = server, -1
	c.mu.Unlock()
	go func() { _ = server.Serve(listener) }()
}

// stop closes the port and every connection.
func (c *converter) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.server.Close()
	c.downSince = time.Now()
}

// awaitDown waits until it has been down for so long.
func (c *converter) awaitDown(duration time.Duration) {
	c.mu.Lock()
	since := c.downSince
	c.mu.Unlock()
	<-time.After(time.Until(since.Add(duration)))
}

// poison refuses these objects, and no others, from now on.
func (c *converter) poison(names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.poisoned = sets.New(names...)
}

// slow makes every call take so long.
func (c *converter) slow(delay time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay = delay
}

// goDownAfter makes it go down when it has converted so many more objects.
func (c *converter) goDownAfter(objects int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = objects
}

// ServeHTTP implements http.Handler.
func (c *converter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, fmt.Sprint("no ConversionReview: ", err), http.StatusBadRequest)
		return
	}
	if !c.allow(len(review.Request.Objects)) || !c.work(r.Context()) {
		panic(http.ErrAbortHandler)
	}
	review.Response = c.convert(review.Request)
	c.mu.Lock()
	c.answered++
	c.mu.Unlock()
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// work takes as long as a call does, and says whether it was waited for.
func (c *converter) work(ctx context.Context) bool {
	c.mu.Lock()
	timer := time.NewTimer(c.delay)
	c.mu.Unlock()
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// allow says whether so many objects may still be converted.
func (c *converter) allow(objects int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.left < 0:
		return true
	case c.left >= objects:
		c.left -= objects
		return true
	}
	select {
	case <-c.down:
	default:
		c.downSince = time.Now()
		close(c.down)
	}
	_ = c.server.Close()
	return false
}

func (c *converter) convert(request *apiextensionsv1.ConversionRequest) *apiextensionsv1.ConversionResponse {
	response := &apiextensionsv1.ConversionResponse{UID: request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, raw := range request.Objects {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(raw.Raw); err != nil {
			return refusal(request, err.Error())
		}
		c.mu.Lock()
		poisoned := c.poisoned.Has(u.GetName())
		c.mu.Unlock()
		if poisoned {
			return refusal(request, u.GetName()+" is poisoned")
		}
		if strings.HasSuffix(request.DesiredAPIVersion, "/v1") {
			asV1(u.Object)
		} else {
			asV2(u.Object)
		}
		u.SetAPIVersion(request.DesiredAPIVersion)
		response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Object: u})
	}
	return response
}

func refusal(request *apiextensionsv1.ConversionRequest, message string) *apiextensionsv1.ConversionResponse {
	return &apiextensionsv1.ConversionResponse{UID: request.UID, Result: metav1.Status{Status: metav1.StatusFailure, Message: message}}
}
