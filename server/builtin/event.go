package builtin

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
)

const (
	maxEventField   = 128  // bytes of action, reason and reportingInstance
	maxEventMessage = 1024 // bytes
)

// eventStorage stores the events of both API groups as core/v1. They expire.
func eventStorage(k kind, g generics) (stores, error) {
	s := newStrategy[*corev1.Event](true)
	s.createOnUpdate = true
	s.unconditional = true
	// Clients of core/v1 name events freely; validateEvent is strict with events.k8s.io.
	s.name = func(string, bool) []string { return nil }
	s.validate = func(ctx context.Context, e *corev1.Event) field.ErrorList {
		if isNewStyle(ctx) {
			return append(validateEvent(e), validateNewEvent(e)...)
		}
		return validateEvent(e)
	}
	s.validateUpdate = func(ctx context.Context, e, old *corev1.Event) field.ErrorList {
		if isNewStyle(ctx) {
			return append(validateEvent(e), validateNewEventUpdate(e, old)...)
		}
		return validateEvent(e)
	}
	store, err := newREST(k, g, s, traits[*corev1.Event]{
		singular:   "event",
		shortNames: []string{"ev"},
		columns:    eventColumns(),
		allColumns: true,
		fields:     eventFields,
		ttl:        g.deps.EventTTL,
	})
	if err != nil {
		return nil, err
	}
	return stores{"": store}, nil
}

// isNewStyle: requests to events.k8s.io/v1 follow that version's stricter rules.
func isNewStyle(ctx context.Context) bool {
	info, ok := request.RequestInfoFrom(ctx)
	return ok && info.APIGroup == eventsv1.GroupName
}

func eventFields(e *corev1.Event) fields.Set {
	source := e.Source.Component
	if source == "" {
		source = e.ReportingController
	}
	return fields.Set{
		"involvedObject.kind":            e.InvolvedObject.Kind,
		"involvedObject.namespace":       e.InvolvedObject.Namespace,
		"involvedObject.name":            e.InvolvedObject.Name,
		"involvedObject.uid":             string(e.InvolvedObject.UID),
		"involvedObject.apiVersion":      e.InvolvedObject.APIVersion,
		"involvedObject.resourceVersion": e.InvolvedObject.ResourceVersion,
		"involvedObject.fieldPath":       e.InvolvedObject.FieldPath,
		"reason":                         e.Reason,
		"reportingComponent":             e.ReportingController,
		"source":                         source,
		"type":                           e.Type,
	}
}

// eventFieldLabels maps the selectors of a version of events, which calls the object it is
// about and its reporter so, to those of eventFields.
func eventFieldLabels(object, reporter string, more ...string) map[string]string {
	labels := map[string]string{"reason": "reason", "type": "type", reporter: "reportingComponent"}
	for _, part := range []string{"kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"} {
		labels[object+"."+part] = "involvedObject." + part
	}
	for _, label := range more {
		labels[label] = label
	}
	return labels
}

// validateEvent has one rule for events of old clients, that the namespaces agree, and
// more for those that set eventTime.
func validateEvent(e *corev1.Event) field.ErrorList {
	var errs field.ErrorList
	about := e.InvolvedObject.Namespace
	var agrees bool
	switch {
	case about != "":
		agrees = about == e.Namespace || !e.EventTime.IsZero()
	case e.EventTime.IsZero():
		agrees = e.Namespace == metav1.NamespaceNone || e.Namespace == metav1.NamespaceDefault
	default:
		agrees = e.Namespace == metav1.NamespaceDefault || e.Namespace == metav1.NamespaceSystem
	}
	if !agrees {
		errs = append(errs, field.Invalid(field.NewPath("involvedObject", "namespace"), about, "does not match event.namespace"))
	}
	if !e.EventTime.IsZero() {
		errs = append(errs, validateEventReport(e)...)
	}
	return errs
}

func validateEventReport(e *corev1.Event) field.ErrorList {
	var errs field.ErrorList
	if e.ReportingController == "" {
		errs = append(errs, field.Required(field.NewPath("reportingController"), ""))
	} else {
		for _, msg := range utilvalidation.IsQualifiedName(e.ReportingController) {
			errs = append(errs, field.Invalid(field.NewPath("reportingController"), e.ReportingController, msg))
		}
	}
	for _, f := range []struct{ name, value string }{
		{"reportingInstance", e.ReportingInstance}, {"action", e.Action}, {"reason", e.Reason},
	} {
		if f.value == "" {
			errs = append(errs, field.Required(field.NewPath(f.name), ""))
		}
		if len(f.value) > maxEventField {
			errs = append(errs, field.TooLong(field.NewPath(f.name), "", maxEventField))
		}
	}
	if len(e.Message) > maxEventMessage {
		errs = append(errs, field.TooLong(field.NewPath("message"), "", maxEventMessage))
	}
	return errs
}

// validateNewEvent has the further rules of events.k8s.io/v1 for creation.
func validateNewEvent(e *corev1.Event) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.NameIsDNSSubdomain(e.Name, false) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), e.Name, msg))
	}
	errs = append(errs, validateSeries(e)...)
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	errs = append(errs, oneOf(e.Type, field.NewPath("type"), corev1.EventTypeNormal, corev1.EventTypeWarning)...)
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"deprecatedFirstTimestamp", !e.FirstTimestamp.IsZero()}, {"deprecatedLastTimestamp", !e.LastTimestamp.IsZero()},
		{"deprecatedCount", e.Count != 0}, {"deprecatedSource", e.Source != corev1.EventSource{}},
	} {
		if f.set {
			errs = append(errs, field.Forbidden(field.NewPath(f.name), "needs to be unset"))
		}
	}
	return errs
}

// validateNewEventUpdate: only the series of an event may change in events.k8s.io/v1.
func validateNewEventUpdate(e, old *corev1.Event) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name     string
		new, old any
	}{
		{"regarding", e.InvolvedObject, old.InvolvedObject}, {"reason", e.Reason, old.Reason}, {"note", e.Message, old.Message},
		{"deprecatedSource", e.Source, old.Source}, {"deprecatedFirstTimestamp", e.FirstTimestamp, old.FirstTimestamp},
		{"deprecatedLastTimestamp", e.LastTimestamp, old.LastTimestamp}, {"deprecatedCount", e.Count, old.Count},
		{"type", e.Type, old.Type}, {"action", e.Action, old.Action}, {"related", e.Related, old.Related},
		{"reportingController", e.ReportingController, old.ReportingController},
		{"reportingInstance", e.ReportingInstance, old.ReportingInstance},
	} {
		errs = append(errs, validation.ValidateImmutableField(f.new, f.old, field.NewPath(f.name))...)
	}
	// Encoding keeps microseconds only.
	if !e.EventTime.Truncate(time.Microsecond).Equal(old.EventTime.Truncate(time.Microsecond)) {
		errs = append(errs, field.Invalid(field.NewPath("eventTime"), e.EventTime, validation.FieldImmutableErrorMsg))
	}
	return append(errs, validateSeries(e)...)
}

func validateSeries(e *corev1.Event) field.ErrorList {
	if e.Series == nil {
		return nil
	}
	var errs field.ErrorList
	if e.Series.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series", "count"), e.Series.Count, "should be at least 2"))
	}
	if e.Series.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series", "lastObservedTime"), ""))
	}
	return errs
}

func eventColumns() []column[*corev1.Event] {
	doc := corev1.Event{}.SwaggerDoc()
	text := func(name, doc string, wide bool, of func(*corev1.Event) string) column[*corev1.Event] {
		return column[*corev1.Event]{name: name, typ: "string", description: doc, wide: wide,
			cell: func(e *corev1.Event, _ time.Time) any { return of(e) }}
	}
	name := nameColumn[*corev1.Event]()
	name.wide = true
	return []column[*corev1.Event]{
		{name: "Last Seen", typ: "string", description: doc["lastTimestamp"],
			cell: func(e *corev1.Event, now time.Time) any { return since(lastSeen(e), now) }},
		text("Type", doc["type"], false, func(e *corev1.Event) string { return e.Type }),
		text("Reason", doc["reason"], false, func(e *corev1.Event) string { return e.Reason }),
		text("Object", doc["involvedObject"], false, func(e *corev1.Event) string {
			return strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name
		}),
		text("Subobject", "The part of the object that the event is about.", true, func(e *corev1.Event) string { return e.InvolvedObject.FieldPath }),
		text("Source", doc["source"], true, eventSource),
		text("Message", doc["message"], false, func(e *corev1.Event) string { return strings.TrimSpace(e.Message) }),
		{name: "First Seen", typ: "string", description: doc["firstTimestamp"], wide: true,
			cell: func(e *corev1.Event, now time.Time) any { return since(firstSeen(e), now) }},
		{name: "Count", typ: "string", description: doc["count"], wide: true,
			cell: func(e *corev1.Event, _ time.Time) any { return int64(eventCount(e)) }},
		name,
	}
}

func firstSeen(e *corev1.Event) metav1.Time {
	if e.FirstTimestamp.IsZero() {
		return metav1.NewTime(e.EventTime.Time)
	}
	return e.FirstTimestamp
}

func lastSeen(e *corev1.Event) metav1.Time {
	switch {
	case e.Series != nil:
		return metav1.NewTime(e.Series.LastObservedTime.Time)
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp
	}
	return firstSeen(e)
}

func eventCount(e *corev1.Event) int32 {
	switch {
	case e.Series != nil:
		return e.Series.Count
	case e.Count == 0:
		return 1
	}
	return e.Count
}

func eventSource(e *corev1.Event) string {
	component, instance := e.Source.Component, e.Source.Host
	if component == "" {
		component, instance = e.ReportingController, e.ReportingInstance
	}
	if instance == "" {
		return component
	}
	return fmt.Sprintf("%s, %s", component, instance)
}
