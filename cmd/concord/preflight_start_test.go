package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/compat"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/server/planning"
	"github.com/concord-dev/concord/stored"
)

// starts asserts that a server of the case's release starts on the etcd unless the command calls
// a resource unsafe that such a server stores: it does not look at custom resources.
func (test preflightCase) starts(t *testing.T, etcd *clientv3.Client, prefix string, unsafe []string) {
	t.Helper()
	binary := compat.BinaryVersion()
	release, err := compat.ParseTarget(binary, "to", test.to, test.to < compat.Binary)
	requireNoError(t, err)
	target := compat.ReleaseTarget(planning.Lifecycles(), release)
	if release.EqualTo(binary) {
		plan, err := compat.NewPlan(planning.Lifecycles(), compat.Options{})
		requireNoError(t, err)
		target = plan.Target()
	}
	known := target.Resources()
	unsafe = slices.DeleteFunc(unsafe, func(name string) bool { return !slices.Contains(known, schema.ParseGroupResource(name)) })
	err = stored.Start{Layout: stored.Layout{Prefix: prefix}, Target: target, Keys: noKeys{}}.Check(t.Context(), migratestore.NewEtcd(etcd))
	if (err != nil) != (len(unsafe) > 0) {
		t.Errorf("preflight calls %q unsafe, and a start says %v", unsafe, err)
	}
	for _, name := range unsafe {
		if err != nil && !strings.Contains(err.Error(), name+" as ") {
			t.Errorf("a start does not name %s: %v", name, err)
		}
	}
}

// noKeys leave keys out of the check.
type noKeys struct{}

var _ stored.Keys = noKeys{}

// Opening implements stored.Keys.
func (noKeys) Opening(reader migratestore.Reader, _ stored.Layout) migratestore.Reader { return reader }

// CheckStored implements stored.Keys.
func (noKeys) CheckStored(context.Context, migratestore.Reader, stored.Layout, stored.Sets, []schema.GroupResource) error {
	return nil
}

// CheckOthers implements stored.Keys.
func (noKeys) CheckOthers(context.Context, migratestore.Reader, stored.Layout, []schema.GroupResource, agree.ServerID, time.Duration) error {
	return nil
}
