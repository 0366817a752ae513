package generic_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api/v1"
	"k8s.io/component-helpers/auth/rbac/validation"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/access"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/join/roles"
	"github.com/concord-dev/concord/server/generic"
)

// TestWhoAndMay has users from an OpenID Connect provider (structured authentication), and a webhook that authorizes
// them (structured authorization), with kube-apiserver's own flags.
func TestWhoAndMay(t *testing.T) {
	provider, authorizer := newProvider(t), newAuthorizer(t)
	file := func(name, content string) string { return writeFile(t, name, content) }
	authentication := file("authentication.json", fmt.Sprintf(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","jwt":[{
"issuer":{"url":%q,"certificateAuthority":%q,"audiences":["concord"]},
"claimMappings":{"username":{"expression":"'oidc:' + claims.sub"},"groups":{"expression":"claims.teams"}}}]}`, provider.server.URL, provider.ca()))
	authorization := file("authorization.json", fmt.Sprintf(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration","authorizers":[
{"type":"Webhook","name":"test","webhook":{"timeout":"10s","authorizedTTL":"1s","unauthorizedTTL":"1s","subjectAccessReviewVersion":"v1","matchConditionSubjectAccessReviewVersion":"v1",
"failurePolicy":"NoOpinion","connectionInfo":{"type":"KubeConfigFile","kubeConfigFile":%q},"matchConditions":[{"expression":"request.user.startsWith('oidc:')"}]}},
{"type":"RBAC","name":"rbac"}]}`, file("webhook.json", authorizer.kubeconfig(t))))

	s := startWith(t, "--authentication-config="+authentication, "--authorization-config="+authorization)
	s.wantKnown(t, provider, authorizer)
	if others := authorizer.others.Load(); others > 0 {
		t.Errorf("the webhook was asked %d times about users that its condition leaves out", others)
	}
}

// TestWithoutRBAC: Concord's and Kubernetes' controllers also work with other authorizers than RBAC alone, and without
// priority and fairness. Users from an OpenID Connect provider, and the webhook, are set up by flags only.
func TestWithoutRBAC(t *testing.T) {
	provider, authorizer := newProvider(t), newAuthorizer(t)
	policy := writeFile(t, "policy.jsonl", `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"jane","namespace":"*","resource":"*","apiGroup":"*"}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"group":"system:authenticated","resource":"selfsubjectreviews","apiGroup":"authentication.k8s.io"}}`)
	s := startWith(t, append(strings.Fields(cluster.MaxInflight), "--authorization-mode=ABAC,Webhook", "--authorization-policy-file="+policy,
		"--authorization-webhook-config-file="+writeFile(t, "webhook.json", authorizer.kubeconfig(t)), "--authorization-webhook-version=v1",
		"--oidc-issuer-url="+provider.server.URL, "--oidc-client-id=concord", "--oidc-ca-file="+writeFile(t, "ca.crt", provider.ca()),
		"--oidc-username-claim=sub", "--oidc-username-prefix=oidc:", "--oidc-groups-claim=teams", "--oidc-signing-algs=ES256")...)
	states := dynamic.NewForConfigOrDie(s.admin).Resource(migrationv1alpha1.SchemeGroupVersion.WithResource("storagestates"))
	eventually(t, "the trigger writes a StorageState", func(ctx context.Context) error {
		_, err := states.Get(ctx, migrationv1alpha1.StateName(schema.GroupResource{Resource: "configmaps"}), metav1.GetOptions{})
		return err
	})
	eventually(t, "the default ServiceAccount is made", func(ctx context.Context) error {
		_, err := s.kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	s.wantKnown(t, provider, authorizer)
	cluster.WaitOverload(t, s.admin, "jane")
}

// wantKnown expects that the server accepts tokens of the provider and of no other one, and that it allows what the
// webhook allows and no more.
func (s *running) wantKnown(t *testing.T, provider *provider, authorizer *authorizer) {
	t.Helper()
	// The server fetches the provider's keys after its start.
	jane := provider.token(t, "jane", "readers")
	eventually(t, "the provider's tokens are taken", func(ctx context.Context) error {
		_, err := s.with(jane).CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
		return err
	})
	if got := s.whoAmI(t, jane); got != "oidc:jane" {
		t.Errorf("the token is of %s", got)
	}
	if _, err := s.with(jane).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a reader of ConfigMaps reads Secrets: %v", err)
	}
	if _, err := s.with(provider.token(t, "joe", "others")).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a user whom neither the webhook nor RBAC knows: %v", err)
	}
	if _, err := s.with(newProvider(t).token(t, "jane", "readers")).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("a token of another provider: %v", err)
	}
	if asked := authorizer.asked.Load(); asked == 0 {
		t.Error("the webhook was never asked")
	}
}

// startWith starts a server for this test, with flags of kube-apiserver.
func startWith(t *testing.T, flags ...string) *running {
	t.Helper()
	dir, err := os.MkdirTemp("", "who") // its path is short enough for a Unix socket
	mustDo(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return startFor(t, func(o *generic.Options) {
		fs := pflag.NewFlagSet("server", pflag.ContinueOnError)
		o.AddFlags(fs)
		mustDo(t, fs.Parse(append([]string{"--data-dir=" + dir, "--secure-port=0"}, flags...)))
	})
}

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	mustDo(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// provider issues tokens like an OpenID Connect provider.
type provider struct {
	server *httptest.Server
	key    *ecdsa.PrivateKey
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{key: must[*ecdsa.PrivateKey](t)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": p.server.URL, "jwks_uri": p.server.URL + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"}})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: p.key.Public(), KeyID: "one", Algorithm: "ES256", Use: "sig"}}})
	})
	p.server = httptest.NewTLSServer(mux)
	t.Cleanup(p.server.Close)
	return p
}

func (p *provider) ca() string { return certificateOf(p.server) }

func certificateOf(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

func (p *provider) token(t *testing.T, user string, teams ...string) string {
	t.Helper()
	signer := must[jose.Signer](t)(jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.key, KeyID: "one"}}, nil))
	now := time.Now()
	return must[string](t)(jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: p.server.URL, Subject: user, Audience: jwt.Audience{"concord"}, IssuedAt: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(time.Hour)),
	}).Claims(map[string]any{"teams": teams}).CompactSerialize())
}

// authorizer is a webhook that allows the group readers to read ConfigMaps.
type authorizer struct {
	server        *httptest.Server
	asked, others atomic.Int64
}

func newAuthorizer(t *testing.T) *authorizer {
	a := &authorizer{}
	a.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a.asked.Add(1)
		if !strings.HasPrefix(review.Spec.User, "oidc:") {
			a.others.Add(1)
		}
		attributes := review.Spec.ResourceAttributes
		review.Status.Allowed = attributes != nil && attributes.Resource == "configmaps" && attributes.Verb == "list" && strings.Contains(strings.Join(review.Spec.Groups, ","), "readers")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(a.server.Close)
	return a
}

// kubeconfig returns a kubeconfig that names the webhook.
func (a *authorizer) kubeconfig(t *testing.T) string {
	t.Helper()
	return string(must[[]byte](t)(json.Marshal(clientcmdapi.Config{
		APIVersion: "v1", Kind: "Config", CurrentContext: "test",
		Clusters:  []clientcmdapi.NamedCluster{{Name: "test", Cluster: clientcmdapi.Cluster{Server: a.server.URL, CertificateAuthorityData: []byte(certificateOf(a.server))}}},
		AuthInfos: []clientcmdapi.NamedAuthInfo{{Name: "test"}},
		Contexts:  []clientcmdapi.NamedContext{{Name: "test", Context: clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}}},
	})))
}

// TestControllersIdentities: each controller, Kubernetes' and Concord's, acts as its own service account, and none of its
// requests is refused, unless the authorizer does not have all roles yet.
func TestControllersIdentities(t *testing.T) {
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	mustDo(t, os.WriteFile(policy, []byte(`{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}`), 0o600))
	s := startFor(t, func(o *generic.Options) {
		o.DataDir = filepath.Join(dir, "data")
		o.ControlPlane.Audit.PolicyFile, o.ControlPlane.Audit.LogOptions.Path = policy, log
	})
	ns := s.namespace(t)
	mustDo(t, s.kube.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}))
	eventually(t, "the deletion", func(ctx context.Context) error {
		_, err := s.kube.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		return gone(err)
	})
	eventually(t, "the audit log", func(context.Context) error {
		did, refused := map[string][]string{}, map[string]bool{}
		for _, e := range readAudit(t, log) {
			if e.ImpersonatedUser == nil {
				continue
			}
			path, _, _ := strings.Cut(e.RequestURI, "?")
			switch request := fmt.Sprint(e.ImpersonatedUser.Username, " ", e.Verb, " ", path); e.Annotations["authorization.k8s.io/decision"] {
			case "forbid":
				refused[request] = true
			case "allow":
				delete(refused, request)
			}
			if r := e.ObjectRef; r != nil {
				did[e.ImpersonatedUser.Username] = append(did[e.ImpersonatedUser.Username], e.Verb+" "+r.Resource+"/"+r.Subresource)
			}
		}
		for who, what := range map[string]string{
			"service-account-controller": "create serviceaccounts/", "root-ca-cert-publisher": "create configmaps/",
			"namespace-controller": "update namespaces/finalize", "clusterrole-aggregation-controller": "patch clusterroles/",
			"concord-trigger": "create storagestates/", "concord-skew": "create clusterversions/",
		} {
			if user := "system:serviceaccount:kube-system:" + who; !slices.Contains(did[user], what) {
				return fmt.Errorf("%s did not %s, but %v", user, what, did[user])
			}
		}
		if len(refused) > 0 {
			return fmt.Errorf("refused for good: %v", slices.Sorted(maps.Keys(refused)))
		}
		return nil
	})
}

func readAudit(t *testing.T, file string) (events []auditv1.Event) {
	t.Helper()
	f := must[*os.File](t)(os.Open(file))
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var e auditv1.Event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			events = append(events, e)
		}
	}
	return events
}

// TestFreshTokens: the token of an account that is not in an informer's cache yet, since another server has just made
// it, is accepted.
func TestFreshTokens(t *testing.T) {
	options := generic.NewOptions()
	reach := generic.FreshTokens(options)
	getter := options.ControlPlane.Authentication.ServiceAccounts.OptionalTokenGetter(informers.NewSharedInformerFactory(shared.kube, 0)) // no informer runs
	mustDo(t, reach(shared.admin))
	ns := shared.namespace(t)
	if account, err := getter.GetServiceAccount(t.Context(), ns, "default"); err != nil || account.UID == "" {
		t.Errorf("got %+v, %v", account, err)
	}
	must[*corev1.Secret](t)(shared.kube.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "fresh"}}, metav1.CreateOptions{}))
	if secret, err := getter.GetSecret(t.Context(), ns, "fresh"); err != nil || secret.UID == "" {
		t.Errorf("got %+v, %v", secret, err)
	}
	if _, err := getter.GetServiceAccount(t.Context(), ns, "none"); !apierrors.IsNotFound(err) {
		t.Errorf("of an account that does not exist: %v", err)
	}
}

// TestPermissions compares all users' permissions on the objects of the protocol with testdata/permissions.txt. With
// CONCORD_UPDATE=1 it writes that file.
func TestPermissions(t *testing.T) {
	access.Check(t, shared.kube, filepath.Join("testdata", "permissions.txt"))
}

// TestViewTakesInOurs: users with the ClusterRole view for the whole cluster may read what kubectl concord shows.
func TestViewTakesInOurs(t *testing.T) {
	eventually(t, "Kubernetes' role view has our rules", func(ctx context.Context) error {
		view, err := shared.kube.RbacV1().ClusterRoles().Get(ctx, "view", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if covered, _ := validation.Covers(view.Rules, roles.View.Rules); !covered {
			return fmt.Errorf("it has %v", view.Rules)
		}
		return nil
	})
}
