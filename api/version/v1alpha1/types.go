package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterVersionName is the name of the only ClusterVersion.
const ClusterVersionName = "cluster"

// Types of a ClusterVersion's conditions.
const (
	// ConditionVersionsAgree is True while all servers stand for the same emulation and min
	// compatibility versions, and Unknown if they might not.
	ConditionVersionsAgree = "VersionsAgree"
	// ConditionSkewAllowed is True while every server's emulation version lies in what every
	// other allows, min-compatibility..emulation+1, and Unknown if it might not.
	ConditionSkewAllowed = "SkewAllowed"
)

// Reasons of both conditions.
const (
	// ReasonSame and ReasonDifferent are reasons of VersionsAgree.
	ReasonSame      = "SameVersions"
	ReasonDifferent = "DifferentVersions"
	// ReasonWithinAllowance and ReasonOutOfAllowance are reasons of SkewAllowed.
	ReasonWithinAllowance = "WithinAllowance"
	ReasonOutOfAllowance  = "OutOfAllowance"
	// ReasonVersionsUnknown: the versions of some servers are not known.
	ReasonVersionsUnknown = "VersionsUnknown"
	// ReasonNoServers: no server has an identity Lease.
	ReasonNoServers = "NoServers"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ClusterVersion describes the versions of the servers of a cluster. There is one, named "cluster"; the elected server
// writes it from the servers' identity Leases.
type ClusterVersion struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +optional
	Status ClusterVersionStatus `json:"status,omitempty"`
}

// ClusterVersionStatus holds what the identity Leases said about versions when that last changed.
type ClusterVersionStatus struct {
	// ServerCount is how many servers there are.
	// +optional
	ServerCount int32 `json:"serverCount,omitempty"`
	// OldestEmulation and NewestEmulation are the lowest and highest emulation versions of servers, for example
	// "1.37"; empty if no server's is known.
	// +optional
	OldestEmulation string `json:"oldestEmulation,omitempty"`
	// +optional
	NewestEmulation string `json:"newestEmulation,omitempty"`
	// Servers are all servers, sorted by ID.
	// +optional
	// +listType=map
	// +listMapKey=id
	Servers []ServerVersion `json:"servers,omitempty"`
	// Conditions are VersionsAgree and SkewAllowed.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ServerVersion holds one server's versions; a version that is not known is empty.
type ServerVersion struct {
	// ID is the name of the server's identity Lease.
	ID string `json:"id"`
	// Binary is the release of the server itself, Emulation the one it behaves as, and
	// MinCompatibility the oldest that must be able to read what it stores.
	// +optional
	Binary string `json:"binary,omitempty"`
	// +optional
	Emulation string `json:"emulation,omitempty"`
	// +optional
	MinCompatibility string `json:"minCompatibility,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ClusterVersionList is a list of ClusterVersions.
type ClusterVersionList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterVersion `json:"items"`
}
