package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/concord-dev/concord/status/prose"
)

// Kind is the kind of a Problem.
type Kind string

// The kinds of Problem, the most urgent first.
const (
	// NoneRenews: no server renews its Lease, though one answers.
	NoneRenews Kind = "NoneRenews"
	// DeadServer: a server's Lease is not renewed, and its reports still count.
	DeadServer Kind = "DeadServer"
	// Idle: no controllers look after the StorageStates.
	Idle Kind = "Idle"
	// Unwritten: the controllers have not written what follows from an agreement, or what they write is refused.
	Unwritten Kind = "Unwritten"
	// NotReady: the server that answers is not ready.
	NotReady Kind = "NotReady"
	// StockAnswered: a kube-apiserver answers which serves no StorageVersions, and so does not know what servers report.
	StockAnswered Kind = "StockAnswered"
	// StockServer: a kube-apiserver without Concord serves among Concord's, or did lately.
	StockServer Kind = "StockServer"
	// SilentServer: the feature gate StorageVersionAPI of a server is off.
	SilentServer Kind = "SilentServer"
	// LateServer: a server has missed a renewal of its Lease, and may live.
	LateServer Kind = "LateServer"
	// Deleting: a CustomResourceDefinition is being deleted.
	Deleting Kind = "Deleting"
	// Disagreement: servers write a resource in different encodings.
	Disagreement Kind = "Disagreement"
	// WebhookDown: a conversion webhook does not answer.
	WebhookDown Kind = "WebhookDown"
	// BadObjects: objects cannot be migrated.
	BadObjects Kind = "BadObjects"
	// MigrationFailed: a migration ended for another reason than its objects.
	MigrationFailed Kind = "MigrationFailed"
	// Stalled: a running migration has written nothing for a while, or makes no progress.
	Stalled Kind = "Stalled"
	// Paused: somebody has paused a migration.
	Paused Kind = "Paused"
	// Waiting: a migration has not begun.
	Waiting Kind = "Waiting"
	// Held: somebody has postponed the cut-over of a custom resource.
	Held Kind = "Held"
	// LeftAlone: a migration of storagemigration.k8s.io is left to kube-controller-manager.
	LeftAlone Kind = "LeftAlone"
)

var urgency = []Kind{NoneRenews, DeadServer, Idle, Unwritten, NotReady, StockAnswered, StockServer, SilentServer, LateServer, Deleting, Disagreement, WebhookDown, BadObjects, MigrationFailed, Stalled, Paused, Waiting, Held, LeftAlone}

// Problem is something that is wrong with a server or a resource, and what to do about it.
type Problem struct {
	Kind Kind `json:"kind"`
	// Server is the server's ID, where the problem is one.
	Server string `json:"server,omitempty"`
	// Resources are the resources that have the problem, or wait for the server.
	Resources []string `json:"resources,omitempty"`
	// Text says what is wrong.
	Text string `json:"text"`
	// Objects are the first that cannot be migrated, of Failed.
	Objects []Object `json:"objects,omitempty"`
	Failed  int64    `json:"failed,omitempty"`
	// Do is what to do, and Run a command that does it, in which VERSION, NAMESPACE and NAME are to be filled in;
	// empty if it passes by itself.
	Do  string `json:"do,omitempty"`
	Run string `json:"run,omitempty"`

	// alike is equal for problems of resources that one line can describe. Their Texts begin with the resource.
	alike string
}

// Object is an object that cannot be migrated, as "namespace/name", and why.
type Object struct {
	Name    string `json:"name"`
	Message string `json:"message"`
}

// gathered merges problems that are alike, and sorts them, the most urgent first.
func gathered(problems []Problem) []Problem {
	var all []Problem
	for _, p := range problems {
		i := slices.IndexFunc(all, func(o Problem) bool { return p.alike != "" && o.alike == p.alike && o.Kind == p.Kind })
		if i < 0 {
			all = append(all, p)
			continue
		}
		for _, resource := range p.Resources {
			if !slices.Contains(all[i].Resources, resource) { // two migrations of one
				all[i].Resources = append(slices.Clone(all[i].Resources), resource)
			}
		}
	}
	for i := range all {
		if p := &all[i]; len(p.Resources) > 1 && p.alike != "" {
			p.Text = fmt.Sprintf("%d resources have the same problem: %s. The first: %s", len(p.Resources), prose.Some(p.Resources), strings.TrimPrefix(p.Text, p.Resources[0]+": "))
		}
	}
	slices.SortStableFunc(all, func(a, b Problem) int { return slices.Index(urgency, a.Kind) - slices.Index(urgency, b.Kind) })
	return all
}
