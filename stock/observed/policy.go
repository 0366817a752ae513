package observed

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

const (
	// PruneAnnotation, on a CustomResourceDefinition, says when its storedVersions are pruned:
	// "never", "now", or a duration after the proof.
	PruneAnnotation = "concord.dev/prune"

	pruneNever, pruneNow = "never", "now"
)

// Never is a time to prune after that does not come.
const Never time.Duration = -1

// ParsePruneAfter reads "never", "now" or a duration.
func ParsePruneAfter(text string) (time.Duration, error) {
	switch text {
	case pruneNever:
		return Never, nil
	case pruneNow:
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err == nil && d < 0 {
		err = fmt.Errorf("%s is negative", text)
	}
	if err != nil {
		return Never, fmt.Errorf("not %s, %s or a duration: %w", pruneNever, pruneNow, err)
	}
	return d, nil
}

// Settings are the user's flags, which hold for all resources.
type Settings struct {
	// PruneAfter is how long storedVersions are kept after the proof; Never: always.
	PruneAfter time.Duration
	// BestEffort says that kube-apiservers are not asked one by one: it is not known what all of them store, and
	// storedVersions are pruned only where the annotation says when.
	BestEffort bool
	// BuiltIn says that resources other than custom resources are also migrated automatically.
	BuiltIn bool
}

// events expire by themselves within their time to live, which a write would restart.
var events = schema.GroupResource{Resource: "events"}

// Policy says what the trigger may do by itself. annotations are those of the definition;
// looked is when this process first saw that nothing else is stored: it counts where no
// migration tells. met says that it has met a StorageState of the resource before, so that
// somebody who deletes it gets everything proven anew, and nobody believes the storedVersions of a
// definition that was made anew: objects may be left of the one before.
func Policy(o evolve.Observation, annotations map[string]string, s Settings, looked time.Time, met bool) evolve.Policy {
	p := evolve.Policy{TakeOver: true}
	if o.CRD == nil {
		p.Manual = manual(o, s)
		return p
	}
	if !met {
		p.Initial = slices.Clone(o.CRD.StoredVersions)
	}
	p.KeepStored, p.PruneIn = prune(o, annotations, s, looked)
	return p
}

// manual explains why a built-in resource is migrated only if somebody asks; empty if it is migrated automatically.
func manual(o evolve.Observation, s Settings) string {
	switch {
	case !s.BuiltIn:
		return "built-in resources are migrated when somebody asks for it"
	case o.Resource == events:
		return "events end by themselves"
	case o.StorageVersion == nil || o.State == nil:
		return ""
	}
	begun, ok := ParseUID(o.StorageVersion.UID)
	others := slices.DeleteFunc(slices.Clone(o.State.Stored), func(e agree.Encoding) bool {
		return e == evolve.Unknown || e == o.StorageVersion.Common
	})
	if ok && begun.Same && len(others) == 0 {
		return "nobody looked for a while, and the kube-apiservers are still of release " + begun.Release
	}
	return ""
}

// prune says why storedVersions are kept for now, or for how long still.
func prune(o evolve.Observation, annotations map[string]string, s Settings, looked time.Time) (keep string, in time.Duration) {
	if migrationv1alpha1.Held(annotations) {
		return "the CustomResourceDefinition has the annotation " + migrationv1alpha1.HoldAnnotation, 0
	}
	after, told, why := Prunes(annotations)
	switch {
	case why != "":
		return why, 0
	case !told && s.BestEffort:
		return "kube-apiservers cannot be asked one by one: the annotation " + PruneAnnotation + " has to say when", 0
	case !told && s.PruneAfter == Never:
		return "--prune-after (an operator: Options.PruneAfter) is " + pruneNever, 0
	case !told:
		after = s.PruneAfter
	}
	return "", max(0, proven(o, looked).Add(after).Sub(o.Now))
}

// Prunes returns how long after the proof a definition's annotation wants its storedVersions pruned, if it says so,
// and why not at all: the annotation says never, or cannot be parsed.
func Prunes(annotations map[string]string) (after time.Duration, told bool, why string) {
	text, told := annotations[PruneAnnotation]
	if !told {
		return 0, false, ""
	}
	after, err := ParsePruneAfter(text)
	switch {
	case err != nil:
		why = fmt.Sprintf("the annotation %s is %q: %v", PruneAnnotation, text, err)
	case after == Never:
		why = "the annotation " + PruneAnnotation + " is " + pruneNever
	}
	return after, true, why
}

// proven is when the migration ended after which nothing else is stored.
func proven(o evolve.Observation, looked time.Time) time.Time {
	if o.StorageVersion == nil {
		return looked
	}
	target, agreed := o.StorageVersion.Agreement()
	if !agreed {
		return looked
	}
	for _, m := range o.Succeeded(target) {
		if !m.Ended.IsZero() && (looked.IsZero() || m.Ended.Before(looked)) {
			looked = m.Ended
		}
	}
	return looked
}
