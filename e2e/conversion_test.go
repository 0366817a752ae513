package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"slices"
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

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

// testConversionWebhook: a custom resource is migrated whose conversion webhook is behind a Service and slow.
// The webhook refuses every tenth object; these are named and do not stop the others. A webhook that is down
// for a minute in the middle only delays the migration. Clients of both versions read the same as before.
func testConversionWebhook(t *testing.T) {
	const objects = 200
	hook := startConverter(t)
	c := cluster.New(t)
	c.Audit.With(func(l *audit.Ledger) { l.Normalize(convertibles, asV1) })
	servers := c.Start(cluster.Options{}, "one", "two", "three")
	createCRD(t, hook.behindService(servers[0], convertibleCRD(hook)), servers...)
	fill(t, servers[0], convertiblesV1, objects)
	c.WaitSettled()
	before := texts(t, servers[0], "v1")
	writes := c.Load(load.Config{Prefix: loadPrefix, Resources: []load.Resource{convertiblesV1}, Pause: 100 * time.Millisecond}, servers...)

	poisoned := everyTenth(before)
	hook.poison(poisoned...)
	hook.slow(30 * time.Millisecond)
	storeIn(t, servers[1], convertibles, "v2")
	m := waitFailedMigration(t, servers[2], convertibles, func(p migrationv1alpha1.MigrationProgress) bool { return p.Failed == int64(len(poisoned)) })
	if len(m.Status.Failures) != len(poisoned) {
		t.Errorf("the failures are %+v, want %v", m.Status.Failures, poisoned)
	}
	for _, f := range m.Status.Failures {
		if !slices.Contains(poisoned, f.Name) || f.Namespace != "default" ||
			f.Reason != migrationv1alpha1.FailureConversionWebhook || !strings.Contains(f.Message, f.Name+" is poisoned") {
			t.Errorf("the failure %+v, want one of %v, and what the webhook says of it", f, poisoned)
		}
	}
	if found := c.Encodings(convertibles); found[widgetEncoding("v1")] != len(poisoned) || found[widgetEncoding("v2")] < objects-len(poisoned) {
		t.Errorf("convertibles are stored as %v, want %d in v1", found, len(poisoned))
	}
	if standing := c.Standing(convertibles); !slices.Contains(standing.StoredVersions(), "v1") || !slices.Contains(standing.Stored(), string(widgetEncoding("v1"))) {
		t.Errorf("storedVersions are %v and the stored set is %v, though objects are in v1", standing.StoredVersions(), standing.Stored())
	}
	hook.poison()
	hook.slow(0)
	t.Logf("settled %v after the webhook converts everything", c.WaitSettled().Round(time.Millisecond))
	wantEncoding(t, c, convertibles, widgetEncoding("v2"), objects)
	c.CheckLoad(writes.Stop(), nil)
	wantTexts(t, before, servers...)

	hook.goDownAfter(objects / 4)
	storeIn(t, servers[2], convertibles, "v1")
	waitFailedMigration(t, servers[0], convertibles, func(p migrationv1alpha1.MigrationProgress) bool {
		return p.Failed > 0 && p.FailedByReason[migrationv1alpha1.FailureConversionWebhook] == p.Failed
	})
	select {
	case <-hook.down:
	default:
		t.Error("the webhook is not down: nothing was tested")
	}
	if found := c.Encodings(convertibles); found[widgetEncoding("v2")] == 0 {
		t.Errorf("with the webhook down, convertibles are stored as %v", found)
	}
	servers[1].Restart(cluster.Options{}) // a restart needs no webhook
	hook.awaitDown(time.Minute)
	hook.start()
	t.Logf("settled %v after the webhook is up again", c.WaitSettled().Round(time.Millisecond))
	wantEncoding(t, c, convertibles, widgetEncoding("v1"), objects)
	wantTexts(t, before, servers...)
	c.Check()
}

// texts returns, by name, the texts of the convertibles that fill has created, as they are read in a version.
func texts(t *testing.T, s *cluster.Server, version string) map[string]string {
	t.Helper()
	path := map[string][]string{"v1": {"spec", "text"}, "v2": {"spec", "message", "text"}}[version]
	list, err := s.Dynamic().Resource(convertibles.WithVersion(version)).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	found := map[string]string{}
	for _, u := range list.Items {
		if strings.HasPrefix(u.GetName(), "fill-") {
			text, _, _ := unstructured.NestedString(u.Object, path...)
			found[u.GetName()] = fmt.Sprint(u.GetUID(), " ", text)
		}
	}
	return found
}

// everyTenth returns the names that end in 0.
func everyTenth(texts map[string]string) (names []string) {
	for name := range texts {
		if strings.HasSuffix(name, "0") {
			names = append(names, name)
		}
	}
	return names
}

func wantTexts(t *testing.T, want map[string]string, servers ...*cluster.Server) {
	t.Helper()
	for _, s := range servers {
		for _, version := range []string{"v1", "v2"} {
			if got := texts(t, s, version); !maps.Equal(got, want) {
				t.Errorf("in %s convertibles are read through %s as %v, and were %v", version, s.Name, got, want)
			}
		}
	}
}

// convertibles have two versions, which a webhook converts: v1 has spec.text where v2 has spec.message.text.
var (
	convertibles   = schema.GroupResource{Group: widgetGroup, Resource: "convertibles"}
	convertiblesV1 = load.Custom(convertibles.WithVersion("v1"), "Convertible", metav1.NamespaceDefault)
)

// converterService is the name of the Service by which a CRD may name the webhook.
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

// behindService makes a CRD name the webhook by a Service, as users do who run a webhook in the cluster.
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
	// poisoned are the names of the objects that the webhook refuses to convert.
	poisoned sets.Set[string]
	// delay is how long the webhook takes for a call.
	delay time.Duration
	// left is how many more objects the webhook converts before it goes down; negative: it stays up.
	left int
	// answered counts the calls that the webhook has answered.
	answered int
	// down is closed when the webhook has gone down because of left.
	down chan struct{}
	// downSince is when the webhook last went down.
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

// awaitDown waits until the webhook has been down for the duration.
func (c *converter) awaitDown(duration time.Duration) {
	c.mu.Lock()
	since := c.downSince
	c.mu.Unlock()
	<-time.After(time.Until(since.Add(duration)))
}

// poison makes the webhook refuse these objects, and no others, from now on.
func (c *converter) poison(names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.poisoned = sets.New(names...)
}

// slow sets how long the webhook takes for every call.
func (c *converter) slow(delay time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay = delay
}

// goDownAfter makes the webhook go down when it has converted this many more objects.
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

// work waits as long as a call takes, and says whether the client has waited for that.
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

// allow says whether this many more objects may be converted. If not, the webhook goes down.
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
