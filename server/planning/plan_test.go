package planning

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/cockroachdb/datadriven"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/version"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	controlplaneoptions "k8s.io/kubernetes/pkg/controlplane/apiserver/options"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/concord-dev/concord/compat"
)

// TestPlans prints plans. A pair of versions is "1.36", with the default min compatibility version, or "1.37/1.37". Commands:
//
//	stored at=1.36 [only=moving]    the version in which each resource is stored, and that of Kubernetes 1.37 without a plan; with only,
//	                                without the resources whose version is the same for all pairs
//	moved from=1.36 to=1.34 [binary=1.36]
//	                                the resources that are stored differently
//	served at=1.36 [face=generic] [config=a=true+b=false] [forward]
//	                                the versions that are served, without the resources of which only the newest version is, if that is stable
//	differs at=1.36 [face=generic] [config=a=true+b=false] [forward]
//	                                the versions that are served only with the plan, and those only without it
func TestPlans(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "stored":
				return storedIn(t, d)
			case "moved":
				return moved(t, d)
			case "served":
				return servedAt(t, d)
			case "differs":
				return differs(t, d)
			}
			d.Fatalf(t, "no command %s", d.Cmd)
			return ""
		})
	})
}

func arg(d *datadriven.TestData, key string) string {
	if a, ok := d.Arg(key); ok && len(a.Vals) > 0 {
		return a.Vals[0]
	}
	return ""
}

func mustPlan(t *testing.T, o Options) *compat.Plan {
	t.Helper()
	plan, err := New(o)
	must(t, err)
	return plan
}

func planAt(t *testing.T, at string) *compat.Plan {
	t.Helper()
	return mustPlan(t, Options{Effective: effective(t, at)})
}

func groupResource(r compat.ResourcePlan) schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
}

func storedIn(t *testing.T, d *datadriven.TestData) string {
	at := arg(d, "at")
	moving := movingResources(t)
	return table(func(w *tabwriter.Writer) {
		fmt.Fprintln(w, "RESOURCE\tSTORED IN\tKUBERNETES")
		for _, r := range planAt(t, at).Resources {
			if r.Storage.Empty() || arg(d, "only") == "moving" && !moving.Has(groupResource(r)) {
				continue
			}
			theirs := upstream(t, at, r)
			if theirs == r.Storage.String() {
				theirs = "the same"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", groupResource(r), r.Storage, theirs)
		}
	})
}

// upstream returns the version in which Kubernetes 1.37 stores the resource at these versions.
func upstream(t *testing.T, at string, r compat.ResourcePlan) string {
	t.Helper()
	if !legacyscheme.Scheme.IsGroupRegistered(r.Group) {
		return "in its own way"
	}
	example, err := legacyscheme.Scheme.New(schema.GroupVersionKind{Group: r.Group, Version: runtime.APIVersionInternal, Kind: r.Kind})
	must(t, err)
	stores := builtStores{newFactory(t, effective(t, at), controlplane.DefaultAPIResourceConfigSource()), map[schema.GroupResource]string{}}
	if _, err := stores.GetRESTOptions(groupResource(r), example); err != nil {
		t.Fatal(err)
	}
	return stores.encodings[groupResource(r)]
}

// planOf returns the plan of another release's binary, or of this binary if binary is empty.
func planOf(t *testing.T, binary, at string) *compat.Plan {
	t.Helper()
	if binary == "" {
		return planAt(t, at)
	}
	plan, err := compat.NewPlan(Lifecycles(), compat.Options{Binary: version.MustParseMajorMinor(binary), Emulation: version.MustParseMajorMinor(at)})
	must(t, err)
	return plan
}

func movingResources(t *testing.T) sets.Set[schema.GroupResource] {
	t.Helper()
	first, moving := map[schema.GroupResource]schema.GroupVersion{}, sets.New[schema.GroupResource]()
	for _, e := range compat.AllowedEmulation(compat.BinaryVersion()) {
		for _, m := range compat.AllowedMinCompatibility(compat.BinaryVersion(), e) {
			for _, r := range planAt(t, fmt.Sprintf("%s/%s", e, m)).Resources {
				gr := groupResource(r)
				if gv, ok := first[gr]; ok && gv != r.Storage {
					moving.Insert(gr)
				}
				first[gr] = r.Storage
			}
		}
	}
	return moving
}

func moved(t *testing.T, d *datadriven.TestData) string {
	from, to := planOf(t, arg(d, "binary"), arg(d, "from")), planOf(t, arg(d, "binary"), arg(d, "to"))
	return table(func(w *tabwriter.Writer) {
		for _, r := range from.Resources {
			if gv, _ := to.Storage(groupResource(r)); gv != r.Storage {
				fmt.Fprintf(w, "%s\t%s\tto %s\n", groupResource(r), r.Storage, gv)
			}
		}
	})
}

func servedAt(t *testing.T, d *datadriven.TestData) string {
	plan, err := New(optionsOf(t, d))
	if err != nil {
		return err.Error() + "\n"
	}
	return table(func(w *tabwriter.Writer) {
		for _, r := range plan.Resources {
			var on []string
			for _, v := range r.Served {
				if v.Served {
					on = append(on, v.Version)
				}
			}
			if !r.Storage.Empty() && len(on) != 1 || len(on) == 1 && (on[0] != r.Served[0].Version || strings.Contains(on[0], "a")) {
				fmt.Fprintf(w, "%s\t%s\n", groupResource(r), cmp.Or(strings.Join(on, " "), "none"))
			}
		}
	})
}

func optionsOf(t *testing.T, d *datadriven.TestData) Options {
	t.Helper()
	config := cliflag.ConfigurationMap{}
	for _, pair := range strings.Split(arg(d, "config"), "+") {
		if pair != "" {
			if err := config.Set(pair); err != nil {
				d.Fatalf(t, "%v", err)
			}
		}
	}
	o := Options{Effective: effective(t, arg(d, "at")), RuntimeConfig: config, ForwardCompatible: d.HasArg("forward")}
	if arg(d, "face") == "generic" {
		o.Serves = Generic()
	}
	return o
}

func differs(t *testing.T, d *datadriven.TestData) string {
	o := optionsOf(t, d)
	f := faces()[slices.IndexFunc(faces(), func(f face) bool { return f.name == cmp.Or(arg(d, "face"), "kube") })]
	with, _, err := f.install(t, o.Effective, o, mustPlan(t, o))
	must(t, err)
	without, _, err := f.install(t, o.Effective, o, nil)
	if err != nil {
		return "without: " + err.Error() + "\n"
	}
	var lines []string
	for gvr := range with.Difference(without) {
		lines = append(lines, fmt.Sprintf("only with it: %s/%s", gvr.GroupVersion(), gvr.Resource))
	}
	for gvr := range without.Difference(with) {
		lines = append(lines, fmt.Sprintf("only without: %s/%s", gvr.GroupVersion(), gvr.Resource))
	}
	slices.Sort(lines)
	return cmp.Or(strings.Join(lines, "\n"), "none") + "\n"
}

func table(fill func(*tabwriter.Writer)) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fill(w)
	_ = w.Flush() // a strings.Builder returns no errors
	if b.Len() == 0 {
		return "none\n"
	}
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// TestRuntimeConfig: settings that Kubernetes accepts and ignores are accepted; settings for APIs that do not exist are refused.
func TestRuntimeConfig(t *testing.T) {
	for _, c := range []struct {
		key, value string
		serves     sets.Set[schema.GroupResource]
		refused    string
	}{
		{key: "extensions/v1beta1", value: "true"},
		{key: "policy/v1beta1/podsecuritypolicies", value: "false"},
		{key: "apps/v1/deployments", value: "true", serves: Generic()},
		{key: "apps/v1", value: "false", serves: Generic()},
		{key: "apps/v1/deployment", value: "true", refused: `no such API, allowed are apps/v1/controllerrevisions`},
		{key: "apps/v3", value: "true", refused: `no such API, allowed are apps/v1`},
		{key: "apps/v1", value: "maybe", refused: "allowed are true and false"},
	} {
		_, err := New(Options{Effective: effective(t, "1.37"), Serves: c.serves, RuntimeConfig: map[string]string{c.key: c.value}})
		switch {
		case c.refused == "" && err != nil:
			t.Errorf("%s=%s: %v", c.key, c.value, err)
		case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s=%s: %v, want %q", c.key, c.value, err, c.refused)
		}
	}
}

// TestOptions: the error names a missing option or an unknown resource.
func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"a plan needs the effective version of component kube": {},
		"no lifecycles of [widgets.example.com]":               {Effective: effective(t, "1.37"), Serves: sets.New(schema.GroupResource{Group: "example.com", Resource: "widgets"})},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestRemovedForOneMoreRelease: Kubernetes' environment variable for serving removed APIs one release longer works.
func TestRemovedForOneMoreRelease(t *testing.T) {
	addresses := schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1beta1", Resource: "ipaddresses"}
	o := Options{Effective: effective(t, "1.37"), RuntimeConfig: map[string]string{"networking.k8s.io/v1beta1": "true"}}
	kube := faces()[1]
	for _, longer := range []bool{false, true} {
		if longer {
			t.Setenv("KUBE_APISERVER_SERVE_REMOVED_APIS_FOR_ONE_RELEASE", "true")
		}
		if served, _, err := kube.install(t, o.Effective, o, mustPlan(t, o)); err != nil || served.Has(addresses) != longer {
			t.Errorf("%v, asked for: %t, served: %t", err, longer, served.Has(addresses))
		}
	}
}

// TestReadersOfCRDs: every release in range can decode the version in which CRDs are stored, v1beta1, which none serves.
func TestReadersOfCRDs(t *testing.T) {
	crds := schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	gv, _ := planAt(t, "1.37").Storage(crds)
	stored := compat.Stored{Resource: crds, Encodings: []string{gv.String()}}
	targets := []*compat.Target{planAt(t, "1.37").Target()}
	for _, release := range compat.AllowedEmulation(compat.BinaryVersion()) {
		targets = append(targets, compat.ReleaseTarget(Lifecycles(), release))
	}
	for _, target := range targets {
		if f := target.Judge(stored); f.Verdict != compat.Safe {
			t.Errorf("%s: %s: %s", target.Name, f.Verdict, f.Reason)
		}
	}
	if plan := planAt(t, "1.37"); plan.Served(crds.WithVersion(gv.Version)) {
		t.Errorf("%s is served", gv)
	}
}

// TestFormerHome: objects that were stored in the group extensions, before their resource moved to another group, can still be decoded,
// and no plan serves them in the group extensions.
func TestFormerHome(t *testing.T) {
	plan := planAt(t, "1.34")
	stores := newFactory(t, effective(t, "1.34"), controlplane.DefaultAPIResourceConfigSource())
	for gr, kind := range map[string]string{
		"deployments.apps": "Deployment", "daemonsets.apps": "DaemonSet", "replicasets.apps": "ReplicaSet",
		"ingresses.networking.k8s.io": "Ingress", "networkpolicies.networking.k8s.io": "NetworkPolicy",
	} {
		store, err := stores.NewConfig(schema.ParseGroupResource(gr), nil)
		must(t, err)
		if _, err := runtime.Decode(store.Codec, fmt.Appendf(nil, `{"apiVersion": "extensions/v1beta1", "kind": %q, "metadata": {"name": "old"}}`, kind)); err != nil {
			t.Errorf("the storage of %s: %v", gr, err)
		}
		f := plan.Target().Judge(compat.Stored{Resource: schema.ParseGroupResource(gr), Encodings: []string{"extensions/v1beta1"}})
		if f.Verdict != compat.Safe {
			t.Errorf("%s: %s: %s", gr, f.Verdict, f.Reason)
		}
		former := schema.GroupVersionResource{Group: formerHome, Version: "v1beta1", Resource: schema.ParseGroupResource(gr).Resource}
		if _, stored := plan.Storage(former.GroupResource()); stored || plan.Served(former) {
			t.Errorf("%s is stored or served", former)
		}
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// builtConfig returns the configuration that Kubernetes builds from its flags, before it builds any storage.
func builtConfig(t *testing.T, change func(*controlplaneoptions.Options)) (*genericapiserver.Config, *serverstorage.DefaultStorageFactory) {
	t.Helper()
	opts := controlplaneoptions.NewOptions()
	opts.SecureServing.ServerCert.CertDirectory = t.TempDir()
	opts.Etcd.StorageConfig.Transport.ServerList = []string{"http://127.0.0.1:1"} // is never connected to
	opts.Authentication.ServiceAccounts.Issuers = []string{"https://example.com"}
	if change != nil {
		change(opts)
	}
	completed, err := opts.Complete(t.Context(), nil, nil)
	must(t, err)
	config, _, factory, err := controlplaneapiserver.BuildGenericConfig(completed,
		Schemes, controlplane.DefaultAPIResourceConfigSource(), generatedopenapi.GetOpenAPIDefinitions, nil)
	must(t, err)
	return config, factory
}

// TestBuiltConfig: a plan that is applied to a built config changes the storage that is built from it later, and the APIs.
func TestBuiltConfig(t *testing.T) {
	config, factory := builtConfig(t, func(o *controlplaneoptions.Options) {
		must(t, o.APIEnablement.RuntimeConfig.Set("certificates.k8s.io/v1beta1=true,internal.apiserver.k8s.io/v1alpha1=true"))
	})
	bundles := schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}
	if got := encodingBy(t, config, bundles, "ClusterTrustBundle"); got != "certificates.k8s.io/v1beta1" {
		t.Fatalf("Kubernetes stores them in %s", got)
	}
	plan := mustPlan(t, Options{Effective: effective(t, "1.37/1.37")})
	must(t, ApplyStorage(plan, factory))
	if got := encodingBy(t, config, bundles, "ClusterTrustBundle"); got != "certificates.k8s.io/v1" {
		t.Errorf("with the plan they are stored in %s", got)
	}
	beta, versions := bundles.WithVersion("v1beta1"), schema.GroupVersionResource{Group: "internal.apiserver.k8s.io", Version: "v1alpha1", Resource: "storageversions"}
	source := factory.APIResourceConfigSource // is read when APIs are installed
	if !source.ResourceEnabled(beta) || !source.ResourceEnabled(versions) {
		t.Fatal("runtime-config is not in the config")
	}
	must(t, ApplyAPIs(plan, config))
	if source.ResourceEnabled(beta) || source.ResourceEnabled(versions) || !source.ResourceEnabled(bundles.WithVersion("v1")) {
		t.Error("the plan is not in the config that Kubernetes installs its APIs by")
	}
}

// encodingBy returns the version in which the storage built from the config encodes an empty object.
func encodingBy(t *testing.T, config *genericapiserver.Config, gr schema.GroupResource, kind string) string {
	t.Helper()
	example, err := legacyscheme.Scheme.New(schema.GroupVersionKind{Group: gr.Group, Version: runtime.APIVersionInternal, Kind: kind})
	must(t, err)
	options, err := config.RESTOptionsGetter.GetRESTOptions(gr, example)
	must(t, err)
	raw, err := runtime.Encode(options.StorageConfig.Codec, example)
	must(t, err)
	_, gvk, err := legacyscheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	must(t, err)
	return gvk.GroupVersion().String()
}
