package storageversion

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/concord-dev/concord/agree"
)

const stock = "apiserver-kkqhvpzxapvqo7nmmyypiqz3ie"

// identity returns an identity Lease. The annotations are names and values in turn.
func identity(name string, annotations ...string) coordinationv1.Lease {
	l := coordinationv1.Lease{}
	l.Name = name
	for i := 0; i < len(annotations); i += 2 {
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, annotations[i], annotations[i+1])
	}
	return l
}

// TestParticipants: the annotations of a Lease tell whether its server reports, or does not, so that the
// others report Unknown for it. The Lease that upstream's code makes in a Concord process is no participant.
func TestParticipants(t *testing.T) {
	upstreams := NewUpstreamIdentity()
	leases := []coordinationv1.Lease{
		identity("a", BinaryVersionAnnotation, "1.37"),
		identity("b", EmulationVersionAnnotation, ""),
		identity("x", BinaryVersionAnnotation, "1.37", APIAnnotation, APIOff),
		identity(stock, "kubernetes.io/peer-advertise-address", "10.0.0.1:6443"),
		identity(upstreams),
	}
	participants := Participants(leases)
	for _, id := range []agree.ServerID{"a", "b", "x", stock} {
		if !participants.Has(id) {
			t.Errorf("%s is no participant", id)
		}
	}
	if participants.Has(agree.ServerID(upstreams)) {
		t.Errorf("%s is a participant", upstreams)
	}
	if participants.Reporting() != 2 {
		t.Errorf("%d report, want a and b", participants.Reporting())
	}
	for i, want := range []agree.Silence{"", "", agree.GateOff, agree.Stock} {
		if got := SilenceOf(&leases[i]); got != want {
			t.Errorf("%s: silence %q, want %q", leases[i].Name, got, want)
		}
	}
	if servers := Servers(leases); len(servers) != 4 {
		t.Errorf("%d servers, want all Leases but upstream's own", len(servers))
	}
}

// TestControlPlane: an aggregated API server is a participant that reports, but it does not belong to the
// control plane.
func TestControlPlane(t *testing.T) {
	aggregated := identity("g", BinaryVersionAnnotation, "1.2")
	aggregated.Labels = map[string]string{AggregatedLabel: "5a1c"}
	leases := []coordinationv1.Lease{identity("a", BinaryVersionAnnotation, "1.37"), aggregated, identity(NewUpstreamIdentity())}
	if p := Participants(leases); !p.Has("g") || p.Reporting() != 2 {
		t.Errorf("participants are %+v", p)
	}
	if !IsAggregated(&leases[1]) || IsAggregated(&leases[0]) {
		t.Error("one is taken for the other")
	}
	if servers := ControlPlane(leases); len(servers) != 1 || servers[0].Name != "a" {
		t.Errorf("the control plane is %+v", servers)
	}
}

// TestHolds: an aggregated API server has to have reports of the resources that its Lease names, once an
// annotation of the Lease says that all is reported.
func TestHolds(t *testing.T) {
	flunders := schema.GroupResource{Group: "wardle.example.com", Resource: "flunders"}
	named := AggregatedResources([]schema.GroupResource{{Group: "wardle.example.com", Resource: "flunders"}, {Group: "wardle.example.com", Resource: "fischers"}})
	for _, tc := range []struct {
		name       string
		aggregated bool
		lease      coordinationv1.Lease
		want       bool
	}{
		{"it has reported", true, identity("g", BinaryVersionAnnotation, "1.2", AggregatedResourcesAnnotation, named, ReportedAnnotation, "true"), true},
		{"it is starting", true, identity("g", BinaryVersionAnnotation, "1.2", AggregatedResourcesAnnotation, named), false},
		{"it has others", true, identity("g", BinaryVersionAnnotation, "1.2", AggregatedResourcesAnnotation, "fischers.wardle.example.com", ReportedAnnotation, "true"), false},
		{"its release does not tell", true, identity("g", BinaryVersionAnnotation, "1.2", ReportedAnnotation, "true"), false},
		{"no aggregated server", false, identity("g", BinaryVersionAnnotation, "1.2", AggregatedResourcesAnnotation, named, ReportedAnnotation, "true"), false},
	} {
		if tc.aggregated {
			tc.lease.Labels = map[string]string{AggregatedLabel: "5a1c"}
		}
		settled := agree.Settle(nil, Participants([]coordinationv1.Lease{tc.lease}).For(flunders))
		if got := len(settled) == 1; got != tc.want {
			t.Errorf("%s: the reports become %v", tc.name, settled)
		}
	}
}

// TestUpstreamIdentity: the names of the Leases that upstream's code makes in a Concord process differ from
// each other, and from the names of stock kube-apiservers and of Concord's servers.
func TestUpstreamIdentity(t *testing.T) {
	name := NewUpstreamIdentity()
	if IsServer(name) || name == NewUpstreamIdentity() {
		t.Errorf("%s counts as a server, or was made twice", name)
	}
	id := genericapiserver.NewConfig(serializer.NewCodecFactory(runtime.NewScheme())).APIServerID
	if !regexp.MustCompile(`^apiserver-[a-z2-7]{26}$`).MatchString(id) {
		t.Errorf("a stock server is called %q: the prefix %s was chosen for names of another form", id, UpstreamIdentityPrefix)
	}
	for _, server := range []string{id, stock, "apiserver-38ffff682123e08a", "apiserver-concord"} {
		if !IsServer(server) {
			t.Errorf("%s does not count as a server", server)
		}
	}
}

// TestSilent: the StorageVersion's condition says which servers keep the others from agreeing, what these
// servers are and what to do. The message does not change while these servers stay the same.
func TestSilent(t *testing.T) {
	own := agree.Report{Server: "a", Encoding: "g/v1", Decodable: []string{"g/v1"}}
	report := func(leases ...coordinationv1.Lease) *v1alpha1.StorageVersion {
		sv := &v1alpha1.StorageVersion{}
		participants := Participants(append(leases, identity("a", BinaryVersionAnnotation, "1.37")))
		SetReports(sv, agree.Merge(nil, own, participants), metav1.NewTime(time.Unix(1, 0)))
		// Merge once more, with the reports that are in the StorageVersion now.
		SetReports(sv, agree.Merge(Reports(sv), own, participants), metav1.NewTime(time.Unix(2, 0)))
		return sv
	}
	for _, tc := range []struct {
		name   string
		leases []coordinationv1.Lease
		want   string
	}{
		{"a stock server", []coordinationv1.Lease{identity(stock)},
			"1 server does not report what it encodes: " + stock + " (kube-apiserver without Concord, identity Lease kube-system/" + stock +
				"): stop it, and if it is gone already: kubectl delete lease -n kube-system " + stock},
		{"one with its gate off", []coordinationv1.Lease{identity("x", APIAnnotation, APIOff)},
			"1 server does not report what it encodes: x (feature gate StorageVersionAPI off, identity Lease kube-system/x" +
				"): stop it, and if it is gone already: kubectl delete lease -n kube-system x"},
		{"both", []coordinationv1.Lease{identity("y"), identity("x", APIAnnotation, APIOff)},
			"2 servers do not report what they encode: x (feature gate StorageVersionAPI off, identity Lease kube-system/x), " +
				"y (kube-apiserver without Concord, identity Lease kube-system/y): stop them, and of those that are gone already: kubectl delete lease -n kube-system x y"},
	} {
		sv := report(tc.leases...)
		if common, agreed := Agreement(sv); agreed {
			t.Errorf("%s: agreement on %s", tc.name, common)
		}
		c := sv.Status.Conditions[0]
		if c.Status != v1alpha1.ConditionFalse || c.Message != tc.want || c.LastTransitionTime.Unix() != 1 {
			t.Errorf("%s: the condition is %+v, want the message %q", tc.name, c, tc.want)
		}
		if got := WaitsFor(sv); got != tc.want {
			t.Errorf("%s: WaitsFor: %q", tc.name, got)
		}
	}
	if got := WaitsFor(report()); got != "" {
		t.Errorf("all report: WaitsFor: %q", got)
	}
	many := report(identity("x1"), identity("x2"), identity("x3"), identity("x4"), identity("x5"), identity("x6"), identity("x7"))
	if got := WaitsFor(many); !strings.HasPrefix(got, "7 servers do not report") || !strings.Contains(got, "and 2 more") || strings.Contains(got, "x6") {
		t.Errorf("many: %q", got)
	}
}
