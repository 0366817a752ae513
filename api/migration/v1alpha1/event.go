package v1alpha1

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxNote is how long the message of an event may be.
const maxNote = 1024

// NewEvents returns an event about a migration and, if the migration is a copy of one of storagemigration.k8s.io, the
// same event about the original. The names of the events depend only on the migration and the time. kind is
// corev1.EventTypeNormal or -Warning.
func NewEvents(m *StorageVersionMigration, instance, kind, reason, note string, now time.Time) []*corev1.Event {
	about := []corev1.ObjectReference{{
		APIVersion: SchemeGroupVersion.String(), Kind: MigrationKind, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
	}}
	if original := Original(m); original != nil {
		about = append(about, corev1.ObjectReference{APIVersion: original.APIVersion, Kind: original.Kind, Name: original.Name, UID: original.UID})
	}
	events := make([]*corev1.Event, len(about))
	for i, ref := range about {
		events[i] = newEvent(ref, instance, kind, reason, note, now)
	}
	return events
}

// ReasonFieldsNotCleaned is that of an event about a definition some of whose objects may have
// managedFields that name versions which are not served any more.
const ReasonFieldsNotCleaned = "ManagedFieldsNotCleaned"

// ReasonStoredVersionsRefused is that of an event about a definition whose status.storedVersions the API server does
// not let the controllers change.
const ReasonStoredVersionsRefused = "StoredVersionsRefused"

// NewDefinitionEvent returns an event about a CustomResourceDefinition, as NewEvents does.
func NewDefinitionEvent(crd *apiextensionsv1.CustomResourceDefinition, instance, kind, reason, note string, now time.Time) *corev1.Event {
	about := corev1.ObjectReference{
		APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition", Name: crd.Name, UID: crd.UID, ResourceVersion: crd.ResourceVersion,
	}
	return newEvent(about, instance, kind, reason, note, now)
}

func newEvent(about corev1.ObjectReference, instance, kind, reason, note string, now time.Time) *corev1.Event {
	if len(note) > maxNote {
		note = note[:maxNote]
	}
	// The suffix must not make the name too long, and the names for a copy and its original, which may begin alike,
	// have to differ.
	name := about.Name
	if len(name) > 200 {
		name = strings.TrimRight(name[:160], ".-") + "-" + string(about.UID)
	}
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			// Events about cluster-scoped objects live in the default namespace.
			Namespace: metav1.NamespaceDefault,
			Name:      fmt.Sprintf("%s.%x", name, now.UnixNano()),
		},
		InvolvedObject:      about,
		Type:                kind,
		Reason:              reason,
		Message:             note,
		Source:              corev1.EventSource{Component: "concord", Host: instance},
		FirstTimestamp:      metav1.NewTime(now),
		LastTimestamp:       metav1.NewTime(now),
		Count:               1,
		ReportingController: "concord.dev/migration",
		ReportingInstance:   instance,
	}
}
