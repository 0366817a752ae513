// Package demo runs Concord's demonstration: three servers as processes of their own on
// one embedded etcd, stored objects, clients that write all the time, a rolling upgrade,
// a change of a custom resource's storage version, a killed and a paused server, and a
// verdict from raw etcd on whether anything was lost or written that must not be.
//
// Observations are collected as values (facts); judge decides on them alone.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const (
	// DefaultObjects is how many objects are loaded.
	DefaultObjects = 10_000
	// MinObjects is the fewest objects that give every resource of the demo one.
	MinObjects = 4
	// DefaultLeaseDuration is how long the servers' identity Leases live unrenewed.
	DefaultLeaseDuration = 8 * time.Second
	// DefaultWriters is how many clients write all the time.
	DefaultWriters = 12

	// oldRelease and newRelease are the releases that the servers emulate before and after the roll.
	oldRelease = "1.36"
	newRelease = "1.37"

	serverCount = 3
	// leaseRenewals is how often an identity Lease is renewed in its duration.
	leaseRenewals = 3
)

// Config says how to run the demo. The zero value of every field but Progress has a default.
type Config struct {
	// Objects is how many objects are loaded, half of them custom resources.
	Objects int
	// Writers is how many clients write all the time.
	Writers int
	// Executable is the concord binary, by default the running one.
	Executable string
	// LeaseDuration is the servers' identity Lease duration, in whole seconds.
	LeaseDuration time.Duration
	// Progress receives the live view: redrawn if it is a terminal, else as plain lines.
	Progress io.Writer
	// Done, if set, is called with the result while the cluster still runs; the cluster is removed when it returns.
	Done func(ctx context.Context, report Report, kubeconfig string)
}

func (c Config) withDefaults() (Config, error) {
	c.Objects = cmp.Or(c.Objects, DefaultObjects)
	c.Writers = cmp.Or(c.Writers, DefaultWriters)
	c.LeaseDuration = cmp.Or(c.LeaseDuration, DefaultLeaseDuration)
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	if c.Executable == "" {
		executable, err := os.Executable()
		if err != nil {
			return c, fmt.Errorf("find the concord binary: %w", err)
		}
		c.Executable = executable
	}
	return c, c.Validate()
}

// Validate names the first field that cannot be used. Zero values are valid.
func (c Config) Validate() error {
	switch {
	case c.Objects != 0 && c.Objects < MinObjects:
		return fmt.Errorf("the demo needs at least %d objects, not %d", MinObjects, c.Objects)
	case c.Writers < 0:
		return fmt.Errorf("the number of writers must be positive, not %d", c.Writers)
	case c.LeaseDuration < 0 || c.LeaseDuration%time.Second != 0 || c.LeaseDuration != 0 && c.LeaseDuration < 3*time.Second:
		return fmt.Errorf("the identity Leases' duration must be whole seconds, at least 3s, not %s", c.LeaseDuration)
	}
	return nil
}

// Run runs the demo and removes every process and file that it made, also when ctx ends early. An
// error means that the demo could not be carried through and nothing is proven; Report.Pass says
// whether everything was as it must be.
func Run(ctx context.Context, cfg Config) (report Report, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return Report{}, err
	}
	began := time.Now()
	cluster, err := newCluster(cfg)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, cluster.close()) }()
	r := newRun(cfg, cluster, began)
	stopView := newScreen(cfg.Progress).show(ctx, r.snapshot)
	defer stopView()
	seen, err := r.steps(ctx)
	if err != nil {
		return Report{}, err
	}
	stopView()
	report = judge(seen)
	report.Seconds = seconds(time.Since(began))
	if cfg.Done != nil {
		cfg.Done(ctx, report, cluster.kubeconfig)
	}
	return report, nil
}

// seconds rounds to milliseconds.
func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }
