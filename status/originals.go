package status

import (
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/stock/observed"
)

// Originals are the migrations of storagemigration.k8s.io, Kubernetes' own API.
type Originals struct {
	Migrations []storagemigrationv1.StorageVersionMigration `json:"migrations,omitempty"`
	// Manager is the Lease by which kube-controller-manager is elected, nil if there is none.
	Manager *coordinationv1.Lease `json:"manager,omitempty"`
}

// leftAlone returns the problems of unfinished migrations of storagemigration.k8s.io that nobody here does, in
// clusters whose servers do not report. Servers that report do them. With which --mirror and --mirror-after concord
// controllers run is not known here.
func (o Observed) leftAlone() (problems []Problem) {
	if len(o.StorageVersions) > 0 {
		return nil
	}
	judged := observed.JudgeInTree(o.Now, o.Originals.Manager, o.Originals.Migrations, observed.UntouchedFor)
	for i := range o.Originals.Migrations {
		m := &o.Originals.Migrations[i]
		if observed.Ended(m) || o.copied(m) {
			continue
		}
		p := Problem{
			Kind: LeftAlone, Resources: []string{schema.GroupResource(m.Spec.Resource).String()},
			Text: fmt.Sprintf("the migration %s of storagemigration.k8s.io is left to kube-controller-manager: %s", m.Name, judged.Why),
		}
		if observed.Forsaken(m, o.Originals.Manager) {
			p.Text = fmt.Sprintf("the migration %s of storagemigration.k8s.io was begun by a kube-controller-manager that is not elected any more, and may never end", m.Name)
			p.Do, p.Run = "if it does not go on, delete it, and create it anew", "kubectl delete storageversionmigrations.storagemigration.k8s.io "+m.Name
		}
		if judged.Off {
			p.Text = fmt.Sprintf("the migration %s of storagemigration.k8s.io is done by nobody: %s", m.Name, judged.Why)
			p.Do, p.Run = "have it done", "concord controllers --mirror=auto"
			if len(o.States) > 0 && o.idle().Kind == "" {
				p.Do, p.Run = "see the flags of concord controllers: they do it when it was left alone for as long as --mirror-after says, and never with --mirror=never", ""
			}
		}
		problems = append(problems, p)
	}
	return problems
}

// copied says whether there is a migration of ours that was made for it.
func (o Observed) copied(m *storagemigrationv1.StorageVersionMigration) bool {
	for i := range o.Migrations {
		if of := migrationv1alpha1.Original(&o.Migrations[i]); of != nil && of.UID == m.UID {
			return true
		}
	}
	return false
}
