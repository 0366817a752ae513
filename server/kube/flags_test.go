package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/component-base/logs"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/e2e/vault"
	"github.com/concord-dev/concord/gates"
	"github.com/concord-dev/concord/server/kube"
	stockserver "github.com/concord-dev/concord/server/stock"
	"github.com/concord-dev/concord/testbed/process"
)

// TestRefused: flags with which the protocol cannot work end the server with one line that says so.
func TestRefused(t *testing.T) {
	t.Parallel()
	c := newControl(t)
	for flag, want := range map[string]string{
		"--feature-gates=CBORServingAndStorage=true":              "CBORServingAndStorage",
		"--feature_gates=CBORServingAndStorage=true":              "CBORServingAndStorage",
		"--etcd-servers-overrides=/configmaps#http://127.0.0.1:1": "--etcd-servers-overrides is not supported",
		"--emulation-version=1.38":                                "1.38",
		"--identity-lease-duration=1500ms":                        "--identity-lease-duration 1.5s is not allowed",
		"--runtime-config=storage.example.com/v1=true":            "storage.example.com",
		"--feature-gates=kube:StorageVersionAPI=true":             "this feature of Kubernetes stays off, as Concord's own gate of that name replaces what it does",
	} {
		t.Run(flag, func(t *testing.T) {
			s := c.start(ours, strings.NewReplacer("/", "_", ":", "_").Replace(flag)[2:20], flag)
			if ended, ok := s.Wait(time.Minute); !ok {
				t.Fatal("it runs")
			} else if ended.Code != 1 || !strings.Contains(ended.Stderr, want) {
				t.Errorf("it ended with %d and said %s", ended.Code, ended.Stderr)
			}
		})
	}
}

var mutatingPolicies = schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"}

// TestFlags: flags of kube-apiserver that go together have their effects.
func TestFlags(t *testing.T) {
	t.Parallel()
	c := newControl(t)
	plugin := vault.Start(t, vault.NewVault(), "key")
	kms := "  - kms: {apiVersion: v2, name: p, endpoint: 'unix://" + plugin.Path + "', timeout: 10s}\n"
	const sealed = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets, services, endpoints, nodes, replicationcontrollers]\n  providers:\n"
	sealing := c.write("encryption.yaml", sealed+kms+"  - identity: {}\n")
	s := c.ready(ours, "one", "--emulated-version=1.36", "--min-compatibility-version=1.36", "--runtime-config=batch/v1=false", "--watch-cache-sizes=configmaps#0",
		"--encryption-provider-config="+sealing, "--encryption-provider-config-automatic-reload", "--encryption-provider-config-reload-interval=1s")
	agreements := s.agreed(time.Minute, 1)
	s.createSealed()
	t.Run("Compatibility", func(t *testing.T) {
		storesPolicies("v1")(t, s, agreements) // v1beta1, if 1.35 had to read them
		if v, err := s.Kube().Discovery().ServerVersion(); err != nil || v.EmulationMinor != "36" || v.MinCompatibilityMinor != "36" {
			t.Errorf("clients are told %#v, error %v", v, err)
		}
	})
	t.Run("RuleCost", func(t *testing.T) { // 1.37's relaxed validation waits until 1.36 does not have to read the definition
		crd := &apiextensionsv1.CustomResourceDefinition{}
		must(t, yaml.Unmarshal([]byte(`{metadata: {name: costs.example.com}, spec: {group: example.com, scope: Cluster, names: {plural: costs, kind: Cost},
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object,
    x-kubernetes-validations: [{rule: "self.words.all(w, !self.metadata.name.contains(w))"}],
    properties: {words: {type: array, maxItems: 10, items: {type: string, maxLength: 100}}}}}}]}}`), crd))
		if err := s.Objects().Create(t.Context(), crd, client.DryRunAll); err == nil || !strings.Contains(err.Error(), string(gates.CRDBoundedNameCost)) {
			t.Errorf("a rule that 1.36 refuses is answered with: %v", err)
		}
	})
	t.Run("RuntimeConfig", func(t *testing.T) {
		if status, _, err := s.Get(t.Context(), "/apis/batch/v1"); err != nil || status != 404 {
			t.Errorf("%d, error %v", status, err)
		}
	})
	t.Run("ClientMetrics", func(t *testing.T) {
		if _, body, err := s.Get(t.Context(), "/metrics"); err != nil || !strings.Contains(body, "\nrest_client_requests_total{") || !strings.Contains(body, "\nworkqueue_depth{") {
			t.Errorf("metrics of clients or work queues are missing; error %v", err)
		}
	})
	t.Run("WatchCache", func(t *testing.T) {
		_, body, err := s.Get(t.Context(), "/metrics")
		cached := func(resource string) bool {
			return strings.Contains(body, fmt.Sprintf(`watch_cache_capacity{group="",resource="%s"}`, resource))
		}
		if err != nil || cached("configmaps") || !cached("secrets") {
			t.Errorf("ConfigMaps have a watch cache: %v, Secrets: %v, error %v", cached("configmaps"), cached("secrets"), err)
		}
	})
	// e2e rotates keys while clients write (TestKeyRotation, TestSlow/KMS).
	t.Run("KMS", func(t *testing.T) {
		c.sealedWith(t, agreements, "kms:v2:p:")
		for _, path := range []string{"/readyz?verbose", "/healthz?verbose"} {
			if _, checks, err := s.Get(t.Context(), path); err != nil || !strings.Contains(checks, "[+]kms-providers ok") {
				t.Errorf("%s does not ask the plugin: %s, error %v", path, checks, err)
			}
		}
	})
	t.Run("Reload", func(t *testing.T) {
		c.write("encryption.yaml", sealed+"  - aescbc: {keys: [{name: key1, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}\n"+kms+"  - identity: {}\n")
		eventually(t, time.Minute, "another key is agreed on", func(context.Context) error {
			now := s.agreed(time.Minute, 1)
			for gr := range sealedKeys {
				if now[gr] == agreements[gr] {
					return fmt.Errorf("agreed for %s is %s", gr, now[gr])
				}
			}
			return nil
		})
		s.migrated(time.Minute)
		c.sealedWith(t, s.agreed(time.Minute, 1), "aescbc:v1:key1:") // the object of each resource was found and rewritten
	})
}

// sealedKeys are the keys, under the registry's prefix, of objects of the resources that TestFlags encrypts. All but
// Secrets are in places that are not called after their resource.
var sealedKeys = map[schema.GroupResource]string{
	{Resource: "secrets"}:                "secrets/default/s",
	{Resource: "services"}:               "services/specs/default/s",
	{Resource: "endpoints"}:              "services/endpoints/default/s",
	{Resource: "nodes"}:                  "minions/s",
	{Resource: "replicationcontrollers"}: "controllers/default/s",
}

// createSealed creates the objects of sealedKeys.
func (s *apiserver) createSealed() {
	s.t.Helper()
	core, ctx, options := s.Kube().CoreV1(), s.t.Context(), metav1.CreateOptions{}
	object := metav1.ObjectMeta{Name: "s", Labels: map[string]string{"app": "s"}}
	_, err := core.Secrets(metav1.NamespaceDefault).Create(ctx, &corev1.Secret{ObjectMeta: object}, options)
	must(s.t, err)
	_, err = core.Services(metav1.NamespaceDefault).Create(ctx, &corev1.Service{ObjectMeta: object, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}}, options)
	must(s.t, err)
	_, err = core.Endpoints(metav1.NamespaceDefault).Create(ctx, &corev1.Endpoints{ObjectMeta: object}, options) //nolint:staticcheck // it is stored all the same
	must(s.t, err)
	_, err = core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: object}, options)
	must(s.t, err)
	_, err = core.ReplicationControllers(metav1.NamespaceDefault).Create(ctx, &corev1.ReplicationController{ObjectMeta: object, Spec: corev1.ReplicationControllerSpec{
		Selector: object.Labels,
		Template: &corev1.PodTemplateSpec{ObjectMeta: object, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}}, options)
	must(s.t, err)
}

// sealedWith says whether the objects of sealedKeys are agreed to be encrypted, and are stored encrypted, by a provider
// with this prefix.
func (c *control) sealedWith(t *testing.T, agreed map[schema.GroupResource]agree.Encoding, provider string) {
	t.Helper()
	for gr, key := range sealedKeys {
		if agreed[gr].Seal() == "" || agreed[gr].Plain() != "v1" {
			t.Errorf("%s are agreed to be stored as %s", gr, agreed[gr])
		}
		answer, err := c.Raw.Get(t.Context(), registry+key)
		if err != nil || len(answer.Kvs) != 1 || !strings.HasPrefix(string(answer.Kvs[0].Value), "k8s:enc:"+provider) {
			t.Errorf("%s, %s: error %v, stored is %v", gr, key, err, answer)
		}
	}
}

// testFlags starts a server for each of more flags, and checks its effect.
func testFlags(t *testing.T) {
	c := newControl(t)
	direct := c.write("egress.yaml", "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n- name: etcd\n  connection: {proxyProtocol: Direct}\n")
	for name, test := range map[string]struct {
		flags []string
		check func(*testing.T, *apiserver, map[schema.GroupResource]agree.Encoding)
	}{
		"emulated":  {[]string{"--emulated-version=1.36"}, storesPolicies("v1beta1")},
		"emulation": {[]string{"--emulation-version=1.36"}, storesPolicies("v1beta1")},
		"newest": {nil, func(t *testing.T, s *apiserver, agreements map[schema.GroupResource]agree.Encoding) {
			storesPolicies("v1")(t, s, agreements)
			version, err := s.Kube().Discovery().ServerVersion()
			if err != nil || !regexp.MustCompile(`^v1\.37\.\d+\+concord(\.[0-9A-Za-z.-]+)?$`).MatchString(version.GitVersion) {
				t.Errorf("clients are told version %v, error %v", version, err)
			}
		}},
		"json": {[]string{"--storage-media-type=application/json"}, func(t *testing.T, s *apiserver, _ map[schema.GroupResource]agree.Encoding) {
			answer, err := c.Raw.Get(t.Context(), "/json/namespaces/default")
			if err != nil || len(answer.Kvs) != 1 || answer.Kvs[0].Value[0] != '{' {
				t.Errorf("error %v, stored is %v", err, answer)
			}
		}},
		"yaml": {[]string{"--storage-media-type=application/yaml"}, func(t *testing.T, s *apiserver, _ map[schema.GroupResource]agree.Encoding) {
			answer, err := c.Raw.Get(t.Context(), "/yaml/namespaces/default")
			if err != nil || len(answer.Kvs) != 1 || !strings.HasPrefix(string(answer.Kvs[0].Value), "apiVersion: v1\n") {
				t.Errorf("error %v, stored is %v", err, answer)
			}
		}},
		// ARCHITECTURE.md's "Writers that bypass the fence" names it.
		"bitmap": {[]string{"--emulated-version=1.34", "--feature-gates=DisableAllocatorDualWrite=false"}, func(t *testing.T, s *apiserver, _ map[schema.GroupResource]agree.Encoding) {
			key := "/bitmap/ranges/serviceips"
			if encoding, err := c.value(t.Context(), key); err != nil || encoding != "v1" {
				t.Errorf("%s is stored as %q, error %v", key, encoding, err)
			}
		}},
		"inflight": {strings.Fields(cluster.MaxInflight), func(t *testing.T, s *apiserver, _ map[schema.GroupResource]agree.Encoding) {
			cluster.WaitOverload(t, s.Admin, user.KubeControllerManager)
		}},
		"egress": {[]string{"--egress-selector-config-file=" + direct}, nil},
		"peers":  {c.peerFlags(), nil},
		"alpha": {[]string{"--runtime-config=api/all=true", "--feature-gates=AllAlpha=true,AllBeta=true,CBORServingAndStorage=false"}, func(t *testing.T, s *apiserver, _ map[schema.GroupResource]agree.Encoding) {
			_, body, err := s.Get(t.Context(), "/metrics")
			if err != nil || !strings.Contains(body, `name="StorageVersionAPI",stage="ALPHA"} 0`) {
				t.Errorf("upstream's StorageVersionAPI is not off, error %v", err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inner := *c
			inner.t = t
			s := inner.ready(ours, name, append(test.flags, "--etcd-prefix=/"+name)...)
			agreements := s.agreed(time.Minute, 1)
			if test.check != nil {
				test.check(t, s, agreements)
			}
			s.migrated(time.Minute)
			s.end()
		})
	}
}

// testGateOff: without the gate StorageVersionAPI no StorageVersions are served, and upstream's code deletes identity
// Leases, since no collector of ours runs.
func testGateOff(t *testing.T) {
	s := newControl(t).ready(ours, "one", "--feature-gates=StorageVersionAPI=false")
	if status, body, err := s.Get(t.Context(), "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions"); err != nil || status != http.StatusNotFound {
		t.Errorf("StorageVersions: %d %s, error %v", status, body, err)
	}
	if status, hooks, err := s.Get(t.Context(), "/readyz?verbose"); err != nil || status != http.StatusOK || !strings.Contains(hooks, "lease-garbage-collector ok") {
		t.Errorf("/readyz: %d %s, error %v", status, hooks, err)
	}
	_, err := s.Kube().CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(t.Context(), configMap("written"), metav1.CreateOptions{})
	must(t, err)
	s.end()
}

func storesPolicies(version string) func(*testing.T, *apiserver, map[schema.GroupResource]agree.Encoding) {
	return func(t *testing.T, _ *apiserver, agreements map[schema.GroupResource]agree.Encoding) {
		if got := agreements[mutatingPolicies]; got != agree.Encoding("admissionregistration.k8s.io/"+version) {
			t.Errorf("%s are stored as %s", mutatingPolicies, got)
		}
	}
}

// flags are the flags of a command, by name.
type flags map[string]flagged

type flagged struct{ Type, Default, WithoutValue, Shorthand, Deprecated string }

// listFlags prints the flags of our command and of the stock one. It runs in a process of its own,
// since the stock command installs a signal handler.
func listFlags(out io.Writer) error {
	stockCommand := stockserver.Command()
	logs.AddFlags(stockCommand.PersistentFlags()) // cli.Run does this, too
	var both [2]flags
	for i, command := range []interface{ Flags() *pflag.FlagSet }{kube.NewCommand(), stockCommand} {
		both[i] = flags{}
		command.Flags().VisitAll(func(f *pflag.Flag) {
			both[i][f.Name] = flagged{f.Value.Type(), f.DefValue, f.NoOptDefVal, f.Shorthand, f.Deprecated}
		})
	}
	return json.NewEncoder(out).Encode(both)
}

// runOnce runs the test binary in a role to its end, and returns what it printed.
func runOnce(t *testing.T, role string, args ...string) []byte {
	t.Helper()
	cmd := process.Self(role, args...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	must(t, err)
	return out
}

// TestCommandLine: every flag of the stock command is also a flag of ours, with the same default.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	var both [2]flags
	must(t, json.Unmarshal(runOnce(t, listing), &both))
	ours, theirs := both[0], both[1]
	if len(theirs) < 150 {
		t.Errorf("the stock command has %d flags", len(theirs))
	}
	for name, want := range theirs {
		if got, ok := ours[name]; !ok {
			t.Errorf("--%s is not there", name)
		} else if got != want {
			t.Errorf("--%s is %+v, the stock one %+v", name, got, want)
		}
	}
	t.Logf("%d flags are as those of the stock command, which has %d; ours has %d", len(theirs), len(theirs), len(ours))
}

// TestVersionFlag: --version prints what the stock command prints, since programs read it.
func TestVersionFlag(t *testing.T) {
	t.Parallel()
	for flag, form := range map[string]*regexp.Regexp{
		"--version":      regexp.MustCompile(`^Kubernetes v1\.37\.\d+\S*\n$`),
		"--version=true": regexp.MustCompile(`^Kubernetes v1\.37\.\d+\S*\n$`),
		"--version=raw":  regexp.MustCompile(`^version\.Info\{Major:"1", Minor:"37", .*GitVersion:"v1\.37\.\d+[^"]*", .*\}\n$`),
	} {
		if said := runOnce(t, ours, flag); !form.Match(said) {
			t.Errorf("%s prints %q", flag, said)
		}
	}
}
