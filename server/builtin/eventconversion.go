package builtin

import (
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// addEventConversions makes core/v1 the in-memory form of events.k8s.io events too. The
// two have the same content under different names.
func addEventConversions(scheme *runtime.Scheme) error {
	internal := schema.GroupVersion{Group: eventsGroup, Version: runtime.APIVersionInternal}
	addInternalTypes(scheme, internal, types{object: &corev1.Event{}, list: &corev1.EventList{}})
	for _, c := range []struct {
		from, to any
		convert  conversion.ConversionFunc
	}{
		{&eventsv1.Event{}, &corev1.Event{}, func(in, out any, _ conversion.Scope) error {
			*out.(*corev1.Event) = eventToCore(in.(*eventsv1.Event))
			return nil
		}},
		{&corev1.Event{}, &eventsv1.Event{}, func(in, out any, _ conversion.Scope) error {
			*out.(*eventsv1.Event) = eventFromCore(in.(*corev1.Event))
			return nil
		}},
		{&eventsv1.EventList{}, &corev1.EventList{}, func(in, out any, _ conversion.Scope) error {
			from, to := in.(*eventsv1.EventList), out.(*corev1.EventList)
			to.ListMeta, to.Items = from.ListMeta, make([]corev1.Event, len(from.Items))
			for i := range from.Items {
				to.Items[i] = eventToCore(&from.Items[i])
			}
			return nil
		}},
		{&corev1.EventList{}, &eventsv1.EventList{}, func(in, out any, _ conversion.Scope) error {
			from, to := in.(*corev1.EventList), out.(*eventsv1.EventList)
			to.ListMeta, to.Items = from.ListMeta, make([]eventsv1.Event, len(from.Items))
			for i := range from.Items {
				to.Items[i] = eventFromCore(&from.Items[i])
			}
			return nil
		}},
	} {
		if err := scheme.AddConversionFunc(c.from, c.to, c.convert); err != nil {
			return err
		}
	}
	return nil
}

func eventToCore(e *eventsv1.Event) corev1.Event {
	return corev1.Event{
		ObjectMeta:          e.ObjectMeta,
		InvolvedObject:      e.Regarding,
		Reason:              e.Reason,
		Message:             e.Note,
		Source:              e.DeprecatedSource,
		FirstTimestamp:      e.DeprecatedFirstTimestamp,
		LastTimestamp:       e.DeprecatedLastTimestamp,
		Count:               e.DeprecatedCount,
		Type:                e.Type,
		EventTime:           e.EventTime,
		Series:              (*corev1.EventSeries)(e.Series),
		Action:              e.Action,
		Related:             e.Related,
		ReportingController: e.ReportingController,
		ReportingInstance:   e.ReportingInstance,
	}
}

func eventFromCore(e *corev1.Event) eventsv1.Event {
	return eventsv1.Event{
		ObjectMeta:               e.ObjectMeta,
		EventTime:                e.EventTime,
		Series:                   (*eventsv1.EventSeries)(e.Series),
		ReportingController:      e.ReportingController,
		ReportingInstance:        e.ReportingInstance,
		Action:                   e.Action,
		Reason:                   e.Reason,
		Regarding:                e.InvolvedObject,
		Related:                  e.Related,
		Note:                     e.Message,
		Type:                     e.Type,
		DeprecatedSource:         e.Source,
		DeprecatedFirstTimestamp: e.FirstTimestamp,
		DeprecatedLastTimestamp:  e.LastTimestamp,
		DeprecatedCount:          e.Count,
	}
}
