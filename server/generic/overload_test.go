package generic_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// crowd is how many clients make the flood. A user has 300 places in queues.
const crowd = 600

// comeBack is when a client that was refused tries again, as it is told to.
const comeBack = time.Second

// TestFlood: where the clients of one user send more than the server can do, they are told to come
// back later, and the requests of another user are served, none of them refused. The cost to that
// user is measured by bench/server. Where etcd does not answer, on a machine that does much besides,
// either is told to try again, which is no matter of fairness.
func TestFlood(t *testing.T) {
	ns := shared.namespace(t)
	flood, normal := shared.editor(t, ns, "flood"), shared.editor(t, ns, "normal")
	ctx, end := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer end()
	var served, refused atomic.Int64
	for client := range crowd {
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				switch err := createOnce(ctx, flood, ns, fmt.Sprintf("flood-%d-%d", client, n)); {
				case err == nil:
					served.Add(1)
				case ctx.Err() != nil:
				case isOverload(err):
					refused.Add(1)
					pause(ctx, comeBack)
				case apierrors.IsServiceUnavailable(err):
					pause(ctx, comeBack)
				default:
					t.Errorf("flood: %v", err)
					return
				}
			}
		})
	}
	isRefused := func(context.Context) error {
		if refused.Load() == 0 {
			return fmt.Errorf("%d requests were served", served.Load())
		}
		return nil
	}
	eventually(t, "requests of the flood are refused", isRefused)
	for n := range 50 {
		eventually(t, fmt.Sprintf("request %d of the other user is served", n), func(ctx context.Context) error {
			err := createOnce(ctx, normal, ns, fmt.Sprintf("normal-%d", n))
			if err != nil && !apierrors.IsServiceUnavailable(err) {
				t.Fatal(err)
			}
			return err
		})
	}
	refused.Store(0)
	eventually(t, "the flood goes on", isRefused)
	if served.Load() == 0 {
		t.Error("nothing of the flood was served")
	}
}

// pause is over after a time, or with the context.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// isOverload says whether a request was refused with 429 and the time after which to come back.
func isOverload(err error) bool {
	_, delay := apierrors.SuggestsClientDelay(err)
	return apierrors.IsTooManyRequests(err) && delay
}

// editor is the client of a new service account that may edit a namespace's objects.
func (s *running) editor(t *testing.T, ns, name string) kubernetes.Interface {
	t.Helper()
	must[*corev1.ServiceAccount](t)(s.kube.CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
	must[*rbacv1.RoleBinding](t)(s.kube.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: ns}},
	}, metav1.CreateOptions{}))
	config := rest.AnonymousClientConfig(s.admin)
	config.BearerToken, config.QPS = s.token(t, ns, name), -1
	client := kubernetes.NewForConfigOrDie(config)
	eventually(t, name+" may create", func(ctx context.Context) error { return createOnce(ctx, client, ns, name) })
	return client
}

// createOnce creates a ConfigMap, and does not come back where it is told to.
func createOnce(ctx context.Context, client kubernetes.Interface, ns, name string) error {
	var status int
	err := client.CoreV1().RESTClient().Post().MaxRetries(0).Namespace(ns).Resource("configmaps").Body(configMap(name, nil)).Do(ctx).StatusCode(&status).Error()
	if err == nil && status != http.StatusCreated {
		err = fmt.Errorf("answered with %d", status)
	}
	return err
}
