package kube_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/join/roles"
)

// identities returns the identity Leases in the cluster: those of servers, and those that upstream's code keeps in
// Concord's processes.
func (s *apiserver) identities(ctx context.Context) (servers, upstream []coordinationv1.Lease, err error) {
	list, err := s.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace).List(ctx, metav1.ListOptions{LabelSelector: storageversion.Identities.String()})
	if err != nil {
		return nil, nil, err
	}
	for _, lease := range list.Items {
		if storageversion.IsServer(lease.Name) {
			servers = append(servers, lease)
		} else {
			upstream = append(upstream, lease)
		}
	}
	return servers, upstream, nil
}

// testBrokenWebhook: an admission webhook for all requests that does not answer keeps no server from joining, and no
// running server from staying.
func testBrokenWebhook(t *testing.T) {
	c := newControl(t)
	first := c.ready(ours, "one")
	first.migrated(time.Minute)
	every := admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}},
	}
	if _, err := first.Kube().AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "broken"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "broken.example.com", Rules: []admissionregistrationv1.RuleWithOperations{every},
			ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://" + cluster.FreeAddress(t))},
			FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To[int32](1),
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := first.Kube().CoreV1().ConfigMaps(metav1.NamespaceDefault)
	eventually(t, time.Minute, "the webhook refuses", func(ctx context.Context) error {
		_, err := config.Create(ctx, configMap("refused"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return fmt.Errorf("a ConfigMap was created")
		}
		return nil
	})
	second := c.ready(ours, "two")
	second.agreed(time.Minute, 2)
	first.end() // the other server has to be elected and to renew Leases
	before := time.Now()
	eventually(t, time.Minute, "the second server renews its Leases", func(ctx context.Context) error {
		lease, err := second.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace).Get(ctx, "concord-controllers", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil || !lease.Spec.RenewTime.After(before.Add(2*time.Second)) {
			return fmt.Errorf("the election's Lease was renewed at %v, by %s", lease.Spec.RenewTime, ptr.Deref(lease.Spec.HolderIdentity, ""))
		}
		servers, _, err := second.identities(ctx)
		if err == nil && (len(servers) != 1 || !servers[0].Spec.RenewTime.After(before.Add(2*time.Second))) {
			err = fmt.Errorf("the servers are %v", servers)
		}
		return err
	})
	second.agreed(time.Minute, 1)
}

// TestCrash: two servers have two identity Leases each, one of which is upstream's code's. Only those of the
// protocol count: that of a crashed server counts for its own duration, not for the hour of upstream's. Each
// controller acts as a user of its own.
func TestCrash(t *testing.T) {
	t.Parallel()
	c := newControl(t)
	two := c.ready(ours, "two", "--controllers=false") // if it ran controllers, it would be elected before the other one is ready
	one := c.ready(ours, "one", c.auditFlags()...)
	one.agreed(time.Minute, 2)
	if _, hooks, err := one.Get(t.Context(), "/readyz?verbose"); err != nil || strings.Contains(hooks, "lease-garbage-collector") {
		t.Errorf("upstream's code deletes identity Leases by this server's clock: %v, %s", err, hooks)
	}
	eventually(t, time.Minute, "four identity Leases", func(ctx context.Context) error {
		servers, upstream, err := one.identities(ctx)
		if err == nil && (len(servers) != 2 || len(upstream) != 2) {
			err = fmt.Errorf("%d of servers, %d of upstream's code", len(servers), len(upstream))
		}
		return err
	})
	one.migrated(time.Minute)
	for _, lock := range []string{roles.ControllersLock, roles.MirrorLock} {
		one.leads(time.Minute, lock)
	}
	two.Kill()
	one.agreed(time.Minute, 1)
	one.migrated(time.Minute)
	t.Run("Roles", func(t *testing.T) { actInRoles(t, c, one) })
	t.Run("RolesAgain", func(t *testing.T) { rolesAgain(t, one) })
}

// leads waits until a Lease of an election has a holder, which has to be this server.
func (s *apiserver) leads(timeout time.Duration, lock string) {
	s.t.Helper()
	eventually(s.t, timeout, lock+" is held", func(ctx context.Context) error {
		lease, err := s.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace).Get(ctx, lock, metav1.GetOptions{})
		if err != nil {
			return err
		}
		holder := ptr.Deref(lease.Spec.HolderIdentity, "")
		if holder == "" {
			return errors.New("nobody holds it")
		}
		if own := strings.TrimPrefix(s.URL(), "https://") + "_"; !strings.HasPrefix(holder, own) {
			s.t.Errorf("%s is held by %s, want %s…", lock, holder, own)
		}
		return nil
	})
}

// TestLastWriteOfStock: a stock kube-apiserver that is told to stop deletes its Lease, and then completes a request
// that had begun, in the former storage version. The others agree before that. Nothing is migrated and pruned until
// --migration-settle is over, and the late object is migrated with the others. The epoch rises when the stock server
// comes, and when it goes.
func TestLastWriteOfStock(t *testing.T) {
	t.Parallel()
	c := newControl(t)
	s := c.ready(ours, "one", "--migration-settle=30s")
	const n = 5
	s.createWidgets(n)
	s.migrated(3 * time.Minute)
	alone := s.epoch(mutatingPolicies)
	// A request waits for all that is done between its begin and its end.
	other := c.ready(stock, "other", "--shutdown-delay-duration=3s", "--request-timeout=5m")
	eventually(t, time.Minute, "the stock server serves the widgets", func(ctx context.Context) error {
		_, err := other.widgets().List(ctx, metav1.ListOptions{})
		return err
	})
	s.disagreed(time.Minute)
	with := s.epoch(mutatingPolicies)
	complete := other.beginCreate("late")
	s.flip("v2")
	s.storedVersions(time.Minute, "v1", "v2")

	other.Run().Expect()
	other.Signal(syscall.SIGTERM)
	s.agreed(time.Minute, 1)
	if after := s.epoch(mutatingPolicies); with <= alone || after <= with {
		t.Errorf("the epoch was %d without the stock server, %d with it, and is %d after it", alone, with, after)
	}
	m := &migrationv1alpha1.StorageVersionMigration{}
	m.Name = "mine"
	m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: widgets.Group, Version: "v1", Resource: widgets.Resource}
	must(t, s.Objects().Create(t.Context(), m))
	eventually(t, time.Minute, "a migration says that it waits", func(ctx context.Context) error {
		if err := s.Objects().Get(ctx, client.ObjectKeyFromObject(m), m); err != nil {
			return err
		}
		if told := migrationv1alpha1.Waiting(m); !strings.Contains(told, "--migration-settle") {
			return fmt.Errorf("it says %q, %v", told, m.Status.Conditions)
		}
		return nil
	})
	if found := c.encodings(); found["example.com/v1"] != n {
		t.Errorf("before the last write in etcd are %v", found)
	}
	complete()
	if found, err := c.value(t.Context(), registry+"example.com/widgets/default/late"); err != nil || found != "example.com/v1" {
		t.Errorf("the stock server wrote %s, error %v", found, err)
	}
	s.storedVersions(2*time.Minute, "v2")
	if found := c.encodings(); found["example.com/v2"] != n+1 || len(found) != 1 {
		t.Errorf("in etcd are %v", found)
	}
	s.readable(n + 1)
}

// beginCreate sends the head and a part of the body of a request that creates a widget. The function that it returns
// sends the rest, and fails the test if the request does not succeed.
func (s *apiserver) beginCreate(name string) (complete func()) {
	s.t.Helper()
	address := strings.TrimPrefix(s.URL(), "https://")
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // its certificate is its own
	must(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	body, err := json.Marshal(widget(name))
	must(s.t, err)
	send := func(text string) {
		if _, err := conn.Write([]byte(text)); err != nil {
			s.t.Fatal(err)
		}
	}
	send(fmt.Sprintf("POST /apis/example.com/v1/namespaces/default/widgets HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		address, adminToken, len(body), body[:20]))
	return func() {
		send(string(body[20:]))
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		must(s.t, err)
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusCreated {
			s.t.Errorf("the last write was answered with %s", answer.Status)
		}
	}
}
