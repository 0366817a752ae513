package evolve

import "fmt"

// NotServed reports whether servers store the resource and no report says that it is served, as that of an aggregated
// server whose clients reach its objects only as a subresource of another resource.
func (o Observation) NotServed() bool {
	return o.StorageVersion != nil && o.State == nil && o.CRD == nil && len(o.StorageVersion.Reports) > 0 &&
		len(ServedVersions(o.Resource, o.StorageVersion.Reports)) == 0
}

// decideNotServed ends migrations of a resource whose objects nobody can reach through the API. It gets no
// StorageState: the hashes in that are made of group, version and kind, and the kind is known from discovery alone.
func decideNotServed(o Observation) []Action {
	actions := deleteMade(o, "no server serves the resource")
	for _, m := range o.Migrations {
		if !m.Made && !m.Phase.Final() {
			actions = append(actions, EndMigration{Name: m.Name, Reason: ResourceNotFound,
				Why: fmt.Sprintf("servers store %q, and serve it as no resource of its own: migrations do not reach its objects", o.Resource)})
		}
	}
	return actions
}
