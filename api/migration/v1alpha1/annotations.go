package v1alpha1

import "strings"

const (
	// StoredEncodingsAnnotation, on a StorageState, is its stored set for people: the
	// encodings, comma-separated. It is a copy that lists at least what the status lists;
	// the status is what counts.
	StoredEncodingsAnnotation = "concord.dev/stored-encodings"
	// CustomResourceAnnotation is "true" on the StorageState of a custom resource. It tells
	// that the state can go with the CustomResourceDefinition.
	CustomResourceAnnotation = "concord.dev/custom-resource"
	// ListedEncodingsAnnotation, on the StorageState of a custom resource whose stored set has
	// Unknown, are the encodings, comma-separated, that the definition's storedVersions were
	// seen to name since. A version that is taken out of them meanwhile is put back.
	ListedEncodingsAnnotation = "concord.dev/listed-encodings"
	// AggregatedAnnotation is "true" on the StorageState of a resource whose StorageVersion, which does not
	// outlast it, is one of aggregated API servers: they keep the objects in another etcd.
	AggregatedAnnotation = "concord.dev/aggregated"
	// DefinitionAnnotation, on the StorageState of a custom resource beside servers that do not
	// report, is the uid and the generation of the definition up to which the status counts what it
	// said to store. It never tells of a newer one than the status.
	DefinitionAnnotation = "concord.dev/definition"

	// PruneRefusedAnnotation, on a StorageState, is the API server's answer where it has refused to take
	// versions out of the definition's storedVersions.
	PruneRefusedAnnotation = "concord.dev/prune-refused"

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

// AskedByLabel, on a migration, names the program that asked for it. Unlike those of
// concord.dev, which the servers write alone, any client may set it.
const AskedByLabel = "migrate.concord.dev/asked-by"

// AskedByUserAnnotation, on a migration, is the name of the user who asked for it, as the API
// server told the program that set it. It is for people: the proof is in the audit log.
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
