package status

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

var (
	// failedCall and deniedBy name the admission webhook that did not answer, or that refused an object.
	failedCall = regexp.MustCompile(`failed calling webhook "([^"]+)"`)
	deniedBy   = regexp.MustCompile(`admission webhook "([^"]+)" denied the request`)
	// deniedPolicy names the ValidatingAdmissionPolicy that refused an object.
	deniedPolicy = regexp.MustCompile(`ValidatingAdmissionPolicy '([^']+)'`)
	// forbidden matches a missing right: the user, the verb, the resource and its group. Long messages are cut.
	forbidden = regexp.MustCompile(`User "([^"]*)" cannot (\S+) resource "([^"]*)(?:"(?: in API group "([^"]*)"?)?)?`)
	// invalid is a refusal by the schema or a rule of the object's definition.
	invalid = regexp.MustCompile(`(?:Invalid|Required|Unsupported|Forbidden|Duplicate) value|Too (?:long|many|few)|Forbidden: `)
	uid     = regexp.MustCompile(`\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)
)

// rejected describes objects that the API server can read but does not accept as they are. The advice depends on who
// refuses them.
func rejected(r *resource, m *migrationv1alpha1.StorageVersionMigration, of, kept string, n int64, named []migrationv1alpha1.MigrationFailure) Problem {
	var told []migrationv1alpha1.MigrationFailure
	var texts, advice []string
	for _, f := range named {
		text, do := refusal(r, f.Message, of, kept)
		if !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
		if !slices.Contains(advice, do) {
			advice = append(advice, do)
		}
		f.Message = nameless(f)
		told = append(told, f)
	}
	if len(named) == 0 {
		text, do := refusal(r, "", of, kept)
		texts, advice = []string{text}, []string{do}
	}
	advice = slices.DeleteFunc(slices.Clone(advice), func(do string) bool { // it says less than another one does
		return slices.ContainsFunc(advice, func(more string) bool { return more != do && strings.HasPrefix(more, do) })
	})
	if len(texts) > 1 { // the objects' own messages tell them apart
		texts = []string{kept + ": they are not taken as they are"}
	}
	return ofObjects(r, m, n, told, texts[0], strings.Join(advice, "; "))
}

// refusal says of objects that were refused with a message who refuses them, and what to do.
func refusal(r *resource, message, of, kept string) (text, do string) {
	mend := fmt.Sprintf("mend them (kubectl edit %s NAME)", r)
	text = kept + ": they are not taken as they are"
	if call := failedCall.FindStringSubmatch(message); call != nil {
		why, do := unreached(message)
		return fmt.Sprintf("%s wait for the admission webhook %s, %s", of, call[1], cmp.Or(why, "whose calls fail")), cmp.Or(do, "mend the webhook")
	}
	if right := forbidden.FindStringSubmatch(message); right != nil {
		resource := strings.TrimSuffix(right[3]+"."+right[4], ".")
		return fmt.Sprintf("%s: %s lacks the right to %s %s", kept, right[1], right[2], resource), "give it that right (docs/rbac.md lists all that are needed)"
	}
	if policy := deniedPolicy.FindStringSubmatch(message); policy != nil {
		return text, mend + ", or change the ValidatingAdmissionPolicy " + policy[1] + ", which refuses them"
	}
	if webhook := deniedBy.FindStringSubmatch(message); webhook != nil {
		return text, mend + ", or change the admission webhook " + webhook[1] + ", which refuses them"
	}
	if strings.Contains(message, "no new finalizers can be added if the object is being deleted") {
		return kept + ": a mutating webhook or policy adds a finalizer to objects that are being deleted, which no API server takes", "exclude the user that migrates from it, or let the deletions end"
	}
	if r.crd != nil && invalid.MatchString(message) {
		return text, mend + ", or change the rule of their CustomResourceDefinition that refuses them"
	}
	return text, mend
}

// nameless returns the message of a failure without the name and UID of its object, so that objects that are refused
// for one reason are listed together.
func nameless(f migrationv1alpha1.MigrationFailure) string {
	message := f.Message
	if right := forbidden.FindString(message); right != "" {
		return right
	}
	for _, is := range []string{" is invalid: ", " is forbidden: "} {
		if _, why, found := strings.Cut(message, fmt.Sprintf("%q", f.Name)+is); found {
			message = why
		}
	}
	message = strings.ReplaceAll(message, fmt.Sprintf("%q", f.Name), `"…"`)
	message = uid.ReplaceAllString(message, "…")
	return strings.ReplaceAll(message, "<nil>: ", "") // the path of a rule at the root of a schema
}
