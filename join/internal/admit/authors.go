package admit

import (
	"context"
	"errors"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/join/roles"
)

// authors is the admission of StorageStates and migrations. The fields that count in them are
// written by their controllers alone: a stored set that somebody shortened, or a success that somebody
// wrote, would have storedVersions pruned over objects that nobody migrated. Administrators
// may read, create, pause and delete as ever.
type authors struct {
	admission.Interface      // nil where the server has no other admission
	roles               bool // the controllers act as users of their own
}

var (
	_ admission.MutationInterface   = authors{}
	_ admission.ValidationInterface = authors{}
)

var (
	errStateAuthor = errors.New("the status and the concord.dev annotations of a StorageState are written by Concord's controllers alone, who rely on them; " +
		"to have all objects of the resource migrated anew, delete the StorageState")
	errMigrationAuthor = errors.New("the status, the concord.dev annotations and the label " + migrationv1alpha1.MadeByLabel +
		" of a migration are written by Concord's servers alone, who rely on them; to stop a migration, set spec.paused or delete it")
)

// Handles implements admission.Interface.
func (g authors) Handles(operation admission.Operation) bool {
	return operation == admission.Create || operation == admission.Update || g.handled(operation)
}

func (g authors) handled(operation admission.Operation) bool {
	return g.Interface != nil && g.Interface.Handles(operation)
}

// Admit implements admission.MutationInterface.
func (g authors) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if inner, ok := g.Interface.(admission.MutationInterface); ok && g.handled(a.GetOperation()) {
		return inner.Admit(ctx, a, o)
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (g authors) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := g.judge(a); err != nil {
		return admission.NewForbidden(a, err)
	}
	if inner, ok := g.Interface.(admission.ValidationInterface); ok && g.handled(a.GetOperation()) {
		return inner.Validate(ctx, a, o)
	}
	return nil
}

func (g authors) judge(a admission.Attributes) error {
	gr := a.GetResource().GroupResource()
	if gr.Group != migrationv1alpha1.GroupName || g.writes(a.GetUserInfo(), gr) || !touches(a.GetObject(), a.GetOldObject()) {
		return nil
	}
	if gr == migrationv1alpha1.StorageStates {
		return errStateAuthor
	}
	return errMigrationAuthor
}

// writes says whether a user is the server itself or a controller that writes the resource.
func (g authors) writes(u user.Info, gr schema.GroupResource) bool {
	return roles.Loopback(u) || g.roles && roles.Writes(u, gr)
}

// touches says whether the new object, nil in a deletion, differs from the old one, nil in a
// creation, in a field that only the controllers write.
func touches(obj, old runtime.Object) bool {
	after, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return false // they are custom resources, and deleted as nil
	}
	before, ok := old.(*unstructured.Unstructured)
	if !ok {
		before = &unstructured.Unstructured{Object: map[string]any{}}
	}
	return !equality.Semantic.DeepEqual(after.Object["status"], before.Object["status"]) || !maps.Equal(marks(after), marks(before))
}

// marks are an object's annotations and labels of concord.dev.
func marks(obj *unstructured.Unstructured) map[string]string {
	found := map[string]string{}
	for _, all := range []map[string]string{obj.GetAnnotations(), obj.GetLabels()} {
		for key, value := range all {
			if strings.HasPrefix(key, "concord.dev/") {
				found[key] = value
			}
		}
	}
	return found
}
