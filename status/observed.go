// Package status describes the state of a cluster to people: its servers, the encodings that they agree on, the
// migrations, and what waits and why. It decides on values that were read elsewhere and reads nothing itself, so that
// every screen of "kubectl concord" is a table test.
package status

import (
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
	"github.com/concord-dev/concord/status/servers"
)

// Observed has the objects that were read from a cluster, each kind once.
type Observed struct {
	// Now is the API server's time: Leases are judged by it, and not by the reader's clock.
	Now time.Time `json:"now"`
	// Renewals are the renewals of each Lease as the reader saw them by its own clock, by the Lease's name, because
	// clocks of servers differ.
	Renewals        map[string]servers.Renewal                 `json:"renewals,omitempty"`
	Leases          []coordinationv1.Lease                     `json:"leases,omitempty"`
	StorageVersions []apiserverinternalv1alpha1.StorageVersion `json:"storageVersions,omitempty"`
	// StorageVersionsUnserved says that the server that answered serves no StorageVersions, whatever servers report.
	StorageVersionsUnserved bool                                        `json:"storageVersionsUnserved,omitempty"`
	States                  []migrationv1alpha1.StorageState            `json:"states,omitempty"`
	Migrations              []migrationv1alpha1.StorageVersionMigration `json:"migrations,omitempty"`
	// CRDs may be without schemas, which are most of their bytes.
	CRDs      []apiextensionsv1.CustomResourceDefinition `json:"crds,omitempty"`
	Originals Originals                                  `json:"originals,omitzero"`
	// Versions, Events of Concord's and Left, the servers that were seen to leave, are for the
	// timeline only.
	Versions []versionv1alpha1.ClusterVersion `json:"versions,omitempty"`
	Events   []corev1.Event                   `json:"events,omitempty"`
	Left     []Gone                           `json:"left,omitempty"`
	// FailedChecks are the failed checks of /readyz of the server that answered, by name.
	FailedChecks []string `json:"failedChecks,omitempty"`
	// Unread says of kinds that could not be read why not, such as that the user may not list
	// them. Anything that depends on them is not known then.
	Unread []string `json:"unread,omitempty"`
}

// Gone is a server's last Lease, and when it was deleted.
type Gone struct {
	Lease coordinationv1.Lease `json:"lease"`
	At    time.Time            `json:"at"`
}

// StorageOf returns the name of the storage version; empty if the definition has none.
func StorageOf(crd *apiextensionsv1.CustomResourceDefinition) string {
	version, _ := apihelpers.GetCRDStorageVersion(crd)
	return version
}

// converts says whether a definition has a conversion webhook.
func converts(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd != nil && crd.Spec.Conversion != nil && crd.Spec.Conversion.Webhook != nil && crd.Spec.Conversion.Webhook.ClientConfig != nil
}

// converter names a definition's conversion webhook, with where it is if that is known.
func converter(crd *apiextensionsv1.CustomResourceDefinition) string {
	const webhook = "the conversion webhook"
	if !converts(crd) {
		return webhook
	}
	switch to := crd.Spec.Conversion.Webhook.ClientConfig; {
	case to.Service != nil:
		return webhook + " (service " + to.Service.Namespace + "/" + to.Service.Name + ")"
	case to.URL != nil:
		return webhook + " (" + *to.URL + ")"
	}
	return webhook
}
