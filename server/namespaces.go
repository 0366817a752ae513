package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/rewrite"
	"github.com/concord-dev/concord/stored"
)

// immortalNamespaces exist always and cannot be deleted.
var immortalNamespaces = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}

// contentRecheck is how soon a namespace whose contents wait for their finalizers is looked at again.
const contentRecheck = 2 * time.Second

var errContentRemains = errors.New("contents remain")

// namespaces empties namespaces that are being deleted and then lets them go. It runs on
// the elected server.
type namespaces struct {
	client    kubernetes.Interface
	metadata  metadata.Interface
	discovery discovery.DiscoveryInterface
	informer  coreinformers.NamespaceInformer
	// etcd has all objects, under prefix.
	etcd   rewrite.Reader
	prefix string
}

func newNamespaces(config *rest.Config, informer coreinformers.NamespaceInformer, etcd rewrite.Reader, prefix string) (*namespaces, error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &namespaces{
		client: kube, metadata: meta, discovery: kube.Discovery(),
		informer: informer, etcd: etcd, prefix: prefix,
	}, nil
}

// Run works until ctx ends. It may be called again afterwards.
func (n *namespaces) Run(ctx context.Context) {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.DefaultTypedControllerRateLimiter[string](),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "namespaces"})
	enqueue := func(obj any) {
		if ns, ok := obj.(*corev1.Namespace); ok && ns.DeletionTimestamp != nil {
			queue.Add(ns.Name)
		}
	}
	handler, err := n.informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, obj any) { enqueue(obj) },
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Namespaces cannot be watched: none will be emptied")
		return
	}
	defer func() { _ = n.informer.Informer().RemoveEventHandler(handler) }()
	go func() {
		<-ctx.Done()
		queue.ShutDown()
	}()
	for n.next(ctx, queue) {
	}
}

func (n *namespaces) next(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string]) bool {
	name, stop := queue.Get()
	if stop {
		return false
	}
	defer queue.Done(name)
	err := n.sync(ctx, name)
	switch {
	case err == nil:
		queue.Forget(name)
	case errors.Is(err, errContentRemains):
		queue.Forget(name)
		queue.AddAfter(name, contentRecheck)
	default:
		klog.FromContext(ctx).Error(err, "Namespace cannot be emptied yet", "namespace", name)
		queue.AddRateLimited(name)
	}
	return true
}

// sync deletes what a terminating namespace holds and, when nothing is left, its finalizer.
func (n *namespaces) sync(ctx context.Context, name string) error {
	ns, err := n.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if ns.DeletionTimestamp == nil || len(ns.Spec.Finalizers) == 0 {
		return nil
	}
	if err := n.empty(ctx, name); err != nil {
		return errors.Join(err, n.report(ctx, ns, err))
	}
	ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	_, err = n.client.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// report says in the namespace's status why it is still there.
func (n *namespaces) report(ctx context.Context, ns *corev1.Namespace, why error) error {
	condition := corev1.NamespaceCondition{
		Type: corev1.NamespaceDeletionContentFailure, Status: corev1.ConditionTrue,
		Reason: "ContentDeletionFailed", Message: why.Error(), LastTransitionTime: metav1.Now(),
	}
	if errors.Is(why, errContentRemains) {
		condition.Type, condition.Reason = corev1.NamespaceContentRemaining, "SomeResourcesRemain"
	}
	for _, old := range ns.Status.Conditions {
		if old.Type == condition.Type && old.Message == condition.Message {
			return nil
		}
	}
	ns.Status.Conditions = append(slices.DeleteFunc(ns.Status.Conditions, func(c corev1.NamespaceCondition) bool { return c.Type == condition.Type }), condition)
	_, err := n.client.CoreV1().Namespaces().UpdateStatus(ctx, ns, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// empty deletes all objects of every namespaced resource that can be listed and deleted,
// as far as it gets. It returns errContentRemains while some are still there.
func (n *namespaces) empty(ctx context.Context, name string) error {
	resources, err := n.deletable()
	errs := []error{err}
	var remaining []string
	for _, gvr := range resources {
		left, err := n.deleteAll(ctx, name, gvr)
		errs = append(errs, err)
		if left > 0 {
			remaining = append(remaining, fmt.Sprintf("%d %s", left, gvr.GroupResource()))
		}
	}
	foreign, err := n.foreign(ctx, name, resources)
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	remaining = append(remaining, foreign...)
	if len(remaining) > 0 {
		return fmt.Errorf("%s: %w", strings.Join(remaining, ", "), errContentRemains)
	}
	return nil
}

// deleteAll deletes all objects of a resource and returns how many are left.
func (n *namespaces) deleteAll(ctx context.Context, name string, gvr schema.GroupVersionResource) (int, error) {
	client := n.metadata.Resource(gvr).Namespace(name)
	background := metav1.DeletePropagationBackground
	err := client.DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("delete %s: %w", gvr.GroupResource(), err)
	}
	left, err := client.List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil // its CRD has gone meanwhile, and what it held with it
	}
	if err != nil {
		return 0, fmt.Errorf("list %s: %w", gvr.GroupResource(), err)
	}
	return len(left.Items), nil
}

// foreign tells what a namespace holds of resources that only other servers serve: those of
// another release, or with other APIs switched on. It goes when one of them is elected.
func (n *namespaces) foreign(ctx context.Context, name string, own []schema.GroupVersionResource) ([]string, error) {
	list, err := n.client.InternalV1alpha1().StorageVersions().List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // is switched off: nobody tells
	}
	if err != nil {
		return nil, fmt.Errorf("list StorageVersions: %w", err)
	}
	var held []string
	for i := range list.Items {
		gr, err := storageversion.GroupResource(list.Items[i].Name)
		if err != nil || slices.ContainsFunc(own, func(gvr schema.GroupVersionResource) bool { return gvr.GroupResource() == gr }) {
			continue
		}
		served := func(r agree.Report) bool { return len(r.Served) > 0 }
		if !slices.ContainsFunc(storageversion.Reports(&list.Items[i]), served) {
			continue
		}
		start := stored.ResourcePrefix(n.prefix, gr, false) + name + "/"
		page, err := n.etcd.Range(ctx, start, clientv3.GetPrefixRangeEnd(start), 1, 0)
		if err != nil {
			return nil, fmt.Errorf("count %s: %w", gr, err)
		}
		if page.Count > 0 {
			held = append(held, fmt.Sprintf("%d %s, which the elected server does not serve", page.Count, gr))
		}
	}
	return held, nil
}

// deletable lists what discovery knows. With an error the list is incomplete: what is on
// it can be emptied, but nothing more can be concluded.
func (n *namespaces) deletable() ([]schema.GroupVersionResource, error) {
	lists, err := n.discovery.ServerPreferredNamespacedResources()
	if err != nil {
		err = fmt.Errorf("discovery: %w", err)
	}
	lists = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "deletecollection"}}, lists)
	byResource, parseErr := discovery.GroupVersionResources(lists)
	if parseErr != nil {
		return nil, errors.Join(err, parseErr)
	}
	sorted := make([]schema.GroupVersionResource, 0, len(byResource))
	for gvr := range byResource {
		sorted = append(sorted, gvr)
	}
	slices.SortFunc(sorted, func(a, b schema.GroupVersionResource) int {
		if a.String() < b.String() {
			return -1
		}
		return 1
	})
	return sorted, err
}
