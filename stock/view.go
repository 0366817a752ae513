package stock

import (
	"context"
	"fmt"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
)

// viewOf returns a client in whose view the servers report: StorageVersions hold the observer's observations, which
// are made when they are read; what a definition that is read says counts in the next observation; and identity Leases
// say that their servers report, and that this process is one of them. So the controllers of the protocol work as
// beside servers that report.
func viewOf(c client.WithWatch, o *observer, self string) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			sv, ok := obj.(*apiserverinternalv1alpha1.StorageVersion)
			if !ok {
				err := c.Get(ctx, key, obj, opts...)
				if crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok && err == nil {
					o.definitions.take(crd)
				}
				return err
			}
			gr, err := storageversion.GroupResource(key.Name)
			if err != nil {
				return err
			}
			seen, err := o.of(ctx, gr)
			if err == nil && seen == nil {
				err = apierrors.NewNotFound(storageversion.Resource, key.Name)
			}
			if err == nil {
				seen.DeepCopyInto(sv)
			}
			return err
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			switch list := list.(type) {
			case *apiserverinternalv1alpha1.StorageVersionList:
				o.list().DeepCopyInto(list)
				return nil
			case *coordinationv1.LeaseList:
				err := c.List(ctx, list, opts...)
				if err == nil && selectsIdentities(opts) {
					reporting(list, self)
				}
				return err
			}
			return c.List(ctx, list, opts...)
		},
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			if _, ok := list.(*apiserverinternalv1alpha1.StorageVersionList); ok {
				return o.watch()
			}
			return c.Watch(ctx, list, opts...)
		},
	})
}

func selectsIdentities(opts []client.ListOption) bool {
	var o client.ListOptions
	o.ApplyOptions(opts)
	return o.LabelSelector != nil && o.LabelSelector.String() == storageversion.IdentitySelector
}

// reporting makes identity Leases look like those of servers that report. Releases do not matter here, because the
// servers themselves decode and encode every object.
func reporting(list *coordinationv1.LeaseList, self string) {
	own := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: self, Namespace: storageversion.IdentityNamespace,
		Labels: map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue}}}
	list.Items = append(list.Items, own)
	for i := range list.Items {
		metav1.SetMetaDataAnnotation(&list.Items[i].ObjectMeta, storageversion.EmulationVersionAnnotation, compat.BinaryVersion().String())
		metav1.SetMetaDataAnnotation(&list.Items[i].ObjectMeta, storageversion.ReportedAnnotation, "true")
	}
}

// list returns every StorageVersion.
func (o *observer) list() *apiserverinternalv1alpha1.StorageVersionList {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := &apiserverinternalv1alpha1.StorageVersionList{}
	list.ResourceVersion = fmt.Sprint(o.version)
	for _, gr := range o.memory.Resources() {
		if sv := o.known[gr]; sv != nil {
			list.Items = append(list.Items, *sv.DeepCopy())
		}
	}
	return list
}

// watch sends all StorageVersions and every change from now on.
func (o *observer) watch() (watch.Interface, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var now []watch.Event
	for _, gr := range o.memory.Resources() {
		if sv := o.known[gr]; sv != nil {
			now = append(now, watch.Event{Type: watch.Added, Object: sv.DeepCopy()})
		}
	}
	return o.broadcast.WatchWithPrefix(now)
}

// announce tells those who watch of a changed StorageVersion.
func (o *observer) announce(action watch.EventType, sv *apiserverinternalv1alpha1.StorageVersion) {
	if o.broadcast != nil {
		_ = o.broadcast.Action(action, sv)
	}
}
