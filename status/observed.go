// Package status says how a cluster is, to people: its servers, the encodings that they agree on,
// the resources that move, those that wait and why. It decides on values that were read elsewhere
// and reads nothing itself, so that every screen of "kubectl concord" is a table test.
package status

import (
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
)

// Observed has the objects that were read of a cluster, each list once.
type Observed struct {
	// Now is the API server's time: Leases are judged by it, and not by the reader's clock.
	Now             time.Time                                   `json:"now"`
	Leases          []coordinationv1.Lease                      `json:"leases,omitempty"`
	StorageVersions []apiserverinternalv1alpha1.StorageVersion  `json:"storageVersions,omitempty"`
	States          []migrationv1alpha1.StorageState            `json:"states,omitempty"`
	Migrations      []migrationv1alpha1.StorageVersionMigration `json:"migrations,omitempty"`
	CRDs            []CRD                                       `json:"crds,omitempty"`
	Originals       Originals                                   `json:"originals,omitzero"`
	// Versions, Events of Concord's and Left, the servers that were seen to leave, are for the
	// Timeline only.
	Versions []versionv1alpha1.ClusterVersion `json:"versions,omitempty"`
	Events   []corev1.Event                   `json:"events,omitempty"`
	Left     []Gone                           `json:"left,omitempty"`
	// FailedChecks are those of /readyz that fail, by name; read only if no Lease is renewed.
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

// CRD is the part of a CustomResourceDefinition that says how objects are stored. Its
// schemas, most of its bytes, are left out.
type CRD struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              CRDSpec   `json:"spec"`
	Status            CRDStatus `json:"status"`
}

// CRDSpec is part of a CustomResourceDefinition's spec.
type CRDSpec struct {
	Group      string         `json:"group"`
	Names      CRDNames       `json:"names"`
	Versions   []CRDVersion   `json:"versions"`
	Conversion *CRDConversion `json:"conversion,omitempty"`
}

// CRDConversion names the converter of a custom resource's objects.
type CRDConversion struct {
	Webhook *apiextensionsv1.WebhookConversion `json:"webhook,omitempty"`
}

// CRDNames are the names of a custom resource.
type CRDNames struct {
	Plural     string   `json:"plural"`
	Singular   string   `json:"singular,omitempty"`
	Kind       string   `json:"kind"`
	ShortNames []string `json:"shortNames,omitempty"`
}

// CRDVersion is one version of a custom resource.
type CRDVersion struct {
	Name    string `json:"name"`
	Served  bool   `json:"served"`
	Storage bool   `json:"storage"`
}

// CRDStatus is part of a CustomResourceDefinition's status.
type CRDStatus struct {
	StoredVersions []string `json:"storedVersions,omitempty"`
}

// WithoutSchemas is the part of a definition that says how objects are stored.
func WithoutSchemas(crd *apiextensionsv1.CustomResourceDefinition) CRD {
	names := crd.Spec.Names
	short := CRD{
		ObjectMeta: crd.ObjectMeta,
		Spec:       CRDSpec{Group: crd.Spec.Group, Names: CRDNames{Plural: names.Plural, Singular: names.Singular, Kind: names.Kind, ShortNames: names.ShortNames}},
		Status:     CRDStatus{StoredVersions: crd.Status.StoredVersions},
	}
	short.ManagedFields = nil
	for _, v := range crd.Spec.Versions {
		short.Spec.Versions = append(short.Spec.Versions, CRDVersion{Name: v.Name, Served: v.Served, Storage: v.Storage})
	}
	if conversion := crd.Spec.Conversion; conversion != nil {
		short.Spec.Conversion = &CRDConversion{Webhook: conversion.Webhook}
	}
	return short
}

// Resource is the resource that the definition is of.
func (c *CRD) Resource() schema.GroupResource {
	return schema.GroupResource{Group: c.Spec.Group, Resource: c.Spec.Names.Plural}
}

// Storage is the name of the version that objects are to be stored in; empty if the
// definition names none.
func (c *CRD) Storage() string {
	for _, v := range c.Spec.Versions {
		if v.Storage {
			return v.Name
		}
	}
	return ""
}

// converter names the conversion webhook; empty if there is none.
func (c *CRD) converter() string {
	if c == nil || c.Spec.Conversion == nil || c.Spec.Conversion.Webhook == nil || c.Spec.Conversion.Webhook.ClientConfig == nil {
		return ""
	}
	switch to := c.Spec.Conversion.Webhook.ClientConfig; {
	case to.Service != nil:
		return "service " + to.Service.Namespace + "/" + to.Service.Name
	case to.URL != nil:
		return *to.URL
	}
	return ""
}

// Held says whether somebody has postponed the cut-over of the definition's objects: the
// pruning of status.storedVersions.
func (c *CRD) Held() bool { return migrationv1alpha1.Held(c.Annotations) }
