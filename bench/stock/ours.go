package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/testbed/process"
)

// migrationLimit bounds a migration.
const migrationLimit = 10 * time.Minute

// concord returns the way of "concord controllers". Before a migration begins, the controllers wait
// shorter than by default for requests that were under way at the change, since there are none here.
func (b *bench) concord(name string, all bool) *way {
	w := &way{name: name, all: all}
	w.start = func(ctx context.Context, w *way) (*process.Process, error) {
		// The StorageStates and migrations of the turn before are not true any more.
		if _, err := b.cluster.Raw.Delete(ctx, stored.DefaultPrefix+"/"+migrationv1alpha1.SchemeGroupVersion.Group+"/", clientv3.WithPrefix()); err != nil {
			return nil, err
		}
		args := []string{"--settle=2s", "--prune-after=never", "-v=0"}
		if all {
			args = append(args, "--verify=all")
		}
		p, err := w.server.StartControllers(b.options.controllers, args...)
		if err != nil {
			return nil, err
		}
		return p, w.agreed(ctx, p)
	}
	w.migrate = w.byControllers
	return w
}

// agreed waits until the controllers know that all objects are stored in v1.
func (w *way) agreed(ctx context.Context, p *process.Process) error {
	gr := w.stored.Corpus.Resource()
	path := fmt.Sprintf("/apis/%s/storagestates/%s", migrationv1alpha1.SchemeGroupVersion, gr)
	return corpus.Eventually(ctx, "the controllers know what is stored", func(ctx context.Context) error {
		if err := p.Failed(); err != nil {
			return err
		}
		raw, err := w.stored.Servers.Clients[0].Do(ctx, "GET", path, "", nil)
		if err != nil {
			return err
		}
		var state migrationv1alpha1.StorageState
		if err := json.Unmarshal(raw, &state); err != nil {
			return err
		}
		v1 := gr.Group + "/v1"
		if s := state.Status; s.CurrentEncoding != v1 || !slices.Equal(s.PersistedEncodings, []string{v1}) {
			return fmt.Errorf("stored in %v, to be stored in %q: %s", s.PersistedEncodings, s.CurrentEncoding, s.Message)
		}
		return nil
	})
}

// byControllers changes the storage version and waits until the controllers log their proof.
func (w *way) byControllers(ctx context.Context) (span, error) {
	ctx, cancel := context.WithTimeout(ctx, migrationLimit)
	defer cancel()
	if err := w.flip(ctx); err != nil {
		return span{}, err
	}
	var written, proven span
	err := process.Until(ctx, corpus.CalmPoll, func(context.Context) error {
		if err := w.program.Failed(); err != nil {
			cancel()
			return err
		}
		output, err := w.program.Output()
		if err != nil {
			return err
		}
		fields := fmt.Sprintf(` resource="%s" encoding="%s/v2" `, w.stored.Corpus.Resource(), corpus.CustomGroup)
		var ok bool
		if written, ok = last(lines(output, fields, "Written")); !ok {
			return fmt.Errorf("%s is not migrated", w.stored.Corpus.Resource())
		}
		if proven, ok = last(lines(output, fields+"holds=true ", "Proof")); !ok {
			return fmt.Errorf("%s is not proven", w.stored.Corpus.Resource())
		}
		return nil
	})
	w.proof = proven
	return written, err
}

// last returns the span of the last line.
func last(all []line) (span, bool) {
	if len(all) == 0 {
		return span{}, false
	}
	return all[len(all)-1].took()
}
