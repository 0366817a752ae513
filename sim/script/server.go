package script

import "slices"

// Role says which of a process's loops a task is. A process has at most one task of each.
type Role uint8

// The loops of a process.
const (
	Leasing       Role = iota // registers, renews, and at the end departs
	Reporting                 // member.Step
	Collecting                // collector.Step
	Triggering                // trigger.Step for one resource
	Migrating                 // migrate.Step for one migration
	Hosting                   // of a replica of an aggregated API server: hosting.Step
	Sweeping                  // hosting.Sweep
	HostLeasing               // of its member in the host: registers and renews
	HostReporting             // of that: member.Step
	Patching                  // a write for a migration in the host
	Writing1                  // a client's write
	Writing2
	Putting1 // a transaction of the rewrite that migrating does
	Putting2
	Putting3
	Putting4
	Roles // how many there are
)

// MaxUnder is how many transactions of a rewrite can be under way at once.
const MaxUnder = int(Roles - Putting1)

// Rewrites says whether a role is a rewrite's.
func (r Role) Rewrites() bool { return r == Migrating || r >= Putting1 }

var roleName = [Roles]string{"lease", "report", "collect", "trigger", "migrate", "host", "sweep", "hostlease", "hostreport", "patch", "write1", "write2", "put1", "put2", "put3", "put4"}

// String prints a role as scripts have it.
func (r Role) String() string { return roleName[r] }

// Stream is one of a process's watches.
type Stream uint8

// The watches of a process.
const (
	SeeLeases       Stream = iota // member's
	SeeVersions                   // member's
	SeeDefinitions                // member's
	SeeHandler                    // the custom resource handler's, of definitions
	SeeMigrations                 // the migrator's
	SeeRewrites                   // the migrator's, of StorageVersions
	SeeHostLeases                 // of a replica's member in the host
	SeeHostVersions               // of that
	Streams                       // how many there are
)

var streamName = [Streams]string{"leases", "versions", "definitions", "handler", "migrations", "rewrites", "hostleases", "hostversions"}

// MaxSlots is how many servers a world can have at a time.
const MaxSlots = 4

var slotNames = [MaxSlots]string{"s1", "s2", "s3", "s4"}

// SlotName is the name of the server in a slot.
func SlotName(slot int) string { return slotNames[slot] }

// SlotNamed is SlotName's opposite: negative if there is no such slot.
func SlotNamed(name string) int { return slices.Index(slotNames[:], name) }
