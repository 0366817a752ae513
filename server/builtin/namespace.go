package builtin

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerrors "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/utils/clock"
)

func namespaceStorage(k kind, g generics) (stores, error) {
	s := newStrategy[*corev1.Namespace](false)
	s.unconditional = true
	s.name = validation.NameIsDNSLabel
	s.reset = k.resetFields("status")
	s.prepareCreate = func(_ context.Context, ns *corev1.Namespace) {
		ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
		if !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
			ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
		}
	}
	s.prepareUpdate = func(_ context.Context, ns, old *corev1.Namespace) {
		ns.Spec.Finalizers = old.Spec.Finalizers
		ns.Status = old.Status
	}
	s.validate = func(_ context.Context, ns *corev1.Namespace) field.ErrorList { return validateNamespace(ns) }
	s.canonicalize = defaultNamespace
	parent, err := newREST(k, g, s, traits[*corev1.Namespace]{
		singular:   "namespace",
		shortNames: []string{"ns"},
		columns: []column[*corev1.Namespace]{{
			name: "Status", typ: "string", description: "The status of the namespace",
			cell: func(ns *corev1.Namespace, _ time.Time) any { return string(ns.Status.Phase) },
		}},
		fields: func(ns *corev1.Namespace) fields.Set {
			return fields.Set{"status.phase": string(ns.Status.Phase)}
		},
	})
	if err != nil {
		return nil, err
	}
	parent.ShouldDeleteDuringUpdate = deleteNamespaceDuringUpdate

	status := s.sub(
		func(_ context.Context, ns, old *corev1.Namespace) { ns.Spec = old.Spec },
		func(_ context.Context, ns, _ *corev1.Namespace) field.ErrorList { return validateNamespaceStatus(ns) },
	)
	status.reset = k.resetFields("spec")
	finalize := s.sub(
		func(_ context.Context, ns, old *corev1.Namespace) { ns.Status = old.Status },
		func(_ context.Context, ns, _ *corev1.Namespace) field.ErrorList { return validateNamespace(ns) },
	)
	finalize.reset = k.resetFields("status")
	return stores{
		"":         &namespaceREST{verbs: parent, store: parent.Store, clock: g.deps.Clock},
		"status":   newSubresource(parent.Store, status),
		"finalize": finalizeREST{newSubresource(parent.Store, finalize)},
	}, nil
}

// finalizeREST offers only update: it is how a controller gives up its finalizer.
type finalizeREST struct{ updater }

type updater interface {
	rest.Storage
	rest.Updater
	rest.ResetFieldsStrategy
}

// defaultNamespace sets the label by which selectors name a namespace.
func defaultNamespace(ns *corev1.Namespace) {
	if ns.Name == "" || ns.Labels[corev1.LabelMetadataName] == ns.Name {
		return
	}
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
}

func validateNamespace(ns *corev1.Namespace) field.ErrorList {
	var errs field.ErrorList
	known := []corev1.FinalizerName{corev1.FinalizerKubernetes, metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents}
	for i, finalizer := range ns.Spec.Finalizers {
		path := field.NewPath("spec", "finalizers").Index(i)
		for _, msg := range utilvalidation.IsQualifiedName(string(finalizer)) {
			errs = append(errs, field.Invalid(path, finalizer, msg))
		}
		if !strings.Contains(string(finalizer), "/") && !slices.Contains(known, finalizer) {
			errs = append(errs, field.Invalid(path, finalizer, "must be a standard finalizer or fully qualified"))
		}
	}
	return errs
}

func validateNamespaceStatus(ns *corev1.Namespace) field.ErrorList {
	path := field.NewPath("status", "phase")
	deleting := !ns.DeletionTimestamp.IsZero()
	switch {
	case !deleting && ns.Status.Phase != corev1.NamespaceActive:
		return field.ErrorList{field.Invalid(path, ns.Status.Phase, "must be 'Active' while the namespace is not being deleted")}
	case deleting && ns.Status.Phase != corev1.NamespaceTerminating:
		return field.ErrorList{field.Invalid(path, ns.Status.Phase, "must be 'Terminating' while the namespace is being deleted")}
	}
	return nil
}

// deleteNamespaceDuringUpdate: a namespace whose deletion was asked for goes away with
// the update that removes its last finalizer of both kinds.
func deleteNamespaceDuringUpdate(_ context.Context, _ string, obj, _ runtime.Object) bool {
	return len(obj.(*corev1.Namespace).Spec.Finalizers) == 0
}

// verbs are what namespaces offer: all but deletion of a collection, which would delete
// namespaces without their contents being looked at one by one.
type verbs interface {
	rest.Storage
	rest.Scoper
	rest.Getter
	rest.Lister
	rest.CreaterUpdater
	rest.Watcher
	rest.SingularNameProvider
	rest.ShortNamesProvider
	rest.CategoriesProvider
	rest.ResetFieldsStrategy
	rest.StorageVersionProvider
}

// namespaceREST is the storage of namespaces. Its Delete only starts the deletion: the
// namespace is Terminating until its finalizers are gone.
type namespaceREST struct {
	verbs
	store *registry.Store
	clock clock.PassiveClock
}

var (
	_ rest.GracefulDeleter            = &namespaceREST{}
	_ rest.MayReturnFullObjectDeleter = &namespaceREST{}
)

// DeleteReturnsDeletedObject implements rest.MayReturnFullObjectDeleter.
func (r *namespaceREST) DeleteReturnsDeletedObject() bool { return true }

// Delete implements rest.GracefulDeleter.
func (r *namespaceREST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	obj, err := r.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	ns := obj.(*corev1.Namespace)
	if options == nil {
		options = metav1.NewDeleteOptions(0)
	}
	if _, _, err := rest.BeforeDelete(r.store.DeleteStrategy, ctx, ns, options); err != nil {
		return nil, false, err
	}
	switch {
	case ns.DeletionTimestamp.IsZero():
		out, err := r.terminate(ctx, name, validate, options)
		return out, false, err
	case len(ns.Spec.Finalizers) > 0:
		return ns, false, nil
	}
	return r.store.Delete(ctx, name, validate, options)
}

// terminate marks the namespace as being deleted.
func (r *namespaceREST) terminate(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, error) {
	key, err := r.store.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	var preconditions storage.Preconditions
	if options.Preconditions != nil {
		preconditions.UID = options.Preconditions.UID
		preconditions.ResourceVersion = options.Preconditions.ResourceVersion
	}
	out := r.store.NewFunc()
	mark := storage.SimpleUpdate(func(existing runtime.Object) (runtime.Object, error) {
		if validate != nil {
			if err := validate(ctx, existing); err != nil {
				return nil, err
			}
		}
		ns := existing.(*corev1.Namespace)
		if ns.DeletionTimestamp.IsZero() {
			now := metav1.NewTime(r.clock.Now())
			ns.DeletionTimestamp = &now
		}
		ns.Status.Phase = corev1.NamespaceTerminating
		return ns, nil
	})
	if err := r.store.Storage.GuaranteedUpdate(ctx, key, out, false, &preconditions, mark, dryrun.IsDryRun(options.DryRun), nil); err != nil {
		return nil, storeerrors.InterpretUpdateError(err, corev1.Resource("namespaces"), name)
	}
	return out, nil
}
