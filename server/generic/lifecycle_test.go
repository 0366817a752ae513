package generic_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/util/retry"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/server/controllers"
	"github.com/concord-dev/concord/server/generic"
	"github.com/concord-dev/concord/testbed/process"
)

// settled waits until there are no more goroutines than before, apart from a few that the shared server
// has for its requests.
func settled(t *testing.T, before int) {
	t.Helper()
	eventually(t, "the end of what was started", func(context.Context) error {
		if now := runtime.NumGoroutine(); now > before+25 {
			return fmt.Errorf("%d goroutines, %d before", now, before)
		}
		return nil
	})
}

// TestStopLeavesNothing: a server that was stopped leaves no goroutines, and can be started again with its
// data, also in the same process.
func TestStopLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	var before int
	var first string
	for i := range 2 { // the first round also starts goroutines of the shared server
		s, err := start(func(o *generic.Options) { o.DataDir = dir })
		mustDo(t, err)
		if ns := s.namespace(t); i == 0 {
			first = ns
		}
		must[*corev1.Namespace](t)(s.kube.CoreV1().Namespaces().Get(t.Context(), first, metav1.GetOptions{}))
		if err := s.stop(); err != nil {
			t.Fatalf("stop: %v", err)
		}
		if i > 0 {
			settled(t, before)
		}
		before = runtime.NumGoroutine()
	}
}

// stopWhileStarting is the role in which the test binary starts a server in a directory, and stops it at
// once.
const stopWhileStarting = "stop-while-starting"

// TestStopWhileStarting: a server that is stopped during its start ends its process without an error. It
// has a process of its own, since the hooks of its start may go on after its end.
func TestStopWhileStarting(t *testing.T) {
	if out, err := process.Self(stopWhileStarting, t.TempDir()).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// failingHook is a RESTStorageProvider whose post-start hook fails.
type failingHook struct {
	rbacrest.RESTStorageProvider
}

var errHook = errors.New("unable to initialize roles")

// PostStartHook implements genericapiserver.PostStartHookProvider.
func (failingHook) PostStartHook() (string, genericapiserver.PostStartHookFunc, error) {
	return "roles", func(genericapiserver.PostStartHookContext) error { return errHook }, nil
}

// TestHookWhileStopping: a post-start hook that fails ends the process, but not if the server is stopping;
// otherwise, SIGTERM during the start would lead to a fatal error.
func TestHookWhileStopping(t *testing.T) {
	stopping := make(chan struct{})
	hookOf := func(p controlplaneapiserver.RESTStorageProvider) (string, genericapiserver.PostStartHookFunc) {
		hooked, ok := generic.Stoppable([]controlplaneapiserver.RESTStorageProvider{p}, stopping)[0].(genericapiserver.PostStartHookProvider)
		if !ok {
			t.Fatalf("%T has lost its hook", p)
		}
		name, hook, err := hooked.PostStartHook()
		mustDo(t, err)
		return name, hook
	}
	if name, _ := hookOf(rbacrest.RESTStorageProvider{}); name != "rbac/bootstrap-roles" {
		t.Errorf("RBAC's hook is %q", name)
	}
	_, hook := hookOf(failingHook{})
	c := genericapiserver.PostStartHookContext{Context: t.Context()}
	if err := hook(c); !errors.Is(err, errHook) {
		t.Errorf("while the server starts: %v", err)
	}
	close(stopping)
	if err := hook(c); err != nil {
		t.Errorf("while it stops: %v", err)
	}
}

func startAndStop(ctx context.Context, args []string) error {
	o := generic.NewOptions()
	o.DataDir, o.ControlPlane.SecureServing.BindPort = args[0], 0
	if err := o.Complete(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	served := false
	err := generic.Run(ctx, o, func(*generic.Server) {
		served = true
		cancel()
	})
	if !served {
		err = errors.Join(err, errors.New("it has never served"))
	}
	return err
}

// TestTerms: the controllers end with the context of their term, and a new term starts them again.
func TestTerms(t *testing.T) {
	s := startFor(t, func(o *generic.Options) { o.DataDir, o.Join.NoControllers = t.TempDir(), true })
	pki := filepath.Dir(s.Kubeconfig())
	config := controllers.Config{
		Client: s.admin, RootCA: must[[]byte](t)(os.ReadFile(filepath.Join(pki, "ca.crt"))),
		CACertFile: filepath.Join(pki, "ca.crt"), CAKeyFile: filepath.Join(pki, "ca.key"), TokenKeyFile: filepath.Join(pki, "sa.key"),
	}
	// The shared server's garbage collector has a few more with every new CRD, and some only after a while.
	const ofShared = 20
	before := controllerGoroutines("")
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- controllers.Run(ctx, config) }()
		s.namespace(t)
		eventually(t, "so many controllers that an end of them shows", func(context.Context) error {
			if now := controllerGoroutines(""); now < before+2*ofShared {
				return fmt.Errorf("%d goroutines of controllers, %d before", now, before)
			}
			return nil
		})
		cancel()
		select {
		case err := <-ended:
			mustDo(t, err)
		case <-time.After(patience):
			t.Fatal("a term does not end")
		}
		eventually(t, "the end of the controllers", func(context.Context) error {
			if now := controllerGoroutines(""); now > before+ofShared {
				return fmt.Errorf("%d goroutines of controllers, %d before", now, before)
			}
			return nil
		})
	}
}

// TestGarbageCollectorOff: with --enable-garbage-collector=false, the server sets no finalizers that say
// what to do with dependents, so its garbage collector does not run either.
func TestGarbageCollectorOff(t *testing.T) {
	const namespaces, collects = "namespace.(*NamespaceController).Run(", "garbagecollector.(*GarbageCollector).Run("
	s := startFor(t, func(o *generic.Options) { o.DataDir, o.ControlPlane.Etcd.EnableGarbageCollection = t.TempDir(), false })
	s.namespace(t) // returns when its controllers run
	eventually(t, "all controllers in the shared server and in this one, but one garbage collector", func(context.Context) error {
		if inBoth, inOne := controllerGoroutines(namespaces), controllerGoroutines(collects); inBoth != 2 || inOne != 1 {
			return fmt.Errorf("%s in %d goroutines, %s in %d", namespaces, inBoth, collects, inOne)
		}
		return nil
	})
}

// controllerGoroutines counts the goroutines in a function of Kubernetes' controllers, or in any if it is
// empty.
func controllerGoroutines(of string) int {
	stacks := make([]byte, 64<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	n := 0
	for _, stack := range bytes.Split(stacks, []byte("\n\n")) {
		if bytes.Contains(stack, []byte("k8s.io/kubernetes/pkg/controller/"+of)) {
			n++
		}
	}
	return n
}

// TestLockLost: a leader that loses its lock stops its controllers, and starts them when it has the lock
// again.
func TestLockLost(t *testing.T) {
	s := startFor(t, func(o *generic.Options) { o.DataDir, o.Join.ControllerLeaseDuration = t.TempDir(), time.Second })
	s.namespace(t)
	leases, own := s.kube.CoordinationV1().Leases("kube-system"), s.leader(t)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		lease, err := leases.Get(t.Context(), controllers.LockName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		thief, now := "thief", metav1.NowMicro()
		lease.Spec.HolderIdentity, lease.Spec.RenewTime, lease.Spec.AcquireTime = &thief, &now, &now
		_, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{})
		return err
	})
	mustDo(t, err)
	eventually(t, "the lock", func(ctx context.Context) error {
		lease, err := leases.Get(ctx, controllers.LockName, metav1.GetOptions{})
		if err == nil && (lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != own) {
			err = errors.New("somebody else has it")
		}
		return err
	})
	if lease := must[*coordinationv1.Lease](t)(leases.Get(t.Context(), controllers.LockName, metav1.GetOptions{})); *lease.Spec.LeaseTransitions < 1 {
		t.Errorf("%d transitions: it was never lost", *lease.Spec.LeaseTransitions)
	}
	ns := s.namespace(t)
	must[*corev1.ServiceAccount](t)(s.kube.CoreV1().ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{}))
}

func TestNamespaceHasWhatClientsExpect(t *testing.T) {
	ns := shared.namespace(t)
	ca := string(must[[]byte](t)(os.ReadFile(filepath.Join(filepath.Dir(shared.Kubeconfig()), "ca.crt"))))
	eventually(t, "kube-root-ca.crt", func(ctx context.Context) error {
		published, err := shared.kube.CoreV1().ConfigMaps(ns).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if err == nil && published.Data["ca.crt"] != ca {
			err = fmt.Errorf("it has %q", published.Data)
		}
		return err
	})
}

func TestTrustBundle(t *testing.T) {
	ca := string(must[[]byte](t)(os.ReadFile(filepath.Join(filepath.Dir(shared.Kubeconfig()), "ca.crt"))))
	eventually(t, "the cluster's trust bundle", func(ctx context.Context) error {
		bundles, err := shared.kube.CertificatesV1().ClusterTrustBundles().List(ctx, metav1.ListOptions{FieldSelector: "spec.signerName=kubernetes.io/kube-apiserver-serving"})
		if err == nil && (len(bundles.Items) != 1 || strings.TrimSpace(bundles.Items[0].Spec.TrustBundle) != strings.TrimSpace(ca)) {
			err = fmt.Errorf("there are %v", bundles.Items)
		}
		return err
	})
}

// TestCascade: an object is deleted with its owner by Kubernetes' garbage collector: after it, or
// before it with --cascade=foreground.
func TestCascade(t *testing.T) {
	ctx, ns := t.Context(), shared.namespace(t)
	maps := shared.kube.CoreV1().ConfigMaps(ns)
	for policy, first := range map[metav1.DeletionPropagation]string{metav1.DeletePropagationBackground: "owner", metav1.DeletePropagationForeground: "owned"} {
		owner := must[*corev1.ConfigMap](t)(maps.Create(ctx, configMap("owner", nil), metav1.CreateOptions{}))
		owned := must[*corev1.ConfigMap](t)(maps.Create(ctx, configMap("owned", nil, metav1.OwnerReference{
			APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID, BlockOwnerDeletion: ptr.To(true),
		}), metav1.CreateOptions{}))
		events := must[watch.Interface](t)(maps.Watch(ctx, metav1.ListOptions{ResourceVersion: owned.ResourceVersion}))
		defer events.Stop()
		mustDo(t, maps.Delete(ctx, "owner", metav1.DeleteOptions{PropagationPolicy: &policy}))
		var deleted []string
		for deadline := time.After(patience); len(deleted) < 2; {
			select {
			case e, open := <-events.ResultChan():
				if !open {
					t.Fatalf("%s: the watch ended, %v are deleted", policy, deleted)
				}
				if made, ok := e.Object.(*corev1.ConfigMap); ok && e.Type == watch.Deleted {
					deleted = append(deleted, made.Name)
				}
			case <-deadline:
				t.Fatalf("%s: only %v are deleted", policy, deleted)
			}
		}
		if deleted[0] != first {
			t.Errorf("%s: %v are deleted in this order", policy, deleted)
		}
	}
}

func TestQuota(t *testing.T) {
	ctx, ns := t.Context(), shared.namespace(t)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/secrets": resource.MustParse("1")}}}
	must[*corev1.ResourceQuota](t)(shared.kube.CoreV1().ResourceQuotas(ns).Create(ctx, quota, metav1.CreateOptions{}))
	eventually(t, "the quota's status", func(ctx context.Context) error {
		q, err := shared.kube.CoreV1().ResourceQuotas(ns).Get(ctx, "q", metav1.GetOptions{})
		if err == nil && len(q.Status.Hard) == 0 {
			err = errors.New("it is empty")
		}
		return err
	})
	secret := func(name string) *corev1.Secret { return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	eventually(t, "a secret, once admission knows the status too", func(ctx context.Context) error {
		_, err := shared.kube.CoreV1().Secrets(ns).Create(ctx, secret("a"), metav1.CreateOptions{})
		if err != nil && !strings.Contains(err.Error(), "status unknown for quota") {
			t.Fatal(err)
		}
		return err
	})
	if _, err := shared.kube.CoreV1().Secrets(ns).Create(ctx, secret("b"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota") {
		t.Errorf("a second secret: %v", err)
	}
	// Only the quota controller notices deletions.
	mustDo(t, shared.kube.CoreV1().Secrets(ns).Delete(ctx, "a", metav1.DeleteOptions{}))
	eventually(t, "room for a secret", func(ctx context.Context) error {
		_, err := shared.kube.CoreV1().Secrets(ns).Create(ctx, secret("b"), metav1.CreateOptions{})
		return err
	})
}

func TestPolicies(t *testing.T) {
	ctx, ns := t.Context(), shared.namespace(t)
	api := shared.kube.AdmissionregistrationV1()
	rules := &admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}},
		ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
		}}},
	}
	named := metav1.ObjectMeta{Name: ns}
	must[*admissionv1.ValidatingAdmissionPolicy](t)(api.ValidatingAdmissionPolicies().Create(ctx, &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: named,
		Spec: admissionv1.ValidatingAdmissionPolicySpec{MatchConstraints: rules, Validations: []admissionv1.Validation{{Expression: "object.metadata.name != 'bad'", Message: "bad is not allowed"}}}}, metav1.CreateOptions{}))
	must[*admissionv1.ValidatingAdmissionPolicyBinding](t)(api.ValidatingAdmissionPolicyBindings().Create(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: named,
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: ns, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}, metav1.CreateOptions{}))
	must[*admissionv1.MutatingAdmissionPolicy](t)(api.MutatingAdmissionPolicies().Create(ctx, &admissionv1.MutatingAdmissionPolicy{ObjectMeta: named,
		Spec: admissionv1.MutatingAdmissionPolicySpec{MatchConstraints: rules, ReinvocationPolicy: admissionv1.NeverReinvocationPolicy, Mutations: []admissionv1.Mutation{{
			PatchType:          admissionv1.PatchTypeApplyConfiguration,
			ApplyConfiguration: &admissionv1.ApplyConfiguration{Expression: "Object{metadata: Object.metadata{labels: {'marked': 'yes'}}}"},
		}}}}, metav1.CreateOptions{}))
	must[*admissionv1.MutatingAdmissionPolicyBinding](t)(api.MutatingAdmissionPolicyBindings().Create(ctx, &admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: named,
		Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: ns}}, metav1.CreateOptions{}))
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	eventually(t, "a policy that refuses", func(ctx context.Context) error {
		_, err := shared.kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap("bad", nil), dry)
		if err == nil || !strings.Contains(err.Error(), "bad is not allowed") {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	eventually(t, "a policy that changes", func(ctx context.Context) error {
		got, err := shared.kube.CoreV1().ConfigMaps(ns).Create(ctx, configMap("good", nil), dry)
		if err == nil && got.Labels["marked"] != "yes" {
			err = fmt.Errorf("labels %v", got.Labels)
		}
		return err
	})
	eventually(t, "the policy's status", func(ctx context.Context) error {
		p, err := api.ValidatingAdmissionPolicies().Get(ctx, ns, metav1.GetOptions{})
		if err == nil && (p.Status.TypeChecking == nil || p.Status.ObservedGeneration != p.Generation) {
			err = errors.New("it was not checked")
		}
		return err
	})
}
