package skew

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
	"github.com/concord-dev/concord/compat"
)

const (
	// maxListed bounds how many items a message lists, maxNote its length in an event.
	maxListed = 5
	maxNote   = 1024
)

// show writes the servers, sorted by ID, and compat's judgement of them into a status.
// Conditions of others stay.
func show(status *versionv1alpha1.ClusterVersionStatus, servers []compat.ServerVersions, skew compat.ServerSkew, now time.Time) {
	status.ServerCount = int32(len(servers))
	status.OldestEmulation, status.NewestEmulation = text(skew.Oldest), text(skew.Newest)
	status.Servers = nil
	for _, s := range servers {
		status.Servers = append(status.Servers, statusOf(s))
	}
	for _, condition := range []metav1.Condition{agree(servers, skew), allowed(servers, skew)} {
		condition.LastTransitionTime = metav1.NewTime(now)
		meta.SetStatusCondition(&status.Conditions, condition)
	}
}

func statusOf(s compat.ServerVersions) versionv1alpha1.ServerVersion {
	return versionv1alpha1.ServerVersion{ID: s.ID, Binary: text(s.Binary), Emulation: text(s.Emulation), MinCompatibility: text(s.MinCompatibility)}
}

func text(v *version.Version) string {
	if v == nil {
		return ""
	}
	return v.String()
}

func agree(servers []compat.ServerVersions, skew compat.ServerSkew) metav1.Condition {
	c := metav1.Condition{Type: versionv1alpha1.ConditionVersionsAgree, Status: metav1.ConditionTrue, Reason: versionv1alpha1.ReasonSame, Message: windows(servers, skew)}
	switch {
	case !skew.Agree():
		c.Status, c.Reason = metav1.ConditionFalse, versionv1alpha1.ReasonDifferent
	case len(servers) == 0 || len(skew.Silent) > 0:
		unknown(&c, skew)
	}
	return c
}

func allowed(servers []compat.ServerVersions, skew compat.ServerSkew) metav1.Condition {
	c := metav1.Condition{Type: versionv1alpha1.ConditionSkewAllowed, Status: metav1.ConditionTrue, Reason: versionv1alpha1.ReasonWithinAllowance,
		Message: "every server's emulation version is one that all others allow"}
	switch {
	case !skew.Allowed():
		c.Status, c.Reason = metav1.ConditionFalse, versionv1alpha1.ReasonOutOfAllowance
		var found []string
		for _, v := range skew.Violations {
			found = append(found, v.String())
		}
		c.Message = list(found, "; ")
	case len(servers) == 0 || len(skew.Silent) > 0:
		unknown(&c, skew)
	}
	return c
}

func unknown(c *metav1.Condition, skew compat.ServerSkew) {
	c.Status = metav1.ConditionUnknown
	if len(skew.Silent) == 0 {
		c.Reason, c.Message = versionv1alpha1.ReasonNoServers, "no server has an identity Lease"
		return
	}
	c.Reason = versionv1alpha1.ReasonVersionsUnknown
	c.Message = "the identity Leases of these servers do not tell their versions: " + list(skew.Silent, ", ")
}

// windows says how many servers stand for which versions.
func windows(servers []compat.ServerVersions, skew compat.ServerSkew) string {
	var found []string
	for _, w := range skew.Windows {
		n := 0
		var binaries []string
		for _, s := range servers {
			if text(s.Emulation) == text(w.Emulation) && text(s.MinCompatibility) == text(w.MinCompatibility) {
				n++
				if b := text(s.Binary); b != "" && !slices.Contains(binaries, b) {
					binaries = append(binaries, b)
				}
			}
		}
		slices.Sort(binaries)
		line := fmt.Sprintf("%d at emulation version %s with min compatibility version %s", n, w.Emulation, w.MinCompatibility)
		if len(binaries) > 0 {
			line += " (binary " + strings.Join(binaries, ", ") + ")"
		}
		found = append(found, line)
	}
	return "servers: " + list(found, "; ")
}

// list joins the first of many.
func list(items []string, separator string) string {
	if more := len(items) - maxListed; more > 0 {
		items = append(slices.Clone(items[:maxListed]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(items, separator)
}

// news is the content of an event, and since when it is so.
type news struct {
	kind, reason, note string
	since              time.Time
}

func newsOf(kind, reason string, c *metav1.Condition) news {
	return news{kind: kind, reason: reason, note: c.Message[:min(len(c.Message), maxNote)], since: c.LastTransitionTime.Time}
}

// Reasons of events.
const (
	EventSkewBegan      = "ServerSkewBegan"
	EventSkewEnded      = "ServerSkewEnded"
	EventSkewNotAllowed = "ServerSkewNotAllowed"
	EventSkewAllowed    = "ServerSkewAllowed"
	EventSkewUnknown    = "ServerSkewUnknown"
)

// transitions returns what changed between two observations: skew that begins, ends, leaves the allowance or returns
// into it, and versions that are no longer known. Agreement at the first observation is no news.
func transitions(before, after []metav1.Condition) []news {
	var all []news
	if was, is := moved(before, after, versionv1alpha1.ConditionVersionsAgree); is != nil {
		switch {
		case is.Status == metav1.ConditionFalse:
			all = append(all, newsOf(corev1.EventTypeNormal, EventSkewBegan, is))
		case is.Status == metav1.ConditionUnknown:
			all = append(all, newsOf(corev1.EventTypeWarning, EventSkewUnknown, is))
		case was != "":
			all = append(all, newsOf(corev1.EventTypeNormal, EventSkewEnded, is))
		}
	}
	if was, is := moved(before, after, versionv1alpha1.ConditionSkewAllowed); is != nil {
		switch {
		case is.Status == metav1.ConditionFalse:
			all = append(all, newsOf(corev1.EventTypeWarning, EventSkewNotAllowed, is))
		case was == metav1.ConditionFalse && is.Status == metav1.ConditionTrue:
			all = append(all, newsOf(corev1.EventTypeNormal, EventSkewAllowed, is))
		}
	}
	return all
}

// moved returns the status before, "" for none, and the condition now; nil if the status
// is the same.
func moved(before, after []metav1.Condition, conditionType string) (metav1.ConditionStatus, *metav1.Condition) {
	is, was := meta.FindStatusCondition(after, conditionType), metav1.ConditionStatus("")
	if old := meta.FindStatusCondition(before, conditionType); old != nil {
		was = old.Status
	}
	if is == nil || is.Status == was {
		return was, nil
	}
	return was, is
}
