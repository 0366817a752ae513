// Package cause reads from an API server's messages why an object cannot be migrated, and what to do about it.
package cause

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
)

var (
	// failedCall and deniedBy name the admission webhook that did not answer, or that refused an object.
	failedCall = regexp.MustCompile(`failed calling webhook "([^"]+)"`)
	deniedBy   = regexp.MustCompile(`admission webhook "([^"]+)" denied the request`)
	// deniedPolicy names the ValidatingAdmissionPolicy that refused an object.
	deniedPolicy = regexp.MustCompile(`ValidatingAdmissionPolicy '([^']+)'`)
	// forbidden matches a missing right: the user, the verb, the resource and its group. Long messages are cut.
	forbidden = regexp.MustCompile(`User "([^"]*)" cannot (\S+) resource "([^"]*)(?:"(?: in API group "([^"]*)"?)?)?`)
	// goneNamespace names a namespace that an admission webhook's or policy's selector did not find.
	goneNamespace = regexp.MustCompile(`namespaces "([^"]+)" not found`)
	// invalid is a refusal by the schema or a rule of the object's definition.
	invalid = regexp.MustCompile(`(?:Invalid|Required|Unsupported|Forbidden|Duplicate) value|Too (?:long|many|few)|Forbidden: `)
	uid     = regexp.MustCompile(`\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)
)

const giveRight = "give it that right (docs/rbac.md lists all that are needed)"

// Lacks is the advice about a message of an API server that somebody lacks a right; empty about others.
func Lacks(message string) string {
	if forbidden.MatchString(message) {
		return giveRight
	}
	return ""
}

// Refused says who refuses objects of a resource with a message, and what to do. of counts the objects, and kept says
// that they cannot be migrated.
func Refused(resource string, custom bool, message, of, kept string) (text, do string) {
	mend := fmt.Sprintf("mend them (kubectl edit %s NAME)", resource)
	text = kept + ": they are not taken as they are"
	if call := failedCall.FindStringSubmatch(message); call != nil {
		why, do := Unreached(message)
		return fmt.Sprintf("%s wait for the admission webhook %s, %s", of, call[1], cmp.Or(why, "whose calls fail")), cmp.Or(do, "mend the webhook")
	}
	if right := forbidden.FindStringSubmatch(message); right != nil {
		lacked := strings.TrimSuffix(right[3]+"."+right[4], ".")
		return fmt.Sprintf("%s: %s lacks the right to %s %s", kept, right[1], right[2], lacked), giveRight
	}
	if policy := deniedPolicy.FindStringSubmatch(message); policy != nil {
		return text, mend + ", or change the ValidatingAdmissionPolicy " + policy[1] + ", which refuses them"
	}
	if webhook := deniedBy.FindStringSubmatch(message); webhook != nil {
		return text, mend + ", or change the admission webhook " + webhook[1] + ", which refuses them"
	}
	if namespace := goneNamespace.FindStringSubmatch(message); namespace != nil {
		return fmt.Sprintf("%s: their namespace %s does not exist, and an admission webhook or policy asks for its labels", kept, namespace[1]),
			"kubectl create namespace " + namespace[1] + ", and delete it again when they are gone or migrated"
	}
	if strings.Contains(message, "no new finalizers can be added if the object is being deleted") {
		return kept + ": a mutating webhook or policy adds a finalizer to objects that are being deleted, which no API server takes", "exclude the user that migrates from it, or let the deletions end"
	}
	if custom && invalid.MatchString(message) {
		return text, mend + ", or change the rule of their CustomResourceDefinition that refuses them"
	}
	return text, mend
}

// Nameless returns the message of a failure without the name and UID of its object, so that objects that are refused
// for one reason are listed together.
func Nameless(name, message string) string {
	if right := forbidden.FindString(message); right != "" {
		return right
	}
	for _, is := range []string{" is invalid: ", " is forbidden: "} {
		if _, why, found := strings.Cut(message, fmt.Sprintf("%q", name)+is); found {
			message = why
		}
	}
	message = strings.ReplaceAll(message, fmt.Sprintf("%q", name), `"…"`)
	message = uid.ReplaceAllString(message, "…")
	return strings.ReplaceAll(message, "<nil>: ", "") // the path of a rule at the root of a schema
}

// unanswered matches the errors of clients about a webhook that they could not reach.
var unanswered = regexp.MustCompile(`(?i)connection refused|no such host|deadline exceeded|timeout|timed out|no endpoints|service ".*" not found|no route to host|EOF|connection reset|tls: `)

// Unreached says why a webhook could not be called, and what to do about it; nothing where it answered.
func Unreached(message string) (why, do string) {
	switch {
	case strings.Contains(message, "x509: "):
		return "whose certificate is not trusted", "see that its certificate is valid, and that the CA is in the caBundle of the webhook's clientConfig"
	case unanswered.MatchString(message):
		return "which does not answer", "bring it up"
	}
	return "", ""
}

// exceeded matches the ways in which Go's HTTP client says that its time is over: which it is depends on what it
// waited for.
var exceeded = regexp.MustCompile(`(?:net/http: )?(?:request canceled(?: while waiting for connection)?|context deadline exceeded) \(Client\.Timeout[^)]*\)?`)

// Alike returns a message in the words in which all of its kind are listed together.
func Alike(message string) string {
	return exceeded.ReplaceAllString(message, "context deadline exceeded")
}

// timedOut matches a kube-apiserver's answer to a request that it did not get through with, as while a webhook hangs.
var timedOut = regexp.MustCompile(`(?i)time allotted|deadline exceeded|timeout|timed out`)

// TimedOut says whether the message is one of these.
func TimedOut(message string) bool { return timedOut.MatchString(message) }

// lacking matches what API servers say of a value in a version that they do not have, and has the version.
var lacking = regexp.MustCompile(`from an invalid group/version: ([\w./-]+)|is registered for version "([\w./-]+)"`)

// sealed matches what they say of a value that no key of theirs opens.
var sealed = regexp.MustCompile(`Undecryptable|unable to transform|not transformable|decrypt`)

// Unread says what is wrong with a stored value that cannot be read.
type Unread struct {
	// Version is the one it is in, and that servers do not have.
	Version string
	// Sealed says that no key of the servers opens it.
	Sealed bool
}

// UnreadBy tells it by the message of the failure.
func UnreadBy(message string) Unread {
	if found := lacking.FindStringSubmatch(message); found != nil {
		return Unread{Version: strings.TrimRight(found[1]+found[2], ".")}
	}
	return Unread{Sealed: sealed.MatchString(message)}
}

// Rank orders them, those that can be saved first.
func (v Unread) Rank() int {
	switch {
	case v.Version != "":
		return 0
	case v.Sealed:
		return 1
	}
	return 2
}
