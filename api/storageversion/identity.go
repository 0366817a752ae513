package storageversion

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
)

const (
	// IdentityNamespace is where servers keep their identity Leases.
	IdentityNamespace = metav1.NamespaceSystem
	// IdentityLabel with IdentityLabelValue marks the identity Leases of API servers.
	IdentityLabel      = "apiserver.kubernetes.io/identity"
	IdentityLabelValue = "kube-apiserver"
	// IdentitySelector selects the identity Leases.
	IdentitySelector = IdentityLabel + "=" + IdentityLabelValue

	// BinaryVersionAnnotation, EmulationVersionAnnotation and MinCompatibilityVersionAnnotation hold a server's
	// versions on its identity Lease.
	BinaryVersionAnnotation           = "concord.dev/binary-version"
	EmulationVersionAnnotation        = "concord.dev/emulation-version"
	MinCompatibilityVersionAnnotation = "concord.dev/min-compatibility-version"
	// BuildAnnotation, on an identity Lease, names the build of Concord that its server is, for people: a version or a
	// commit. Servers of earlier builds, and programs that do not know it, have none.
	BuildAnnotation = "concord.dev/build"
	// ReportedAnnotation is "true" on an identity Lease once its server has reported
	// every resource. It is a hint only, but on that of an aggregated API server, which writes
	// nothing before: see AggregatedResourcesAnnotation.
	ReportedAnnotation = "concord.dev/reported"
	// APIAnnotation is APIOff on the identity Lease of a server whose feature gate StorageVersionAPI is off: the
	// server never reports, and while its Lease exists there is no agreement on any encoding. The Lease
	// has it from its creation.
	APIAnnotation = "concord.dev/storage-version-api"
	APIOff        = "off"
	// EncryptionConfigAnnotation, on an identity Lease, is the hash of the encryption
	// configuration that its server has loaded, "sha256:...". It is for people: the Seal that a
	// server encrypts with is in its reports.
	EncryptionConfigAnnotation = "concord.dev/encryption-config"
	// EncryptionKeysAnnotation, on an identity Lease, are the keys with which its server opens
	// values: a JSON object of lists of agree.Seals by resource, or pattern of resources as
	// in an encryption configuration. Without it a server opens values that are not encrypted.
	EncryptionKeysAnnotation = "concord.dev/encryption-keys"

	// AggregatedLabel, on an identity Lease, marks it as that of an aggregated API server, which
	// reports here what it keeps in an etcd of its own: the value names that etcd's prefix, by a
	// uid made there. Such a server is a participant like every other, but no part of the
	// control plane: it has a release of its own, reads nothing that is stored here, and its
	// life is judged by servers of its own kind, which take its permission to write away before its
	// Lease (package join).
	//
	// The label is also on the StorageVersions that such a server makes, so that they are kept
	// while none of its replicas runs.
	AggregatedLabel = "concord.dev/aggregated"
	// LocalIdentityAnnotation, on such a Lease, is the server's ID in its own etcd, and
	// AggregatedGroupsAnnotation, for people, the API groups that it reports.
	LocalIdentityAnnotation    = "concord.dev/local-identity"
	AggregatedGroupsAnnotation = "concord.dev/aggregated-groups"
	// AggregatedResourcesAnnotation, on such a Lease from its creation, names the resources that the
	// server reports and may write, as "flunders.wardle.example.com", with commas between. With
	// ReportedAnnotation it holds the permission to write them, whether its reports of them
	// stand or not (agree.Participants).
	AggregatedResourcesAnnotation = "concord.dev/aggregated-resources"

	// UpstreamIdentityPrefix is the prefix of the APIServerID that a Concord server gives to the kube-apiserver code
	// in its process, and so of the name of the identity Lease that this code keeps besides the Lease of package
	// member. Such a Lease is upstream's bookkeeping (peer proxy) and does not make a participant. The collector
	// deletes it after a crash. The name of a kube-apiserver without Concord is "apiserver-" and 26 characters of
	// base32 without another dash (k8s.io/apiserver, server.NewConfig), and our own Leases are named "apiserver-" and
	// 16 hexadecimal digits, so that none has this prefix.
	//
	// The name decides, and not an annotation on the member's Lease that names the other one. After a server was
	// killed, the member's Lease is deleted within 15 s, while upstream's stays for an hour. Without the annotation it
	// would count as a kube-apiserver without Concord, and stop agreement for that hour.
	UpstreamIdentityPrefix = "apiserver-concord-"
)

// Identities selects the identity Leases, as IdentitySelector does. Not every one stands for
// a server: see Servers.
var Identities = labels.SelectorFromSet(labels.Set{IdentityLabel: IdentityLabelValue})

// NewUpstreamIdentity makes an APIServerID for the code of kube-apiserver in a Concord
// process, another one each time.
func NewUpstreamIdentity() string {
	var random [8]byte
	// It never fails: the program ends instead.
	_, _ = rand.Read(random[:])
	return UpstreamIdentityPrefix + hex.EncodeToString(random[:])
}

// IsServer reports whether an identity Lease of this name stands for a server. The Lease that upstream's code keeps in
// a Concord process does not.
func IsServer(lease string) bool { return !strings.HasPrefix(lease, UpstreamIdentityPrefix) }

// Servers returns the identity Leases that stand for a server. It reuses the slice.
func Servers(identities []coordinationv1.Lease) []coordinationv1.Lease {
	return slices.DeleteFunc(identities, func(l coordinationv1.Lease) bool { return !IsServer(l.Name) })
}

// IsAggregated says whether an identity Lease, or a StorageVersion, is an aggregated API server's.
func IsAggregated(o metav1.Object) bool {
	_, marked := o.GetLabels()[AggregatedLabel]
	return marked
}

// ControlPlane returns the identity Leases that stand for a server of the control plane. It reuses the slice.
func ControlPlane(identities []coordinationv1.Lease) []coordinationv1.Lease {
	return slices.DeleteFunc(Servers(identities), func(l coordinationv1.Lease) bool { return IsAggregated(&l) })
}

// Reporting returns the identity Leases of control plane servers that report what they store. If there is one, a
// kube-apiserver that serves no StorageVersions is another server beside it. The slice stays unchanged.
func Reporting(identities []coordinationv1.Lease) []coordinationv1.Lease {
	return slices.DeleteFunc(ControlPlane(slices.Clone(identities)), func(l coordinationv1.Lease) bool { return SilenceOf(&l) != "" })
}

// EncryptionKeys returns the keys that an identity Lease lists in EncryptionKeysAnnotation, by the resources of the
// encryption configuration; the server writes with the first of each list. An error says that the annotation cannot be
// read.
func EncryptionKeys(lease *coordinationv1.Lease) (map[string][]agree.Seal, error) {
	text, ok := lease.Annotations[EncryptionKeysAnnotation]
	if !ok {
		return nil, nil
	}
	var lists map[string][]agree.Seal
	if err := json.Unmarshal([]byte(text), &lists); err != nil {
		return nil, fmt.Errorf("the annotation %s of identity Lease %s cannot be read: %w", EncryptionKeysAnnotation, lease.Name, err)
	}
	return lists, nil
}

// SilenceOf returns why the server of an identity Lease never reports; empty if it reports. Every Concord server puts
// its versions on its Lease when it creates the Lease, so a Lease without them belongs to a kube-apiserver without
// Concord.
func SilenceOf(lease *coordinationv1.Lease) agree.Silence {
	if lease.Annotations[APIAnnotation] == APIOff {
		return agree.GateOff
	}
	for _, version := range []string{BinaryVersionAnnotation, EmulationVersionAnnotation, MinCompatibilityVersionAnnotation} {
		if _, tells := lease.Annotations[version]; tells {
			return ""
		}
	}
	return agree.Stock
}

// Participants returns the participants that these identity Leases stand for.
func Participants(identities []coordinationv1.Lease) agree.Participants {
	reporting := make([]agree.ServerID, 0, len(identities))
	var silent map[agree.ServerID]agree.Silence
	for i := range identities {
		lease := &identities[i]
		if !IsServer(lease.Name) {
			continue
		}
		id, why := agree.ServerID(lease.Name), SilenceOf(lease)
		if why == "" {
			reporting = append(reporting, id)
			continue
		}
		if silent == nil {
			silent = map[agree.ServerID]agree.Silence{}
		}
		silent[id] = why
	}
	participants := agree.NewParticipants(reporting, silent)
	for i := range identities {
		if lease := &identities[i]; IsServer(lease.Name) && SilenceOf(lease) == "" && Holds(lease) {
			participants = participants.Holds(agree.ServerID(lease.Name), aggregatedResources(lease)...)
		}
	}
	return participants
}

// Holds says whether an identity Lease is that of an aggregated API server that may write.
func Holds(lease *coordinationv1.Lease) bool {
	return IsAggregated(lease) && lease.Annotations[ReportedAnnotation] == "true"
}

// AggregatedResources is the value of AggregatedResourcesAnnotation that names these resources.
func AggregatedResources(resources []schema.GroupResource) string {
	named := make([]string, 0, len(resources))
	for _, gr := range resources {
		named = append(named, gr.String())
	}
	slices.Sort(named)
	return strings.Join(slices.Compact(named), ",")
}

// aggregatedResources returns the resources that AggregatedResourcesAnnotation names; none for a server of a release
// that did not set it.
func aggregatedResources(lease *coordinationv1.Lease) []schema.GroupResource {
	var resources []schema.GroupResource
	for _, name := range strings.FieldsFunc(lease.Annotations[AggregatedResourcesAnnotation], func(r rune) bool { return r == ',' }) {
		resources = append(resources, schema.ParseGroupResource(name))
	}
	return resources
}

// maxNamed bounds how many silent servers a message describes.
const maxNamed = 5

// silentServers names the servers for which others report Unknown, what they are and how to
// go on; "" if there are none. It holds no time, so that it stays as it is while they do.
func silentServers(reports []agree.Report) string {
	var ids, described []string
	for _, r := range reports {
		if r.Encoding != agree.Unknown {
			continue
		}
		what := fmt.Sprintf("identity Lease %s/%s", IdentityNamespace, r.Server)
		if r.Silence != "" {
			what = string(r.Silence) + ", " + what
		}
		ids = append(ids, string(r.Server))
		described = append(described, fmt.Sprintf("%s (%s)", r.Server, what))
	}
	if len(ids) == 0 {
		return ""
	}
	slices.Sort(ids)
	slices.Sort(described)
	if more := len(ids) - maxNamed; more > 0 {
		ids = ids[:maxNamed]
		described = append(described[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	message := "1 server does not report what it encodes: %s: stop it, and if it is gone already: "
	if len(ids) > 1 {
		message = fmt.Sprintf("%d servers do not report what they encode: ", len(agree.Silent(reports))) + "%s: stop them, and of those that are gone already: "
	}
	return fmt.Sprintf(message, strings.Join(described, ", ")) + fmt.Sprintf("kubectl delete lease -n %s %s", IdentityNamespace, strings.Join(ids, " "))
}

// ReasonObserved is the reason of the condition AllEncodingVersionsEqual where no server
// reports and others have observed what is stored (package stock).
const ReasonObserved = "Observed"

// WaitsFor describes the servers that prevent agreement because they do not report, and how to go on; "" if there are
// none, even if there is no agreement for another reason. If no server reports, it gives every reason why there is no
// agreement.
func WaitsFor(sv *v1alpha1.StorageVersion) string {
	for _, c := range sv.Status.Conditions {
		if c.Reason == ReasonObserved && c.Status == v1alpha1.ConditionFalse {
			return c.Message
		}
	}
	for _, s := range sv.Status.StorageVersions {
		if agree.Encoding(s.EncodingVersion) != agree.Unknown {
			continue
		}
		for _, c := range sv.Status.Conditions {
			if c.Type == v1alpha1.AllEncodingVersionsEqual {
				return c.Message
			}
		}
	}
	return ""
}
