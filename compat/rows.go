package compat

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// Row is one version of one resource of a Plan, as operators see it.
type Row struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
	Served   bool   `json:"served"`
	Reason   string `json:"reason"`
	// StorageVersion is the group/version in which the resource is stored, the same in all its rows; "" if it is not persisted.
	StorageVersion string `json:"storageVersion"`
}

// Rows returns the plan by group, resource and version, the newest version first.
func (p *Plan) Rows() []Row {
	rows := []Row{}
	for _, r := range p.Resources {
		for _, v := range r.Served {
			rows = append(rows, Row{
				Group: r.Group, Version: v.Version, Resource: r.Resource,
				Served: v.Served, Reason: v.Reason, StorageVersion: r.Storage.String(),
			})
		}
	}
	return rows
}

// String prints the versions of the plan and its rows as a table.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "binary %s, emulation %s, min compatibility %s\n\n", p.Binary, p.Emulation, p.MinCompatibility)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GROUP\tRESOURCE\tVERSION\tSERVED\tSTORAGE VERSION\tREASON")
	for _, r := range p.Rows() {
		group, served, storage := r.Group, "no", r.StorageVersion
		if group == "" {
			group = "core"
		}
		if r.Served {
			served = "yes"
		}
		if storage == "" {
			storage = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", group, r.Resource, r.Version, served, storage, r.Reason)
	}
	_ = w.Flush() // a strings.Builder takes everything
	return b.String()
}
