package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/concord-dev/concord/e2e/cluster"
)

// A StorageVersion that does not decode stops the writes of its resource, while the server
// runs and when it starts, and of no other one. Everybody is told its key and the way out,
// which is enough.
func TestDamagedStorageVersion(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	s := c.Start(cluster.Options{}, "one")[0]
	c.WaitSettled()
	const key = "/registry/storageversions/core.configmaps"
	wayOut := "etcdctl del " + key
	post := func(path, kind, name string) answer {
		return send(t.Context(), s.Config(), http.MethodPost, path, named("v1", kind, name))
	}
	const services = "/api/v1/namespaces/default/serviceaccounts"
	for i, again := range []func(){func() {}, s.Terminate} {
		if _, err := c.Raw.Put(t.Context(), key, "garbage"); err != nil {
			t.Fatal(err)
		}
		if again(); i > 0 {
			s.Start()
		}
		cluster.Eventually(t, time.Minute, "other resources are written, this one is not", func(context.Context) error {
			if a := post(configMapsPath, "ConfigMap", fmt.Sprint("refused-", i)); a.status != http.StatusServiceUnavailable || a.retryAfter == "" || !strings.Contains(a.body, wayOut) {
				return errors.New("this one: " + a.String())
			}
			if a := post(services, "ServiceAccount", fmt.Sprint("written-", i)); a.status != http.StatusCreated && a.status != http.StatusConflict {
				return errors.New("another one: " + a.String())
			}
			if _, body, err := s.Get(t.Context(), "/readyz/storage-versions"); err != nil || !strings.Contains(body, wayOut) {
				return fmt.Errorf("readyz: %s %w", body, err)
			}
			if !strings.Contains(s.Output(), wayOut) {
				return errors.New("the log does not name it")
			}
			return nil
		})
		if _, err := c.Raw.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		s.WaitReady()
		cluster.Eventually(t, time.Minute, "the resource is written again", func(context.Context) error {
			if a := post(configMapsPath, "ConfigMap", fmt.Sprint("written-", i)); a.status != http.StatusCreated {
				return errors.New(a.String())
			}
			return nil
		})
	}
}
