package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
	"github.com/concord-dev/concord/server"
)

const (
	// The killed server emulates the older release, which stores policies in another
	// version: while its report stands, the others cannot agree.
	olderRelease, newerRelease = "1.36", "1.37"
	// crashSlack is what may be added to the Lease's duration.
	crashSlack = 5 * time.Second
)

var policies = schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"}

// recovered are the times to agreement after SIGKILL in one cluster, in seconds.
type recovered struct{ elected, other float64 }

// measureCrash kills the elected server, and later one that is not elected, in several
// clusters at the same time: nearly all of it is waiting.
func measureCrash(ctx context.Context, b *bench) error {
	clusters := make([]*stage.Cluster, b.size.crashes)
	for i := range clusters {
		var err error
		if clusters[i], err = b.stage.Cluster(ctx, fmt.Sprintf("crash-%d", i+1), true, 3); err != nil {
			return err
		}
		if err := startMixed(ctx, clusters[i]); err != nil {
			return err
		}
	}
	times := make([]recovered, len(clusters))
	group, groupCtx := errgroup.WithContext(ctx)
	for i, cluster := range clusters {
		group.Go(func() (err error) {
			times[i], err = crash(groupCtx, cluster)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	var elected, other []float64
	for i, t := range times {
		elected, other = append(elected, t.elected), append(other, t.other)
		if err := clusters[i].Close(); err != nil {
			return err
		}
	}
	lease := server.NewOptions().IdentityLeaseDuration
	target := figures.AtMost((lease + crashSlack).Seconds())
	note := fmt.Sprintf("Lease duration %v", lease)
	b.emit(figures.Row{Figure: "agreement after SIGKILL of a server, longest", Unit: "s", Value: figures.Max(other), Samples: other, Note: note}.Judged(target))
	b.emit(figures.Row{Figure: "agreement after SIGKILL of the elected server, longest", Unit: "s", Value: figures.Max(elected), Samples: elected, Note: note}.Judged(target))
	return nil
}

// startMixed starts the first server with the older release, alone, so that it is
// elected, then the others.
func startMixed(ctx context.Context, cluster *stage.Cluster) error {
	for i, s := range cluster.Servers {
		release := newerRelease
		if i == 0 {
			release = olderRelease
		}
		if err := s.Start("--emulation-version", release); err != nil {
			return err
		}
		if i > 0 {
			continue
		}
		err := corpus.Eventually(ctx, s.Name()+" is elected", func(context.Context) error {
			yes, err := s.Elected()
			if err == nil && !yes {
				err = errors.New("it is not")
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	_, err := allReady(ctx, cluster)
	return err
}

// crash kills the first server of the cluster, which is elected, starts it again, when
// another one is, and kills it again.
func crash(ctx context.Context, cluster *stage.Cluster) (times recovered, err error) {
	if times.elected, err = killFirst(ctx, cluster, true); err != nil {
		return times, err
	}
	if err := cluster.Servers[0].Start("--emulation-version", olderRelease); err != nil {
		return times, err
	}
	if _, err := cluster.Servers[0].AwaitReady(ctx, corpus.CalmPoll); err != nil {
		return times, err
	}
	times.other, err = killFirst(ctx, cluster, false)
	return times, err
}

// killFirst kills the first server while all three report and do not agree, and returns
// how many seconds later the other two do.
func killFirst(ctx context.Context, cluster *stage.Cluster, elected bool) (float64, error) {
	board, err := cluster.Board(ctx)
	if err != nil {
		return 0, err
	}
	defer board.Close()
	if _, err := board.Await(ctx, reportLimit, disagreed); err != nil {
		return 0, fmt.Errorf("servers of two releases report: %w", err)
	}
	if err := checkElected(cluster, elected); err != nil {
		return 0, err
	}
	victim := cluster.Servers[0]
	id, err := victim.ID()
	if err != nil {
		return 0, err
	}
	killed := victim.Kill()
	at, err := board.Await(ctx, reportLimit, buried(id))
	if err != nil {
		return 0, fmt.Errorf("agreement after the death of %s: %w", id, err)
	}
	return at.Sub(killed).Seconds(), nil
}

// disagreed says what is lacking until three servers have reported the policies in
// different encodings.
func disagreed(now map[schema.GroupResource]stage.Agreement) string {
	if a := now[policies]; len(a.Reports) != 3 || a.Common != "" {
		return fmt.Sprintf("the policies have %d reports of 3 and agreement %q", len(a.Reports), a.Common)
	}
	return ""
}

// buried says what is lacking until no report of the server is left and all others agree.
// The releases do not have quite the same resources, so their number is not compared.
func buried(id agree.ServerID) func(map[schema.GroupResource]stage.Agreement) string {
	return func(now map[schema.GroupResource]stage.Agreement) string {
		for gr, a := range now {
			if len(a.Reports) > 0 && a.Common == "" {
				return fmt.Sprintf("there is no agreement on %s", gr)
			}
			if _, ok := agree.Of(a.Reports, id); ok {
				return fmt.Sprintf("the report of %s on %s is still there", id, gr)
			}
		}
		return ""
	}
}

// checkElected makes sure that the first server is elected, or that another one is.
func checkElected(cluster *stage.Cluster, want bool) error {
	for i, s := range cluster.Servers {
		yes, err := s.Elected()
		if err != nil {
			return err
		}
		if yes != want && i == 0 || yes && want && i > 0 {
			return fmt.Errorf("%s was elected: %v; the machine may be too slow", s.Name(), yes)
		}
	}
	return nil
}
