package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/controller/collect"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/member"
	"github.com/concord-dev/concord/testbed/load"
)

// The Service by which the aggregated API server is found.
const (
	extensionNamespace = "apis"
	extensionService   = "extension"
)

// extension is an aggregated API server (here another Concord with an etcd of its own), with the
// cluster that it belongs to.
type extension struct {
	t      *testing.T
	main   *cluster.Server
	server *cluster.Server
	own    *cluster.Cluster
	ca     []byte
}

// aggregate starts an aggregated API server of widgets and registers it at the main server,
// which it trusts to say who a user is. Its own trigger does not run, so that only the main
// server migrates its objects.
func aggregate(t *testing.T, server *cluster.Server, storage string) *extension {
	t.Helper()
	pki := cluster.NewAuthority(t, "extension-ca")
	files := pki.Files(extensionService + "." + extensionNamespace + ".svc")
	proxyCA, proxyName := publishedProxy(t, server)
	x := &extension{t: t, main: server, own: cluster.New(t), ca: cluster.EncodePEM(pki.Cert.Raw)}
	x.server = x.own.Start(cluster.Options{Args: strings.Join([]string{
		"--controllers=false", "--tls-cert-file", files.Cert, "--tls-private-key-file", files.Key,
		"--requestheader-client-ca-file", proxyCA, "--requestheader-allowed-names", proxyName,
	}, " ")}, "extension")[0]
	createWidgets(t, storage, x.server)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: extensionNamespace}}
	if _, err := server.Kube().CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	x.locate(func(spec *corev1.ServiceSpec) {
		spec.Type, spec.ExternalName = corev1.ServiceTypeExternalName, "localhost"
	})
	for _, version := range []string{"v1", "v2"} {
		service := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: version + "." + widgetGroup}}
		service.Spec = apiregistrationv1.APIServiceSpec{
			Group: widgetGroup, Version: version, GroupPriorityMinimum: 1000, VersionPriority: 100, CABundle: x.ca,
			Service: &apiregistrationv1.ServiceReference{Namespace: extensionNamespace, Name: extensionService, Port: ptr.To(int32(x.server.Port))},
		}
		if _, err := x.services().Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	x.waitAvailable(apiregistrationv1.ConditionTrue, "Passed")
	return x
}

// publishedProxy reads, from the ConfigMap where aggregated API servers look, the front proxy
// that they may trust to say who a user is: a file with its CA, and the name in its certificate.
func publishedProxy(t *testing.T, s *cluster.Server) (file, name string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "front-proxy-ca.crt")
	cluster.Eventually(t, time.Minute, "the front proxy's CA is published", func(ctx context.Context) error {
		published, err := s.Kube().CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
		if err != nil {
			return err
		}
		var names []string
		if err := json.Unmarshal([]byte(published.Data["requestheader-allowed-names"]), &names); err != nil || len(names) != 1 {
			return fmt.Errorf("published is %v: %w", published.Data, err)
		}
		name = names[0]
		return os.WriteFile(file, []byte(published.Data["requestheader-client-ca-file"]), 0o600)
	})
	return file, name
}

// locate creates the Service by which the main server finds the aggregated API server.
func (x *extension) locate(by func(*corev1.ServiceSpec)) {
	x.t.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: extensionService}}
	service.Spec.Ports = []corev1.ServicePort{{Port: int32(x.server.Port)}}
	by(&service.Spec)
	if _, err := x.main.Kube().CoreV1().Services(extensionNamespace).Create(x.t.Context(), service, metav1.CreateOptions{}); err != nil {
		x.t.Fatal(err)
	}
}

func (x *extension) services() apiregistrationclient.APIServiceInterface {
	x.t.Helper()
	client, err := apiregistrationclient.NewForConfig(x.main.Config())
	must(x.t, err)
	return client.APIServices()
}

func (x *extension) waitAvailable(status apiregistrationv1.ConditionStatus, reason string) {
	x.t.Helper()
	cluster.Eventually(x.t, time.Minute, "the APIServices' availability is "+string(status), func(ctx context.Context) error {
		for _, version := range []string{"v1", "v2"} {
			service, err := x.services().Get(ctx, version+"."+widgetGroup, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(service.Status.Conditions, func(c apiregistrationv1.APIServiceCondition) bool {
				return c.Type == apiregistrationv1.Available && c.Status == status && c.Reason == reason
			}) {
				return fmt.Errorf("%s has %+v", service.Name, service.Status.Conditions)
			}
		}
		return nil
	})
}

// report makes the aggregated API server report to the main one what it encodes, as KEP-2339
// asks for: by package member, whose loops run in the test.
func (x *extension) report(version string) *member.Member {
	x.t.Helper()
	client := x.main.Objects()
	m, err := member.New(member.Config{
		Client: client, Bury: collect.New(collect.Config{Client: client}).Bury,
		Versions:      member.Versions{Binary: "1.37", Emulation: "1.37", MinCompatibility: "1.36"},
		LeaseDuration: cluster.LeaseDuration, RenewInterval: cluster.RenewInterval,
	})
	must(x.t, err)
	both := []string{string(widgetEncoding("v2")), string(widgetEncoding("v1"))}
	must(x.t, m.SetBuiltins([]member.Resource{{GroupResource: widgets, Encoding: widgetEncoding(version), Decodable: both, Served: both}}))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); m.Run(ctx) }()
	x.t.Cleanup(func() { stop(); <-ended })
	cluster.Eventually(x.t, time.Minute, "the widgets are reported in "+version, func(context.Context) error { return m.Ready() })
	return m
}

// hashes returns the hashes of the widgets' contents, which no migration changes.
func (x *extension) hashes() (found map[string]string) {
	x.t.Helper()
	x.own.Ledger(func(l *audit.Ledger) { found = l.Hashes(widgets) })
	return found
}

// TestAggregatedAPI: the objects that an aggregated API server stores are migrated through the
// API, automatically when that server reports, and for users of both APIs; the status says so.
func TestAggregatedAPI(t *testing.T) {
	t.Parallel()
	const objects = 150
	c := cluster.New(t)
	main := c.Start(cluster.Options{}, "main")[0]
	x := aggregate(t, main, "v1")
	wantDiscovered(t, main)
	wantTrustOfProxyOnly(t, x)
	must(t, load.Fill(t.Context(), load.Endpoint{Name: x.server.Name, Client: main.Dynamic()}, widgetsV1, "fill", objects))
	wantEncoding(t, x.own, widgets, widgetEncoding("v1"), objects)
	before := x.hashes()

	first := x.report("v1")
	c.WaitSettled()
	wantThroughAPI(t, main, widgetEncoding("v1"), objects)
	must(t, first.Depart(t.Context()))
	storeWidgetsIn(t, x.server, "v2")
	waitCommon(t, x.own, widgets, widgetEncoding("v2"))
	x.report("v2")
	waitCommon(t, c, widgets, widgetEncoding("v2"))
	t.Logf("settled %v after the agreement on v2", c.WaitSettled().Round(time.Millisecond))
	wantThroughAPI(t, main, widgetEncoding("v2"), objects)
	wantEncoding(t, x.own, widgets, widgetEncoding("v2"), objects)
	wantDryRun(t, main)

	wantByAPI(t, waitEnded(t, main, migrate(t, main, "by-hand")), objects)
	createFrom(t, main, `{apiVersion: storagemigration.k8s.io/v1, kind: StorageVersionMigration, metadata: {name: upstream}, spec: {resource: {group: e2e.concord.dev, resource: widgets}}}`)
	var copied *migrationv1alpha1.StorageVersionMigration
	cluster.Eventually(t, time.Minute, "the migration of storagemigration.k8s.io is copied", func(context.Context) error {
		copies := copiesOf(t, main, "upstream")
		if len(copies) != 1 {
			return fmt.Errorf("copies are %+v", copies)
		}
		copied = &copies[0]
		return nil
	})
	wantByAPI(t, waitEnded(t, main, copied), objects)

	if after := x.hashes(); len(after) != objects || !maps.Equal(before, after) {
		t.Errorf("of %d objects before there are %d, or they differ", len(before), len(after))
	}
	wantOutageOutlived(t, x, objects)
	c.Check()
	x.own.Check()
}

// migrate creates a migration of the widgets as a user would, without an engine.
func migrate(t *testing.T, s *cluster.Server, name string) *migrationv1alpha1.StorageVersionMigration {
	t.Helper()
	m := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: widgetGroup, Version: "v1", Resource: widgets.Resource}
	must(t, s.Objects().Create(t.Context(), m))
	return m
}

// wantThroughAPI expects that the trigger has created a migration to the encoding, and that it
// was done through the API.
func wantThroughAPI(t *testing.T, s *cluster.Server, encoding agree.Encoding, objects int64) {
	t.Helper()
	all, err := migrationsOf(t.Context(), s, widgets)
	must(t, err)
	for _, m := range all {
		if m.Labels[migrationv1alpha1.MadeByLabel] == migrationv1alpha1.MadeByTrigger && migrationv1alpha1.TargetOf(m).Encoding == encoding {
			wantByAPI(t, m, objects)
			return
		}
	}
	t.Errorf("nobody made a migration of the widgets to %s", encoding)
}

// wantByAPI expects that the API engine has migrated successfully, with the reason that this
// server does not store the resource.
func wantByAPI(t *testing.T, m *migrationv1alpha1.StorageVersionMigration, objects int64) {
	t.Helper()
	if migrationv1alpha1.True(m, migrationv1alpha1.MigrationSucceeded) == nil || m.Status.Progress == nil || m.Status.Progress.Done < objects {
		t.Errorf("%s has the status %+v", m.Name, m.Status)
	}
	want := "is served by service " + extensionNamespace + "/" + extensionService
	if m.Spec.Engine != "" || m.Status.Engine != migrationv1alpha1.EngineAPI || !strings.Contains(m.Status.EngineReason, want) {
		t.Errorf("%s asks for the engine %q and got %q because %q, want API because the resource %s", m.Name, m.Spec.Engine, m.Status.Engine, m.Status.EngineReason, want)
	}
}

// wantDryRun expects that a dry run of all resources counts nothing of the widgets, which another server stores, and
// tells everything of all other resources.
func wantDryRun(t *testing.T, s *cluster.Server) {
	t.Helper()
	const how = "the server asked does not store it"
	args := []string{"migrate", "--all", "--dry-run", "--kubeconfig", s.Kubeconfig(), "-o"}
	rows := dryRun(t, cluster.Command(t, append(args, "json")...))
	found := false
	for _, row := range rows {
		if row.Resource != widgets.String() {
			if row.Elsewhere != "" || row.Objects == nil || row.Bytes == nil || row.Rewrite == nil || row.ExpectedSeconds == nil {
				t.Errorf("of what is stored here the dry run says %+v", row)
			}
			continue
		}
		found = true
		if row.Elsewhere != how || row.Encoding != "" || row.Objects != nil || row.Bytes != nil || row.Rewrite != nil || row.ExpectedSeconds != nil || row.Basis != "unknown" {
			t.Errorf("of the widgets the dry run says %+v", row)
		}
	}
	if !found || len(rows) < 20 {
		t.Errorf("the dry run has %d rows, the widgets among them: %v", len(rows), found)
	}
	table := cluster.Command(t, append(args, "table")...)
	if text := strings.Join(strings.Fields(table.Stdout), " "); table.Code != 0 || !strings.Contains(text, widgets.String()+" - objects: "+how) {
		t.Errorf("the dry run ends with %+v", table)
	}
}

// wantDiscovered expects that the main server's discovery has the widgets, which another server serves.
func wantDiscovered(t *testing.T, s *cluster.Server) {
	t.Helper()
	cluster.Eventually(t, time.Minute, "the widgets are discovered", func(context.Context) error {
		found := discovered(t, s)
		for _, version := range []string{"v1", "v2"} {
			if !found[widgetGroup+"/"+version+"/widgets"] {
				return fmt.Errorf("aggregated discovery has no current widgets in %s", version)
			}
		}
		return nil
	})
}

// wantTrustOfProxyOnly expects that the aggregated API server believes nobody but the front
// proxy about who a user is.
func wantTrustOfProxyOnly(t *testing.T, x *extension) {
	t.Helper()
	config := rest.AnonymousClientConfig(x.main.Config())
	config.Host, config.CAData = x.server.URL(), x.ca
	config.CertData, config.KeyData = cluster.LoadAuthority(t, filepath.Dir(x.main.Kubeconfig())).Issue("front-proxy-client")
	config.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return withHeaders{next, map[string]string{"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}}
	}
	if status, body := request(t, config, "/apis/"+widgetGroup+"/v1/widgets", ""); status != http.StatusForbidden && status != http.StatusUnauthorized {
		t.Errorf("a client of the main cluster's CA passes for the front proxy: %d: %s", status, body)
	}
}

type withHeaders struct {
	http.RoundTripper
	headers map[string]string
}

// RoundTrip implements http.RoundTripper.
func (w withHeaders) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range w.headers {
		r.Header.Set(name, value)
	}
	return w.RoundTripper.RoundTrip(r)
}

// wantOutageOutlived expects that a namespace which is deleted while an aggregated API cannot be
// reached is emptied, but stays until the API is back, since nobody knows what it holds there;
// and that a migration which is created meanwhile is done afterwards.
func wantOutageOutlived(t *testing.T, x *extension, objects int64) {
	t.Helper()
	const namespace = "emptied"
	kube := x.main.Kube().CoreV1()
	if _, err := kube.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.ConfigMaps(namespace).Create(t.Context(), configMap("a", "b"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	must(t, kube.Services(extensionNamespace).Delete(t.Context(), extensionService, metav1.DeleteOptions{}))
	x.waitAvailable(apiregistrationv1.ConditionFalse, "ServiceNotFound")
	if status, body := request(t, x.main.Config(), "/apis/"+widgetGroup+"/v1/widgets", ""); status != http.StatusServiceUnavailable {
		t.Errorf("what cannot be reached answers %d: %s", status, body)
	}
	wantDryRun(t, x.main)
	must(t, kube.Namespaces().Delete(t.Context(), namespace, metav1.DeleteOptions{}))
	cluster.Eventually(t, time.Minute, "the namespace is emptied", func(ctx context.Context) error {
		left, err := kube.ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ns, err := kube.Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(left.Items) > 0 || len(ns.Status.Conditions) == 0 || !strings.Contains(ns.Status.Conditions[0].Message, widgetGroup) {
			return fmt.Errorf("it has %d ConfigMaps and the conditions %+v", len(left.Items), ns.Status.Conditions)
		}
		return nil
	})
	waiting := migrate(t, x.main, "while-away")
	x.locate(func(spec *corev1.ServiceSpec) {
		spec.Type, spec.ExternalName = corev1.ServiceTypeExternalName, "localhost"
	})
	x.waitAvailable(apiregistrationv1.ConditionTrue, "Passed")
	wantByAPI(t, waitEnded(t, x.main, waiting), objects)
	// The namespace controller tries again after up to a minute.
	cluster.Eventually(t, 3*time.Minute, "the namespace goes", func(ctx context.Context) error {
		_, err := kube.Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is read with %w", err)
	})
}

// TestServicesOfOwnHost: by default a server does not connect to a port of its own host for a
// Service, here one whose name leads there, neither for a conversion webhook nor for an
// aggregated API. It does connect to webhooks by URL, which administrators choose. An egress selector
// for other connections changes none of that.
func TestServicesOfOwnHost(t *testing.T) {
	t.Parallel()
	selector := filepath.Join(t.TempDir(), "egress.yaml")
	must(t, os.WriteFile(selector, []byte(`apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: controlplane
  connection: {proxyProtocol: Direct}
`), 0o600))
	for name, args := range map[string]string{"default": "", "egress": " --egress-selector-config-file=" + selector} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refusesOwnHost(t, args)
		})
	}
}

func refusesOwnHost(t *testing.T, args string) {
	const refusal = "--allow-loopback-services"
	hook := startConverter(t)
	c := cluster.New(t)
	s := c.Start(cluster.Options{Args: refusal + "=false" + args}, "cautious")[0]
	crd := hook.behindService(s, convertibleCRD(hook))
	createCRD(t, crd, s)
	fill(t, s, convertiblesV1, 1)
	asV2 := func() error {
		_, err := s.Dynamic().Resource(convertibles.WithVersion("v2")).List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := asV2(); err == nil || !strings.Contains(err.Error(), refusal) {
		t.Errorf("a conversion webhook on the server's host is called: %v", err)
	}

	_, text, err := net.SplitHostPort(hook.address)
	must(t, err)
	port, err := strconv.ParseInt(text, 10, 32)
	must(t, err)
	registered, err := apiregistrationclient.NewForConfig(s.Config())
	must(t, err)
	service := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.inside.example.com"}}
	service.Spec = apiregistrationv1.APIServiceSpec{
		Group: "inside.example.com", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 100, CABundle: cluster.EncodePEM(hook.ca.Cert.Raw),
		Service: &apiregistrationv1.ServiceReference{Namespace: metav1.NamespaceDefault, Name: converterService, Port: ptr.To(int32(port))},
	}
	if _, err := registered.APIServices().Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, time.Minute, "the APIService says why it is not available", func(ctx context.Context) error {
		found, err := registered.APIServices().Get(ctx, service.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range found.Status.Conditions {
			if c.Type == apiregistrationv1.Available && c.Status == apiregistrationv1.ConditionFalse && strings.Contains(c.Message, refusal) {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %+v", found.Status.Conditions)
	})
	refusesToAsk(t, s, service.Spec.CABundle, service.Spec.Service.Port, refusal)
	if n := hook.calls(); n > 0 {
		t.Errorf("%d calls got through", n)
	}

	byURL := convertibleCRD(hook).Spec.Conversion
	cluster.Eventually(t, time.Minute, "the webhook is called by its URL", func(ctx context.Context) error {
		present := &apiextensionsv1.CustomResourceDefinition{}
		if err := s.Objects().Get(ctx, client.ObjectKeyFromObject(crd), present); err != nil {
			return err
		}
		present.Spec.Conversion = byURL
		if err := s.Objects().Update(ctx, present); err != nil {
			return err
		}
		return asV2()
	})
	if hook.calls() == 0 {
		t.Error("a webhook by URL is not called")
	}
}

// refusesToAsk makes an admission webhook on the server's host, which is not called: it refuses every object.
func refusesToAsk(t *testing.T, s *cluster.Server, ca []byte, port *int32, refusal string) {
	t.Helper()
	if _, err := s.Kube().AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "inside"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "inside.example.com", Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				CABundle: ca,
				Service:  &admissionregistrationv1.ServiceReference{Namespace: metav1.NamespaceDefault, Name: converterService, Port: port},
			},
			SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, time.Minute, "an admission webhook on the server's host refuses all, uncalled", func(ctx context.Context) error {
		_, err := s.Kube().CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "refused"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), refusal) {
			return fmt.Errorf("a ConfigMap is answered with %w", err)
		}
		return nil
	})
}

// calls returns how many calls the webhook has answered.
func (c *converter) calls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answered
}
