package invariant

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/script"
)

// Server holds what the invariants know about a server.
type Server struct {
	Slot    int
	Run     int // counts the processes of the slot
	Release object.Release
	Silent  bool // its gate StorageVersionAPI is off (DESIGN 3.8)
	Stock   bool // it is a kube-apiserver without Concord
	Jumped  int  // how often its clock was set forward
	Host    bool // it is one of the cluster to which others report
}

// String prints "s1", with the run if it is not the first.
func (s *Server) String() string {
	name := script.SlotName(s.Slot)
	if s.Host {
		name = "host " + name
	}
	if s.Run == 0 {
		return name
	}
	return fmt.Sprintf("%s#%d", name, s.Run)
}

// Write holds what the invariants know about a server's request.
type Write struct {
	By   *Server
	Role script.Role
	// ID is the sender's registration when the request was sent, or the migrator's. Ended is the last definition whose
	// deletion the sender knew of.
	ID    agree.ServerID
	Ended types.UID
	Began int64 // the revision at which its task began
}

// How servers renew and observe their Leases.
const (
	LeaseDuration   = 15 * time.Second
	CollectInterval = time.Second
	// MaxDrift is by how much a clock's rate may differ from the world's.
	MaxDrift = 0.03
)
