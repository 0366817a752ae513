package planning

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/stored"
)

// moduleDir returns the directory of a module's source.
func moduleDir(t *testing.T, module string) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("go list -m %s: %v", module, err)
	}
	return strings.TrimSpace(string(out))
}

// discovered reads the discovery document that Kubernetes checks in: all that kube-apiserver of this release can serve.
func discovered(t *testing.T) map[schema.GroupVersionResource]string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(moduleDir(t, "k8s.io/kubernetes"), "api", "discovery", "aggregated_v2.json"))
	must(t, err)
	var groups apidiscoveryv2.APIGroupDiscoveryList
	must(t, json.Unmarshal(raw, &groups))
	kinds := map[schema.GroupVersionResource]string{}
	for _, g := range groups.Items {
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				kinds[schema.GroupVersionResource{Group: g.Name, Version: v.Version, Resource: r.Resource}] = r.ResponseKind.Kind
			}
		}
	}
	if len(kinds) < 80 {
		t.Fatalf("only %d resources in the discovery document", len(kinds))
	}
	return kinds
}

// TestResourceNames: the resource names that are derived from kinds are those that Kubernetes serves, and none of these is missing. The
// discovery document has all groups except the core group; the next test compares the names of that.
func TestResourceNames(t *testing.T) {
	kinds := discovered(t)
	for _, l := range Lifecycles() {
		if kind, ok := kinds[l.GroupVersionResource]; ok && kind != l.Kind {
			t.Errorf("%s is a %s, not a %s", l.GroupVersionResource, kind, l.Kind)
		}
		delete(kinds, l.GroupVersionResource)
	}
	for gvr, kind := range kinds {
		t.Errorf("no lifecycle of %s, %s", gvr, kind)
	}
}

func TestCoreNames(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(moduleDir(t, "k8s.io/kubernetes"), "api", "discovery", "api__v1.json"))
	must(t, err)
	var list struct {
		Resources []struct{ Name, Kind string }
	}
	must(t, json.Unmarshal(raw, &list))
	want, got := map[string]string{}, map[string]string{}
	for _, r := range list.Resources {
		if !strings.Contains(r.Name, "/") {
			want[r.Name] = r.Kind
		}
	}
	for _, l := range Lifecycles() {
		if l.Group == "" {
			got[l.Resource] = l.Kind
		}
	}
	for name, kind := range want {
		if got[name] != kind {
			t.Errorf("%s is %q, want %q", name, got[name], kind)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d core resources, want %d: %v, %v", len(got), len(want), got, want)
	}
}

// TestReleases compares the lifecycles with the objects that k8s.io/api keeps of earlier releases: one of each kind that a release has.
func TestReleases(t *testing.T) {
	testdata := filepath.Join(moduleDir(t, "k8s.io/api"), "testdata")
	binary := compat.BinaryVersion()
	for _, release := range compat.AllowedEmulation(binary) {
		dir := "v" + release.String() + ".0"
		if release.EqualTo(binary) {
			dir = "HEAD"
		}
		known := kindsOf(t, filepath.Join(testdata, dir))
		// By the lifecycles, each release can decode exactly the kinds that it has.
		for _, l := range Lifecycles() {
			gvk := l.GroupVersion().WithKind(l.Kind)
			has := decodes(l, release)
			switch {
			case strings.HasPrefix(l.Group, "apiextensions.") || strings.HasPrefix(l.Group, "apiregistration."): // these groups are not in k8s.io/api
			case l.Group == "storagemigration.k8s.io" && release.Minor() == 34: // k8s.io/api does not have them for 1.34
			case has && !known.Has(gvk):
				t.Errorf("%s: does not know %s", release, gvk)
			case !l.Gone && !before(l.Introduced, release) && known.Has(gvk):
				t.Errorf("%s: knows %s, said to be introduced in %s", release, gvk, l.Introduced)
			}
			known.Delete(gvk)
		}
		for gvk := range known {
			if resourceless[gvk.Group] || !isResource(gvk) || forgotten(gvk) {
				continue
			}
			t.Errorf("%s: no lifecycle of %s", release, gvk)
		}
	}
}

func decodes(l compat.Lifecycle, release *version.Version) bool {
	return before(l.Introduced, release) && (l.Removed == nil || l.Removed.GreaterThan(release))
}

// before says whether something that was introduced then is in the release.
func before(introduced, release *version.Version) bool {
	return introduced == nil || !introduced.GreaterThan(release)
}

// isResource says whether other versions of a kind are resources. The scheme may not have the given version any more.
func isResource(gvk schema.GroupVersionKind) bool {
	return slices.ContainsFunc(Lifecycles(), func(l compat.Lifecycle) bool { return l.Group == gvk.Group && l.Kind == gvk.Kind })
}

// forgotten says whether a type is one that k8s.io/api kept long after API servers served it, and lost within the range.
func forgotten(gvk schema.GroupVersionKind) bool {
	return gvk.Group == "autoscaling" && strings.HasPrefix(gvk.Version, "v2beta") || gvk == schema.GroupVersionKind{Group: "scheduling.k8s.io", Version: "v1alpha1", Kind: "PriorityClass"}
}

// kindsOf returns the kinds from the names of the files <group>.<version>.<kind>.json.
func kindsOf(t *testing.T, dir string) sets.Set[schema.GroupVersionKind] {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) < 100 {
		t.Fatalf("%s: %d files: %v", dir, len(files), err)
	}
	kinds := sets.New[schema.GroupVersionKind]()
	for _, f := range files {
		parts := strings.Split(strings.TrimSuffix(filepath.Base(f), ".json"), ".")
		if strings.HasSuffix(parts[len(parts)-1], "after_roundtrip") {
			continue
		}
		n := len(parts)
		group := strings.Join(parts[:n-2], ".")
		if group == "core" {
			group = ""
		}
		kinds.Insert(schema.GroupVersionKind{Group: group, Version: parts[n-2], Kind: parts[n-1]})
	}
	return kinds
}

// TestTablesAreNeeded: every row of the tables names something that exists, so that no row stays without a reason.
func TestTablesAreNeeded(t *testing.T) {
	kinds, versions := known(), sets.New[schema.GroupVersion]()
	told := sets.New[schema.GroupVersionResource]()
	for _, l := range Lifecycles() {
		versions.Insert(l.GroupVersion())
		if !l.Gone {
			told.Insert(l.GroupVersionResource)
		}
	}
	for group := range resourceless {
		if !legacyscheme.Scheme.IsGroupRegistered(group) {
			t.Errorf("resourceless: no group %s", group)
		}
	}
	for gk := range unlisted {
		if !isResource(gk.WithVersion("")) {
			t.Errorf("unlisted: no kind %s", gk)
		}
	}
	for _, table := range []map[schema.GroupResource]bool{unstored, elsewhere} {
		for gr := range table {
			if !kinds.Has(gr) {
				t.Errorf("no resource %s", gr)
			}
		}
	}
	for gv := range untold {
		if !versions.Has(gv) {
			t.Errorf("untold: no version %s", gv)
		}
	}
	for _, l := range lost {
		if told.Has(l.GroupVersionResource) {
			t.Errorf("lost: %s is there", l.GroupVersionResource)
		}
	}
	for _, l := range Lifecycles() {
		if l.Introduced == nil {
			t.Errorf("%s: nobody says when it was introduced", l.GroupVersionResource)
		}
	}
}

// TestUnfencedHaveOneVersion: writes of some resources are not fenced. They are safe because nobody can write these in another version: every
// release that can be emulated, or run beside one that is, decodes exactly one version of them, and every plan stores that version.
func TestUnfencedHaveOneVersion(t *testing.T) {
	binary := compat.BinaryVersion()
	readers := sets.New[string]()
	stored := map[schema.GroupResource]sets.Set[string]{}
	for _, emulation := range compat.AllowedEmulation(binary) {
		for _, minimum := range compat.AllowedMinCompatibility(binary, emulation) {
			plan := mustPlan(t, Options{Effective: effective(t, emulation.String()+"/"+minimum.String())})
			for gr := range storageversion.Unfenced() {
				gv, ok := plan.Storage(gr)
				if !ok {
					t.Errorf("emulating %s with %s at least: no storage version of %s", emulation, minimum, gr)
				}
				if stored[gr] == nil {
					stored[gr] = sets.New[string]()
				}
				stored[gr].Insert(gv.String())
			}
			for release := minimum; !release.GreaterThan(emulation.AddMinor(1)); release = release.AddMinor(1) {
				if readers.Has(release.String()) {
					continue
				}
				readers.Insert(release.String())
				for gr := range storageversion.Unfenced() {
					known := sets.New[string]()
					for _, l := range Lifecycles() {
						if l.GroupResource() == gr && decodes(l, release) {
							known.Insert(l.GroupVersion().String())
						}
					}
					if stored[gr].Insert(known.UnsortedList()...); len(known) != 1 {
						t.Errorf("%s knows %v of %s", release, sets.List(known), gr)
					}
				}
			}
		}
	}
	if !readers.Has(binary.AddMinor(1).String()) || len(readers) < 4 {
		t.Errorf("looked at releases %v only", sets.List(readers))
	}
	for gr, versions := range stored {
		if len(versions) != 1 {
			t.Errorf("%s is stored in %v", gr, sets.List(versions))
		}
	}
}

func TestDecode(t *testing.T) {
	secret := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default"}, Data: map[string][]byte{"key": []byte("value")},
	}
	encoded, err := runtime.Encode(protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme), secret)
	must(t, err)
	damaged := strings.Replace(string(encoded), "default", "\xff\xff\xff\xff\xff\xff\xff", 1)
	decode := stored.Decodes(Schemes...)
	for name, test := range map[string]struct {
		value string
		// why is a part of the reason; it is "" if the value decodes.
		why string
	}{
		"protobuf":                               {value: string(encoded)},
		"protobuf, cut":                          {value: string(encoded[:len(encoded)-20]), why: "unexpected EOF"},
		"protobuf, a string that is no UTF-8":    {value: damaged},
		"JSON of a built-in kind":                {value: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"}}`},
		"a field of another type":                {value: `{"apiVersion":"v1","kind":"Secret","data":7}`, why: "cannot unmarshal number"},
		"a definition":                           {value: `{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","spec":7}`, why: "cannot unmarshal number"},
		"an APIService":                          {value: `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","spec":{"group":7}}`, why: "cannot unmarshal number"},
		"a custom resource":                      {value: `{"apiVersion":"example.com/v1","kind":"Widget","spec":{"size":-0}}`},
		"a custom resource, cut":                 {value: `{"apiVersion":"example.com/v1","kind":"Widget","spec":{"si`, why: "unexpected end of JSON"},
		"a custom resource in CBOR":              {value: "\xd9\xd9\xf7\xa1\x44kind\x46Widget"},
		"a custom resource in CBOR, cut":         {value: "\xd9\xd9\xf7\xa1\x44kind\x46Wid", why: "unexpected EOF"},
		"a version that this binary knows not":   {value: `{"apiVersion":"v9","kind":"Secret","data":7}`},
		"a version without kind":                 {value: `{"apiVersion":"v1"}`, why: "Object 'Kind' is missing"},
		"what is neither":                        {value: "\xff\xfe", why: "Object 'Kind' is missing"},
		"a value of Kubernetes outside of APIs":  {value: `{"apiVersion":"v1","kind":"RangeAllocation","range":"","data":""}`},
		"a RangeAllocation with a damaged field": {value: `{"apiVersion":"v1","kind":"RangeAllocation","range":[]}`, why: "cannot unmarshal array"},
	} {
		t.Run(name, func(t *testing.T) {
			err := decode([]byte(test.value))
			if (err != nil) != (test.why != "") || err != nil && !strings.Contains(err.Error(), test.why) {
				t.Errorf("got %v, want %q", err, test.why)
			}
		})
	}
}
