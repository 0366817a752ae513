package v1alpha1

import "strings"

const (
	// StoredEncodingsAnnotation, on a StorageState, shows its stored set to people: the encodings, comma-separated. It
	// lists at least the encodings in the status; only the status is used for decisions.
	StoredEncodingsAnnotation = "concord.dev/stored-encodings"
	// CustomResourceAnnotation is "true" on the StorageState of a custom resource. It says that the StorageState can
	// be deleted with the CustomResourceDefinition.
	CustomResourceAnnotation = "concord.dev/custom-resource"
	// ListedEncodingsAnnotation, on the StorageState of a custom resource whose stored set contains Unknown, lists the
	// encodings, comma-separated, that status.storedVersions of the CustomResourceDefinition has named since. A
	// version that is removed from storedVersions in the meantime is put back.
	ListedEncodingsAnnotation = "concord.dev/listed-encodings"
	// AggregatedAnnotation is "true" on the StorageState of a resource of aggregated API servers, which keep the
	// objects in another etcd. The StorageVersion says so as well, but may be deleted before the StorageState.
	AggregatedAnnotation = "concord.dev/aggregated"
	// KindAnnotation, on the StorageState of a resource of aggregated API servers, is the kind of its objects. The hashes
	// are made of it, also while no such server answers discovery.
	KindAnnotation = "concord.dev/kind"
	// DefinitionAnnotation, on the StorageState of a custom resource beside servers that do not report, holds the uid
	// and generation of the CustomResourceDefinition up to which the status accounts for its storage versions. It
	// never names a newer one than the status accounts for.
	DefinitionAnnotation = "concord.dev/definition"

	// PruneRefusedAnnotation, on a StorageState, is the API server's answer where it has refused to take
	// versions out of the definition's storedVersions, or to put them back.
	PruneRefusedAnnotation = "concord.dev/prune-refused"
	// SinceProof begins that annotation where patches were refused of objects that were written since the proof.
	SinceProof = "written since the proof: "

	// StorageVersionUIDAnnotation, EpochAnnotation and EncodingAnnotation, on a migration,
	// are its target: the StorageVersion and epoch at which all servers agreed, and the
	// encoding they agreed on. The trigger writes them; without all three a migration never
	// counts.
	StorageVersionUIDAnnotation = "concord.dev/storage-version-uid"
	EpochAnnotation             = "concord.dev/epoch"
	EncodingAnnotation          = "concord.dev/encoding"
	// StorageStateUIDAnnotation, on a user's migration, is the uid of the StorageState that there
	// was when it got its target: it does not count for another one.
	StorageStateUIDAnnotation = "concord.dev/storage-state-uid"
	// AttemptAnnotation counts the migrations that the trigger made for one target, from 1.
	AttemptAnnotation = "concord.dev/attempt"
	// LastingAnnotation is how many of these, directly before this one, failed since admission changes objects at every
	// write.
	LastingAnnotation = "concord.dev/changed-by-admission"
	// ClaimedByAnnotation names the server that does the rewrite. The claim of a server
	// without an identity Lease can be taken over.
	ClaimedByAnnotation = "concord.dev/claimed-by"

	// MadeByLabel with MadeByTrigger marks the migrations that the trigger made; it deletes
	// no others.
	MadeByLabel   = "concord.dev/made-by"
	MadeByTrigger = "trigger"
)

// AskedByLabel, on a migration, names the program that asked for it. Labels of concord.dev can only be set by servers;
// this one can be set by any client.
const AskedByLabel = "migrate.concord.dev/asked-by"

// AskedByUserAnnotation, on a migration, is the name of the user who asked for it, as the API server gave it to the
// program that set the annotation. It is for people: the proof is in the audit log.
const AskedByUserAnnotation = "migrate.concord.dev/asked-by-user"

// HoldAnnotation, on a CustomResourceDefinition, postpones its cut-over: objects are migrated, and
// status.storedVersions is not pruned. Every value does but "false", in any letter case: who sets it
// wants a hold.
const HoldAnnotation = "concord.dev/hold"

// Held says whether the annotations of a CustomResourceDefinition postpone its cut-over.
func Held(annotations map[string]string) bool {
	value, told := annotations[HoldAnnotation]
	return told && !strings.EqualFold(value, "false")
}
