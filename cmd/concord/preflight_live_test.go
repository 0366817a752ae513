package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/census"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/embedded"
	"github.com/concord-dev/concord/evolve"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/server/planning"
	"github.com/concord-dev/concord/stored"
)

// serve runs a server that answers the lists which the command asks for, except the absent ones, and
// returns a kubeconfig for it.
func (c *cluster) serve(t *testing.T, absent ...string) string {
	t.Helper()
	var states migrationv1alpha1.StorageStateList
	for _, s := range c.states {
		states.Items = append(states.Items, *s)
	}
	var versions apiserverinternalv1alpha1.StorageVersionList
	for _, v := range c.versions {
		versions.Items = append(versions.Items, *v)
	}
	crds := apiextensionsv1.CustomResourceDefinitionList{TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinitionList"}}
	for _, crd := range c.crds {
		crds.Items = append(crds.Items, *crd)
	}
	mux := http.NewServeMux()
	for path, list := range map[string]runtime.Object{
		"/apis/migration.k8s.io/v1alpha1/storagestates":            &states,
		"/apis/internal.apiserver.k8s.io/v1alpha1/storageversions": &versions,
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions":  &crds,
	} {
		missing := false
		for _, a := range absent {
			missing = missing || strings.HasSuffix(path, "/"+a)
		}
		if missing {
			continue
		}
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(list)
		})
	}
	c.serveCensuses(mux)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return kubeconfig(t, s.URL)
}

// serveCensuses serves the censuses of the cluster, and the StorageVersions that the command reads
// before and after each census.
func (c *cluster) serveCensuses(mux *http.ServeMux) {
	answer := func(path string, obj any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(obj)
		})
	}
	for gr, counted := range c.censuses {
		if gr == c.forbidden {
			mux.HandleFunc(census.Path+gr.String(), func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
		} else {
			answer(census.Path+gr.String(), counted)
		}
		path := "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions/" + storageversion.Name(gr)
		if gr != c.moving {
			answer(path, c.versions[gr])
			continue
		}
		var asked int64
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			asked++
			sv := c.versions[gr].DeepCopy()
			storageversion.SetHistory(sv, agree.History{Epoch: asked})
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(sv)
		})
	}
}

// count gives a resource a census with these numbers of objects, by encoding.
func (c *cluster) count(gr schema.GroupResource, objects map[string]int64) {
	counted := census.Resource{Resource: gr.String(), First: map[string][]string{}}
	for encoding, n := range objects {
		counted.Rows = append(counted.Rows, census.Row{Resource: gr.String(), Encoding: encoding, Objects: n})
		counted.First[encoding] = []string{"default/first"}
	}
	if c.censuses == nil {
		c.censuses = map[schema.GroupResource]census.Resource{}
	}
	c.censuses[gr] = counted
}

func kubeconfig(t *testing.T, url string) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: url}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	requireNoError(t, clientcmd.WriteToFile(*config, path))
	return path
}

func TestPreflightInLiveCluster(t *testing.T) {
	v1, v1beta1 := agree.Encoding(admission+"/v1"), agree.Encoding(admission+"/v1beta1")
	for name, test := range map[string]struct {
		change func(c *cluster)
		absent []string
		args   []string
		preflightCase
	}{
		"all is well": {preflightCase: preflightCase{to: "1.38", code: 0, reasons: map[string]string{widgets.String(): "safe: among"}}},
		"a newer version stored": {change: func(c *cluster) { c.set(policies, v1beta1, v1) },
			preflightCase: preflightCase{to: "1.35", code: 2, reasons: map[string]string{policies.String(): "unsafe: 1.35 cannot decode"}}},
		"a newer version since": {change: func(c *cluster) {
			storageversion.SetHistory(c.versions[policies], agree.History{Epoch: 3, Last: map[agree.Encoding]int64{v1: 2, v1beta1: 3}})
		}, preflightCase: preflightCase{to: "1.35", code: 2}},
		"Unknown": {change: func(c *cluster) { c.set(policies, evolve.Unknown, v1beta1) },
			preflightCase: preflightCase{to: "1.35", code: 1, reasons: map[string]string{policies.String(): "unknown: its stored set says Unknown, and raw values were not read"}}},
		"Unknown, of custom resources": {change: func(c *cluster) { c.set(widgets, evolve.Unknown, "example.com/v2") },
			preflightCase: preflightCase{to: "1.35", code: 0}},
		"no state": {change: func(c *cluster) { delete(c.states, policies) },
			preflightCase: preflightCase{to: "1.35", code: 1, reasons: map[string]string{policies.String(): "it has no StorageState"}}},
		"never reported": {change: func(c *cluster) { delete(c.states, policies); delete(c.versions, policies) },
			preflightCase: preflightCase{to: "1.35", code: 0, reasons: map[string]string{policies.String(): "safe: no server of this cluster has reported"}}},
		"another API server's resource": {change: func(c *cluster) {
			c.set(schema.GroupResource{Group: "metrics.k8s.io", Resource: "nodes"}, "metrics.k8s.io/v1")
		},
			preflightCase: preflightCase{to: "1.38", code: 1, reasons: map[string]string{"nodes.metrics.k8s.io": "unknown: it is not known which releases"}}},
		"an aggregated API server's resource, of another etcd": {change: func(c *cluster) {
			flunders := schema.GroupResource{Group: "wardle.example.com", Resource: "flunders"}
			c.set(flunders, "wardle.example.com/v1alpha1")
			c.versions[flunders].Labels = map[string]string{storageversion.AggregatedLabel: "5a1c"}
		},
			preflightCase: preflightCase{to: "1.38", code: 0, reasons: map[string]string{"flunders.wardle.example.com": ""}}},
		"nobody serves it any more, and none is stored": {change: func(c *cluster) {
			bundles := schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}
			c.set(bundles, evolve.Unknown, "certificates.k8s.io/v1")
			delete(c.versions, bundles)
			c.count(bundles, nil)
		}, preflightCase: preflightCase{to: "1.35", code: 0, reasons: map[string]string{"clustertrustbundles.certificates.k8s.io": "safe: nothing is stored"}}},
		"a server that reports nothing may write others than are counted": {change: func(c *cluster) {
			c.set(policies, v1beta1, evolve.Unknown)
			c.count(policies, map[string]int64{string(v1beta1): 1})
		}, preflightCase: preflightCase{to: "1.35", code: 1, reasons: map[string]string{policies.String(): "a server that reports nothing may write others"}}},
		"StorageStates are not found": {change: func(c *cluster) { delete(c.versions, policies) }, absent: []string{"storagestates"},
			preflightCase: preflightCase{to: "1.38", code: 1, reasons: map[string]string{"configmaps": "unknown: it has no StorageState", policies.String(): "unknown"}}},
		"a cluster without the protocol": {absent: []string{"storagestates", "storageversions"},
			preflightCase: preflightCase{to: "1.38", code: 1, reasons: map[string]string{"configmaps": "unknown: no server of this cluster reports what it stores", widgets.String(): "safe"}}},
		"a torn value, though the stored set is known": {change: func(c *cluster) {
			c.count(schema.GroupResource{Resource: "configmaps"}, map[string]int64{"v1": 5, "unknown": 1})
		}, preflightCase: preflightCase{to: "1.38", code: 1, reasons: map[string]string{"configmaps": "unknown: 1 value is unreadable, for whatever release"}}},
		"a torn value, and nobody is to count": {args: []string{"--count=false"}, change: func(c *cluster) {
			c.count(schema.GroupResource{Resource: "configmaps"}, map[string]int64{"v1": 5, "unknown": 1})
		}, preflightCase: preflightCase{to: "1.38", code: 0}},
		"a newer version remembered, and none stored": {change: func(c *cluster) {
			c.set(policies, v1, v1beta1)
			c.count(policies, map[string]int64{string(v1beta1): 1})
		}, preflightCase: preflightCase{to: "1.35", code: 0, reasons: map[string]string{policies.String(): "safe: decoded by 1.35"}}},
		"a newer version stored, and not remembered": {change: func(c *cluster) { c.count(policies, map[string]int64{string(v1): 2}) },
			preflightCase: preflightCase{to: "1.35", code: 2, reasons: map[string]string{policies.String(): "(introduced in 1.36; 2 stored)"}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			if test.change != nil {
				test.change(c)
			}
			path := c.serve(t, test.absent...)
			test.run(t, append(test.args, "--kubeconfig", path)...)
			t.Setenv("KUBECONFIG", path)
			test.run(t, test.args...)
		})
	}
}

// TestPreflightTellsWhatIsNotCounted: preflight says which resources it could not count, and why; of
// these it judges what their StorageStates say.
func TestPreflightTellsWhatIsNotCounted(t *testing.T) {
	c := newCluster(t)
	c.count(policies, map[string]int64{admission + "/v1beta1": 1})
	c.count(widgets, nil)
	c.forbidden = widgets
	path := c.serve(t)
	out, err := runPreflight(t, "--kubeconfig", path, "--back-to", "1.35")
	requireNoError(t, err)
	for _, want := range []string{widgets.String() + " was not counted: ", "Of " + fmt.Sprint(len(c.states)-1) + " of "} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	out, err = runPreflight(t, "--kubeconfig", path, "--back-to", "1.35", "--count=false")
	requireNoError(t, err)
	if strings.Contains(out, "not counted") || !strings.Contains(out, "Of "+fmt.Sprint(len(c.states))+" of ") {
		t.Errorf("nobody was to count, and it says\n%s", out)
	}
}

// TestPreflightIsFenced: preflight does not use a census if servers began to write another encoding
// of the resource while it was taken.
func TestPreflightIsFenced(t *testing.T) {
	for name, moving := range map[string]schema.GroupResource{"at rest": {}, "moving": policies} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.set(policies, evolve.Unknown, admission+"/v1beta1")
			c.count(policies, map[string]int64{admission + "/v1beta1": 1})
			c.moving = moving
			out, err := runPreflight(t, "--kubeconfig", c.serve(t), "--back-to", "1.35")
			const told = "mutatingadmissionpolicies.admissionregistration.k8s.io was not counted: servers began to write it differently meanwhile"
			if fenced := strings.Contains(out, told); fenced != (moving == policies) || exitCode(err) != map[bool]int{false: 0, true: 1}[fenced] {
				t.Errorf("exit %d: %s", exitCode(err), out)
			}
		})
	}
}

// sending is a gRPC stream of a client that calls see with each message before it is sent.
type sending struct {
	grpc.ClientStream
	see func(any)
}

func (s sending) SendMsg(m any) error {
	s.see(m)
	return s.ClientStream.SendMsg(m)
}

// clientSeen returns a client of an etcd that calls see with each request before it is sent.
func clientSeen(t *testing.T, endpoint string, see func(any)) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			see(req)
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := stream(ctx, desc, cc, method, opts...)
			return sending{s, see}, err
		}),
	}})
	requireNoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// TestPreflightInEtcdIsFenced: if a server reports another encoding while preflight counts in etcd,
// it may have written that encoding after the count. The verdict takes it as stored.
func TestPreflightInEtcdIsFenced(t *testing.T) {
	etcd, err := embedded.StartEtcd(t.Context(), t.TempDir())
	requireNoError(t, err)
	t.Cleanup(func() { _ = etcd.Close() })
	writer, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint}, Logger: zap.NewNop()})
	requireNoError(t, err)
	t.Cleanup(func() { _ = writer.Close() })
	for name, test := range map[string]struct {
		// reports is the encoding that servers report while policies are counted; empty if they
		// report nothing new.
		reports agree.Encoding
		want    compat.Safety
	}{
		"nothing new": {"", compat.Safe},
		"another":     {admission + "/v1", compat.Unsafe},
	} {
		t.Run(name, func(t *testing.T) {
			prefix := "/" + strings.ReplaceAll(name, " ", "-")
			c := newCluster(t)
			for key, value := range c.values(t) {
				_, err := writer.Put(t.Context(), prefix+"/"+key, value)
				requireNoError(t, err)
			}
			storageversion.SetHistory(c.versions[policies], agree.History{Epoch: 2, Last: map[agree.Encoding]int64{admission + "/v1beta1": 1, test.reports: 2}})
			report := asJSON(t, c.versions[policies])
			counted := sync.OnceFunc(func() {
				if test.reports != "" {
					_, err := writer.Put(t.Context(), prefix+"/storageversions/"+storageversion.Name(policies), report)
					requireNoError(t, err)
				}
			})
			seen := 0
			client := clientSeen(t, etcd.Endpoint, func(request any) {
				r, ok := request.(*etcdserverpb.RangeRequest)
				if ok && string(r.Key) == prefix+"/mutatingadmissionpolicies/" && string(r.RangeEnd) == clientv3.GetPrefixRangeEnd(string(r.Key)) {
					seen++
					counted()
				}
			})
			world, err := storedInEtcd(t.Context(), client, prefix, []schema.GroupResource{policies})
			requireNoError(t, err)
			target := compat.ReleaseTarget(planning.Lifecycles(), version.MustParseMajorMinor("1.35"))
			i := slices.IndexFunc(world.Stored, func(s compat.Stored) bool { return s.Resource == policies })
			if got := target.Judge(world.Stored[i]); got.Verdict != test.want || seen == 0 {
				t.Errorf("read %d times: %+v, judged from %+v", seen, got, world.Stored[i])
			}
		})
	}
}

// starts asserts that a server of the case's release starts on this etcd, or refuses to if the
// command calls a resource unsafe which that release stores. Custom resources are left out: a start
// does not check them.
func (test preflightCase) starts(t *testing.T, etcd *clientv3.Client, prefix string, unsafe []string) {
	t.Helper()
	binary := compat.BinaryVersion()
	release, err := compat.ParseTarget(binary, "to", test.to, test.to < compat.Binary)
	requireNoError(t, err)
	target := compat.ReleaseTarget(planning.Lifecycles(), release)
	if release.EqualTo(binary) {
		plan, err := compat.NewPlan(planning.Lifecycles(), compat.Options{})
		requireNoError(t, err)
		target = plan.Target()
	}
	known := target.Resources()
	unsafe = slices.DeleteFunc(unsafe, func(name string) bool { return !slices.Contains(known, schema.ParseGroupResource(name)) })
	err = stored.Start{Layout: stored.Layout{Prefix: prefix}, Target: target, Keys: noKeys{}}.Check(t.Context(), migratestore.NewEtcd(etcd))
	if (err != nil) != (len(unsafe) > 0) {
		t.Errorf("preflight calls %q unsafe, and a start says %v", unsafe, err)
	}
	for _, name := range unsafe {
		if err != nil && !strings.Contains(err.Error(), name+" as ") {
			t.Errorf("a start does not name %s: %v", name, err)
		}
	}
}

// noKeys are the encryption keys of a server without encryption: they check nothing.
type noKeys struct{}

var _ stored.Keys = noKeys{}

// Opening implements stored.Keys.
func (noKeys) Opening(reader migratestore.Reader, _ stored.Layout) migratestore.Reader { return reader }

// CheckStored implements stored.Keys.
func (noKeys) CheckStored(context.Context, migratestore.Reader, stored.Layout, stored.Sets, []schema.GroupResource) error {
	return nil
}

// CheckOthers implements stored.Keys.
func (noKeys) CheckOthers(context.Context, migratestore.Reader, stored.Layout, []schema.GroupResource, agree.ServerID, time.Duration) error {
	return nil
}
