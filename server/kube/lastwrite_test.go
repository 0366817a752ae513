package kube_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// A stock kube-apiserver that is told to stop deletes its Lease, and completes a request that it
// has begun, in the version that the definition stored then. All others agree before; nothing is
// migrated and pruned until --migration-settle is over, and that object is migrated with the others.
func TestLastWriteOfStock(t *testing.T) {
	t.Parallel()
	c := newControl(t)
	s := c.ready(ours, "one", "--migration-settle=30s")
	const n = 5
	s.createWidgets(n)
	s.migrated(3 * time.Minute)
	other := c.ready(stock, "other", "--shutdown-delay-duration=3s")
	eventually(t, time.Minute, "the stock server serves the widgets", func(ctx context.Context) error {
		_, err := other.widgets().List(ctx, metav1.ListOptions{})
		return err
	})
	s.disagreed(time.Minute)
	complete := other.beginCreate("late")
	s.flip("v2")
	s.storedVersions(time.Minute, "v1", "v2")

	other.Run().Expect()
	other.Signal(syscall.SIGTERM)
	s.agreed(time.Minute, 1)
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

// beginCreate sends the head and a part of the body of a request that creates a widget. The rest is
// sent by what it returns, which has to be answered with success.
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
