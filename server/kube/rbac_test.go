package kube_test

import (
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/concord-dev/concord/e2e/access"
	testbed "github.com/concord-dev/concord/testbed/cluster"
)

// TestPermissions compares everybody's permissions on the objects that the protocol lives on with
// testdata/permissions.txt. With CONCORD_UPDATE=1 it writes that file.
func TestPermissions(t *testing.T) {
	t.Parallel()
	c := newControl(t)
	s := c.ready(ours, "one")
	s.migrated(time.Minute) // the controllers' roles are there
	access.Check(t, s.Kube(), filepath.Join("testdata", "permissions.txt"))
	t.Run("Requests", func(t *testing.T) { requestsAreRefused(t, s) })
}

// requestsAreRefused sends requests that the table says are refused.
func requestsAreRefused(t *testing.T, s *apiserver) {
	for token, want := range map[string]int{"": http.StatusForbidden, strangerToken: http.StatusForbidden, "wrong": http.StatusUnauthorized, adminToken: http.StatusOK} {
		for _, path := range []string{
			"/apis/internal.apiserver.k8s.io/v1alpha1/storageversions", "/apis/migration.k8s.io/v1alpha1/storagestates",
			"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", "/concord/census/configmaps", "/metrics",
		} {
			status, body, err := testbed.Get(t.Context(), s.as(token), path, nil)
			if err != nil || status != want {
				t.Errorf("token %q, %s: %d, want %d, error %v: %.200s", token, path, status, want, err, body)
			}
		}
	}
}
