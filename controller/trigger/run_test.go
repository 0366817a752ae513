package trigger

import (
	"context"
	"testing"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/util/wait"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

func storageVersionObject() *apiserverinternalv1alpha1.StorageVersion {
	return &apiserverinternalv1alpha1.StorageVersion{}
}

// TestRun: the watches lead to looks, and a server that has started ends the wait for it.
func TestRun(t *testing.T) {
	w, c := newWorld(t, served)
	w.report(v1)
	lease := w.lease("apiserver-1", false)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	eventually(t, func() bool {
		s := &migrationv1alpha1.StorageState{}
		s, err := get(ctx, c.cfg.Client, migrationv1alpha1.StateName(cronJobs), s)
		return err == nil && s != nil && s.Status.StorageVersionUID != ""
	})
	lease.Annotations = map[string]string{"concord.dev/reported": "true"}
	if err := c.cfg.Client.Update(ctx, lease); err != nil {
		t.Fatal(err)
	}
	// The clock stands still: nothing but the Lease's change can lead here.
	eventually(t, func() bool {
		var list migrationv1alpha1.StorageVersionMigrationList
		return c.cfg.Client.List(ctx, &list) == nil && len(list.Items) == 1
	})
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), 5*time.Millisecond, 20*time.Second, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatal("not in time")
	}
}
