package claim

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
)

// newer is a server of a newer release than those that report the resource; it does not serve the resource.
const newer agree.ServerID = "apiserver-newer"

// joins registers the newer server. Its Lease says that it has reported everything, or not yet.
func (w *world) joins(reported bool) {
	w.t.Helper()
	w.lease(newer, "1.37")
	lease := leaseObject(w.t, w, newer)
	if reported {
		lease.Annotations[storageversion.ReportedAnnotation] = "true"
	}
	w.must(w.client.Update(context.Background(), lease))
}

// TestNobodyMay: if all servers that serve the resource are too old for a migration, because of a newer server, the
// migration says so. One of these servers writes that, once. The migration begins when the newer server is gone.
func TestNobodyMay(t *testing.T) {
	w := newMigrating(t)
	id := self
	w.c.cfg.ID = func() agree.ServerID { return id }
	waits := func() string {
		t.Helper()
		w.step()
		return migrationv1alpha1.Waiting(w.read())
	}
	w.joins(false)
	id = other
	if why := waits(); why != "" {
		t.Errorf("while the newer server has not reported it waits: %s", why)
	}
	w.joins(true)
	id = self
	if why := waits(); why != "" {
		t.Errorf("the second of two servers says that it waits: %s", why)
	}
	id = other
	why := waits()
	for _, part := range []string{"emulate releases before 1.37, which apiserver-newer emulates", "have a server that emulates 1.37 serve it"} {
		if !strings.Contains(why, part) {
			t.Errorf("it waits: %q, which does not say %q", why, part)
		}
	}
	if got := w.events(); !slices.Equal(got, []string{"Normal WaitingForAgreement"}) {
		t.Errorf("events %v", got)
	}
	written := w.read().ResourceVersion
	for _, id = range []agree.ServerID{self, other} {
		if again := waits(); again != why || w.read().ResourceVersion != written {
			t.Errorf("%s writes it again: %q", id, again)
		}
	}
	w.must(w.client.Delete(context.Background(), leaseObject(t, w, newer)))
	if why := waits(); why != "" {
		t.Errorf("when the newer server is gone it waits: %s", why)
	}
	w.expectTrue(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
}

// TestSomebodyMay: a migration does not say so if a newer server, or an aggregated API server, serves the resource.
func TestSomebodyMay(t *testing.T) {
	for _, reporter := range []agree.ServerID{newer, "apiserver-aggregated"} {
		w := newMigrating(t)
		w.joins(true)
		w.report(agree.Report{Server: self, Encoding: v1}, agree.Report{Server: reporter, Encoding: v1})
		w.step()
		if why := migrationv1alpha1.Waiting(w.read()); why != "" || w.claimedBy() != "" {
			t.Errorf("beside %s it waits: %q, claimed by %q", reporter, why, w.claimedBy())
		}
	}
}
