package v1alpha1

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxNote is how long the message of an event may be.
const maxNote = 1024

// NewEvent returns an event about a migration. Its name depends on the migration, the
// reporting instance and the time only. kind is corev1.EventTypeNormal or -Warning.
func NewEvent(m *StorageVersionMigration, instance, kind, reason, note string, now time.Time) *corev1.Event {
	if len(note) > maxNote {
		note = note[:maxNote]
	}
	// Events about cluster-scoped objects live in the default namespace. The name's suffix
	// may not make it too long.
	name := m.Name
	if len(name) > 200 {
		name = name[:200]
	}
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault,
			Name:      fmt.Sprintf("%s.%x", name, now.UnixNano()),
		},
		InvolvedObject: corev1.ObjectReference{
			APIVersion:      SchemeGroupVersion.String(),
			Kind:            "StorageVersionMigration",
			Name:            m.Name,
			UID:             m.UID,
			ResourceVersion: m.ResourceVersion,
		},
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
