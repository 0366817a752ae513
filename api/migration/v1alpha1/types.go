package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Unknown stands in a StorageState for encodings that are not known: objects may be stored in any version.
const Unknown = "Unknown"

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// StorageState remembers which encodings the stored objects of one resource may have.
// Its name is "<resource>.<group>", and "<resource>" in the core group.
type StorageState struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              StorageStateSpec `json:"spec,omitempty"`
	// +optional
	Status StorageStateStatus `json:"status,omitempty"`
}

// StorageStateSpec names the resource. It cannot be changed.
type StorageStateSpec struct {
	// Resource is the resource this StorageState is about.
	Resource GroupResource `json:"resource,omitempty"`
}

// GroupResource names a resource; the core group is empty.
type GroupResource struct {
	Group    string `json:"group,omitempty"`
	Resource string `json:"resource,omitempty"`
}

// StorageStateStatus is written in one update, so that the stored set never stands
// beside a (uid, epoch) it was not computed for.
type StorageStateStatus struct {
	// PersistedStorageVersionHashes is the stored set: the hashes of the encodings that
	// stored objects may still have, or Unknown among them. It is not safe to upgrade or
	// downgrade to servers that do not decode all of them, or while it lists Unknown.
	// +optional
	PersistedStorageVersionHashes []string `json:"persistedStorageVersionHashes,omitempty"`
	// CurrentStorageVersionHash is the hash of the encoding all servers agree on, or
	// Unknown while they do not agree.
	// +optional
	CurrentStorageVersionHash string `json:"currentStorageVersionHash,omitempty"`
	// LastHeartbeatTime is when the trigger last looked at the resource, to about five minutes.
	// +optional
	LastHeartbeatTime metav1.Time `json:"lastHeartbeatTime,omitempty"`

	// PersistedEncodings is the stored set in readable form, e.g. "apps/v1", in the order
	// of PersistedStorageVersionHashes. Where objects are encrypted it also says with which
	// key: "v1+aescbc:v1:key1:5bd1f0a2c3e49b77" (beyond KEP-2343).
	// +optional
	PersistedEncodings []string `json:"persistedEncodings,omitempty"`
	// CurrentEncoding is the readable form of CurrentStorageVersionHash (beyond KEP-2343).
	// +optional
	CurrentEncoding string `json:"currentEncoding,omitempty"`
	// Message says why CurrentEncoding is Unknown: which servers keep the others from agreeing,
	// and how to go on. It is absent while all servers agree (beyond KEP-2343).
	// +optional
	Message string `json:"message,omitempty"`
	// StorageVersionUID and Epoch name the StorageVersion, and its epoch, that the stored
	// set is computed for. While the StorageVersion has another uid or epoch, objects may
	// also be stored in the encodings it names now and in others that nobody has written
	// down yet (beyond KEP-2343).
	// +optional
	StorageVersionUID types.UID `json:"storageVersionUID,omitempty"`
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// Encryption says which keys the stored objects need. It is absent if no server has ever encrypted the resource.
	// Like the stored set it is valid while the StorageVersion has this uid and epoch (beyond KEP-2343).
	// +optional
	Encryption *StorageEncryption `json:"encryption,omitempty"`
}

// StorageEncryption names keys as "<provider>:<version>:<key>:<fingerprint of the secret>";
// "identity" stands for objects that are not encrypted.
type StorageEncryption struct {
	// CurrentKey is the key that all servers encrypt with, or Unknown while they differ.
	CurrentKey string `json:"currentKey"`
	// StoredKeys are the keys that stored objects may need. None of them may be removed from
	// a server's encryption configuration; while Unknown is among them, no key at all may.
	StoredKeys []string `json:"storedKeys"`
	// RemovableKeys are keys that were used before and that no stored object of this resource needs any more, because
	// all objects were encrypted again and then counted. Other resources may still need them.
	// +optional
	RemovableKeys []string `json:"removableKeys,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// StorageStateList is a list of StorageStates.
type StorageStateList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []StorageState `json:"items"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// StorageVersionMigration asks for the stored objects of a resource to be rewritten in the encoding that all servers
// agree on. A user who creates one has to set spec.resource only; the trigger adds the target for which it counts.
type StorageVersionMigration struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +optional
	Spec StorageVersionMigrationSpec `json:"spec,omitempty"`
	// +optional
	Status StorageVersionMigrationStatus `json:"status,omitempty"`
}

// GroupVersionResource names a resource and one of its versions.
type GroupVersionResource struct {
	Group    string `json:"group,omitempty"`
	Version  string `json:"version,omitempty"`
	Resource string `json:"resource,omitempty"`
}

// StorageVersionMigrationSpec says what to migrate.
type StorageVersionMigrationSpec struct {
	// Resource is the resource to migrate. It cannot be changed. The version is one in
	// which the resource is served, and need not be given; it does not choose the encoding.
	Resource GroupVersionResource `json:"resource"`
	// ContinueToken is where kube-storage-version-migrator notes its progress. Concord
	// neither reads nor writes it; its own is in the status.
	// +optional
	ContinueToken string `json:"continueToken,omitempty"`

	// Paused lets the migration rest. When it is taken back, the migration goes on where it
	// was (beyond kube-storage-version-migrator, like the fields below).
	// +optional
	Paused bool `json:"paused,omitempty"`
	// MaxAddedLatency is by how much the migration may lengthen the slower requests of clients
	// of the server that does the work, compared with what they take without it: it slows down
	// beyond that, to no less than 650 objects per second of up to 16 KiB, or 100 through the
	// API, which maxObjectsPerSecond may lower. 0 means full speed. Default: the server's
	// --migration-max-added-latency.
	// +optional
	MaxAddedLatency *metav1.Duration `json:"maxAddedLatency,omitempty"`
	// MaxObjectsPerSecond bounds the objects written per second; 0 means no bound. Default:
	// the server's --migration-max-objects-per-second. A change of this field or of the last
	// one interrupts the migration, which goes on with it where it was.
	// +optional
	MaxObjectsPerSecond *int64 `json:"maxObjectsPerSecond,omitempty"`
	// Engine requests an engine; only EngineAPI can be requested. If empty, EngineRewrite is used unless the resource
	// is served by another server. The field is read when a server begins or resumes the migration.
	// +optional
	Engine MigrationEngine `json:"engine,omitempty"`
}

// MigrationEngine is a way of migrating objects.
type MigrationEngine string

const (
	// EngineRewrite rewrites the stored values, next to the store.
	EngineRewrite MigrationEngine = "Rewrite"
	// EngineAPI rewrites every object through the API, by an empty patch.
	EngineAPI MigrationEngine = "API"
)

// MigrationConditionType is Running, Succeeded or Failed.
type MigrationConditionType string

// A migration has at most one condition that is True. Without one it is pending.
const (
	MigrationRunning   MigrationConditionType = "Running"
	MigrationSucceeded MigrationConditionType = "Succeeded"
	MigrationFailed    MigrationConditionType = "Failed"
)

// Reasons of the Failed condition, and of the Running condition.
const (
	// ReasonAgreementLost: the servers stopped agreeing on an encoding.
	ReasonAgreementLost = "AgreementLost"
	// ReasonStorageVersionChanged: the StorageVersion has another uid, epoch or encoding
	// than the migration was made for.
	ReasonStorageVersionChanged = "StorageVersionChanged"
	// ReasonBegunElsewhere: another migrator, such as kube-storage-version-migrator, has begun the migration, and does
	// not record its target.
	ReasonBegunElsewhere = "BegunElsewhere"
	// ReasonCRDChanged: the CustomResourceDefinition changed while its objects were rewritten.
	ReasonCRDChanged = "CustomResourceDefinitionChanged"
	// ReasonObjectsFailed: some objects cannot be migrated; all others are.
	ReasonObjectsFailed = "ObjectsFailed"
	// ReasonRewriteFailed: the rewrite met the same kind of error too many times in a row.
	ReasonRewriteFailed = "RewriteFailed"
	// ReasonNotProven: a census of what is stored has found other encodings after it.
	ReasonNotProven = "NotProven"
	// ReasonChangedByAdmission: admission changes objects at every write, so that it cannot be proven through the
	// API what is stored. It does not pass by itself.
	ReasonChangedByAdmission = "ChangedByAdmission"
	// ReasonResourceNotFound: no server knows the resource.
	ReasonResourceNotFound = "ResourceNotFound"
	// ReasonNotManaged: the resource is served, but no server reports how it is stored.
	ReasonNotManaged = "NotManaged"
	// ReasonVersionNotServed: spec.resource names a version in which no server serves the
	// resource.
	ReasonVersionNotServed = "VersionNotServed"
	// ReasonRewriting, ReasonProving, ReasonRetrying and ReasonPaused describe the state of a running migration. While
	// it is being proven that all objects are in the right encoding, all of them count as done.
	ReasonRewriting = "Rewriting"
	ReasonProving   = "Proving"
	ReasonRetrying  = "Retrying"
	ReasonPaused    = "Paused"
	// ReasonWaitingForAgreement, of a Running condition that is False: no server has begun, because the servers do not
	// agree on an encoding, because it is not known whether a server serves the resource, or because no server that
	// serves it may migrate it. ReasonPending: that is over.
	ReasonWaitingForAgreement = "WaitingForAgreement"
	ReasonPending             = "Pending"
	// ReasonSucceeded: every stored object is in the encoding.
	ReasonSucceeded = "Succeeded"
)

// Reasons of Events, besides ReasonPaused, ReasonWaitingForAgreement and the reasons of conditions that end a
// migration.
const (
	// EventStarted: a server began with the migration.
	EventStarted = "Started"
	// EventResumed: a server went on with a migration that had begun, after a pause or in
	// place of a server that is gone.
	EventResumed = "Resumed"
	// EventAborted: the migration is not needed any more, or not as it is, and was deleted by
	// the trigger that had made it.
	EventAborted = "Aborted"
)

// MigrationPhase is how far a migration is, in one word.
type MigrationPhase string

// The phases are the types of the conditions, and these.
const (
	PhasePending MigrationPhase = "Pending"
	PhasePaused  MigrationPhase = "Paused"
	// PhaseSuperseded is in place of Failed where the reason is one of Superseded.
	PhaseSuperseded MigrationPhase = PastSuperseded
)

// MigrationCondition is one observation of a migration.
type MigrationCondition struct {
	Type   MigrationConditionType `json:"type"`
	Status corev1.ConditionStatus `json:"status"`
	// LastUpdateTime is when the condition was last written. Running is written again with every progress report.
	// +optional
	LastUpdateTime metav1.Time `json:"lastUpdateTime,omitempty"`
	// +optional
	Reason string `json:"reason,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
}

// StorageVersionMigrationStatus describes the progress of the migration.
type StorageVersionMigrationStatus struct {
	// Phase is Pending, Running, Paused, Succeeded, Failed or Superseded, as the conditions say in more
	// words (beyond kube-storage-version-migrator).
	// +optional
	Phase MigrationPhase `json:"phase,omitempty"`
	// +optional
	// +patchMergeKey=type
	// +patchStrategy=merge
	Conditions []MigrationCondition `json:"conditions,omitempty"`
	// Progress counts objects (beyond kube-storage-version-migrator).
	// +optional
	Progress *MigrationProgress `json:"progress,omitempty"`
	// ContinueToken is where another server can resume if the current one disappears. It names the state for which it
	// is valid, and is ignored if that has changed. Only the server that has claimed the migration writes it (beyond
	// kube-storage-version-migrator).
	// +optional
	ContinueToken string `json:"continueToken,omitempty"`
	// Failures names the first MaxFailures objects that cannot be migrated. All of them are
	// in the log of the server that met them (beyond kube-storage-version-migrator).
	// +optional
	Failures []MigrationFailure `json:"failures,omitempty"`
	// Engine is the engine that migrates the objects, and EngineReason says why it was chosen (beyond
	// kube-storage-version-migrator).
	// +optional
	Engine MigrationEngine `json:"engine,omitempty"`
	// +optional
	EngineReason string `json:"engineReason,omitempty"`
}

// MaxFailures bounds StorageVersionMigrationStatus.Failures.
const MaxFailures = 100

// MigrationProgress counts the objects of one migration.
// Invariant: Done and Failed do not overlap.
type MigrationProgress struct {
	// Total is the number of objects that were stored when the rewrite began, without those that were found deleted
	// since.
	Total int64 `json:"total"`
	// Done counts objects that are known to be in the encoding, rewritten or found so.
	Done int64 `json:"done"`
	// Failed counts objects that cannot be migrated.
	Failed int64 `json:"failed"`
	// ObjectsPerSecond is how many objects were done per second in the last ten seconds. When the migration has ended it
	// is the mean since it began to run here.
	// +optional
	ObjectsPerSecond int64 `json:"objectsPerSecond,omitempty"`
	// FailedByReason divides Failed by the reason.
	// +optional
	FailedByReason map[MigrationFailureReason]int64 `json:"failedByReason,omitempty"`
}

// MigrationFailureReason is why an object cannot be migrated.
type MigrationFailureReason string

const (
	// FailureDoesNotDecode: the stored value cannot be read: it cannot be decrypted, is
	// damaged, or is in a version that nothing converts.
	FailureDoesNotDecode MigrationFailureReason = "DoesNotDecode"
	// FailureConversionWebhook: the conversion webhook refused the object, or did not answer.
	FailureConversionWebhook MigrationFailureReason = "ConversionWebhookFailed"
	// FailureRejected: the object can be read and is not taken as it is: by admission,
	// validation or the encoder.
	FailureRejected MigrationFailureReason = "Rejected"
	// FailureConflict: writing it met a conflict that no newer write explains.
	FailureConflict MigrationFailureReason = "Conflict"
	// FailureTooLarge: etcd takes no value of the new size.
	FailureTooLarge MigrationFailureReason = "TooLarge"
)

// FailureReasons are all of them.
var FailureReasons = []MigrationFailureReason{FailureDoesNotDecode, FailureConversionWebhook, FailureRejected, FailureConflict, FailureTooLarge}

// MigrationFailure names an object that cannot be migrated.
type MigrationFailure struct {
	// +optional
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// +optional
	Reason  MigrationFailureReason `json:"reason,omitempty"`
	Message string                 `json:"message"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// StorageVersionMigrationList is a list of StorageVersionMigrations.
type StorageVersionMigrationList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []StorageVersionMigration `json:"items"`
}
