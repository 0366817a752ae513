package stock

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/stock/observed"
)

// Config configures Run.
type Config struct {
	// Rest reaches the cluster.
	Rest *rest.Config
	// Instance names this process; another one each time.
	Instance string
	// LeaderElect makes one of several processes work, elected by a Lease in ElectionNamespace.
	LeaderElect       bool
	ElectionNamespace string
	// Address is where /healthz, /readyz and /metrics are served, "host:port"; empty: nowhere.
	Address string
	// ReplicaAddresses are addresses of kube-apiservers by the name of their Lease. The entry "" is for
	// kube-apiservers without an entry whose Lease has no address.
	ReplicaAddresses map[string]string
	// Poll is how often every kube-apiserver is asked. Default: 10 s.
	Poll time.Duration
	// ReplicaTimeout is how long one may take to answer the first requests. Its discovery is of many more, which may
	// take half as long again together. Default: 10 s.
	ReplicaTimeout time.Duration
	// Settle is for how long all have to store one version before that counts. It is longer
	// than kube-apiserver's --request-timeout, 60 s. Default: 75 s.
	Settle time.Duration
	// Settings restrict what the controllers do without being asked.
	Settings observed.Settings
	// InstallDefinitions has the definitions of migration.k8s.io installed, and updated.
	InstallDefinitions bool
	// Mirror says when migrations of storagemigration.k8s.io are done, too. Default: MirrorAuto.
	Mirror MirrorMode
	// MirrorAfter is for how long kube-controller-manager has to leave one alone, for MirrorAuto
	// to see that its migrator is off. Default: 5 min.
	MirrorAfter time.Duration
	// CleanFields has entries taken out of managedFields that name versions which are not
	// served any more.
	CleanFields bool
	// VerifyAll has every object examined by the proof, and not a sample.
	VerifyAll bool
	// MaxObjectsPerSecond bounds migrations that do not say it themselves; 0: no bound.
	MaxObjectsPerSecond int64
	// MaxAddedLatency is by how much the patches of a migration may lengthen each other, as they do
	// clients' requests, if the migration does not say it itself; 0: there is no such bound. Nil:
	// hardly any waits for another.
	MaxAddedLatency *time.Duration
	// MaxParallel bounds the patches under way in a migration. Default: 32.
	MaxParallel int
	// Clock defaults to the real one.
	Clock clock.WithTicker
	// Logger defaults to none.
	Logger logr.Logger
}

const (
	defaultPoll           = 10 * time.Second
	defaultReplicaTimeout = 10 * time.Second
	defaultSettle         = 75 * time.Second
	defaultMaxParallel    = 32
)

func (c Config) withDefaults() Config {
	c.ElectionNamespace = cmp.Or(c.ElectionNamespace, metav1.NamespaceSystem)
	c.Poll = cmp.Or(c.Poll, defaultPoll)
	c.ReplicaTimeout = cmp.Or(c.ReplicaTimeout, defaultReplicaTimeout)
	c.Settle = cmp.Or(c.Settle, defaultSettle)
	c.MaxParallel = cmp.Or(c.MaxParallel, defaultMaxParallel)
	c.Mirror = cmp.Or(c.Mirror, MirrorAuto)
	c.MirrorAfter = cmp.Or(c.MirrorAfter, observed.UntouchedFor)
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return c
}

// Validate says which field is missing or wrong.
func (c Config) Validate() error {
	switch {
	case c.Rest == nil:
		return errors.New("controllers need to know the cluster")
	case c.Instance == "":
		return errors.New("controllers need a name")
	case c.Poll < 0 || c.ReplicaTimeout < 0 || c.Settle < 0 || c.MaxObjectsPerSecond < 0 || c.MaxParallel < 0:
		return fmt.Errorf("poll %v, replica timeout %v, settling time %v, objects per second %d and parallel patches %d must not be negative",
			c.Poll, c.ReplicaTimeout, c.Settle, c.MaxObjectsPerSecond, c.MaxParallel)
	case c.MaxAddedLatency != nil && *c.MaxAddedLatency < 0:
		return fmt.Errorf("the added latency %v must not be negative", *c.MaxAddedLatency)
	case !c.Mirror.valid():
		return fmt.Errorf("mirror is %q; it can be one of %v", c.Mirror, MirrorModes)
	case c.MirrorAfter < 0:
		return fmt.Errorf("mirror after %v must not be negative", c.MirrorAfter)
	}
	return nil
}
