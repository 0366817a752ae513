package invariant

import (
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"k8s.io/api/apiserverinternal/v1alpha1"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

func (c *Checker) encodingOf(kv *mvccpb.KeyValue) agree.Encoding {
	if known, ok := c.encodings[kv]; ok {
		return known
	}
	encoding, _, _ := migratestore.Envelope(kv.Value)
	c.encodings[kv] = encoding
	return encoding
}

// reading is the content of a stored StorageVersion, which never changes.
type reading struct {
	reports []agree.Report
	common  agree.Encoding
	agreed  bool
	ref     evolve.Ref // what a StorageState is compared with
}

// read reads a stored StorageVersion, each one once.
func (c *Checker) read(sv *v1alpha1.StorageVersion) *reading {
	r := c.readings[sv]
	if r == nil {
		r = &reading{reports: storageversion.Reports(sv), ref: evolve.Ref{UID: string(sv.UID)}}
		r.common, r.agreed = storageversion.AgreementOn(sv, r.reports)
		if history, err := storageversion.History(sv); err == nil {
			r.ref.Epoch = history.Epoch
		}
		c.readings[sv] = r
	}
	return r
}

// Describe returns a Stringer for a StorageVersion, so that its text is made only when it is needed.
func Describe(sv *v1alpha1.StorageVersion) fmt.Stringer { return described{sv} }

// described is a StorageVersion that prints what it says.
type described struct{ sv *v1alpha1.StorageVersion }

func (d described) String() string {
	if d.sv == nil {
		return "no StorageVersion"
	}
	history, _ := storageversion.History(d.sv)
	common, _ := storageversion.Agreement(d.sv)
	return fmt.Sprintf("StorageVersion %s: %v common %q %s", d.sv.UID, storageversion.Reports(d.sv), common, history)
}

// DescribeState is Describe for a StorageState.
func DescribeState(state *migrationv1alpha1.StorageState) fmt.Stringer { return describedState{state} }

// describedState is a StorageState that prints what it says.
type describedState struct {
	state *migrationv1alpha1.StorageState
}

func (d describedState) String() string {
	if d.state == nil {
		return "no StorageState"
	}
	return "state " + migrationv1alpha1.ViewState(d.state).String()
}
