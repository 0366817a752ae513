package stage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/stored"
)

const versionsPrefix = stored.DefaultPrefix + "/storageversions/"

// Agreement is the content of a StorageVersion.
type Agreement struct {
	Reports []agree.Report
	// Common is the encoding that all reports name; empty if they differ.
	Common agree.Encoding
}

// Board shows the StorageVersions as etcd has them. It asks no server, so that looking
// at it takes nothing from the servers that are measured.
type Board struct {
	stop func()
	done chan struct{}

	mu      sync.Mutex
	changed chan struct{}
	at      time.Time // of the last change
	broken  error
	entries map[schema.GroupResource]Agreement
}

// Board follows the cluster's StorageVersions until it is closed.
func (c *Cluster) Board(ctx context.Context) (*Board, error) {
	ctx, cancel := context.WithCancel(ctx)
	b := &Board{stop: cancel, done: make(chan struct{}), changed: make(chan struct{}), at: time.Now(), entries: map[schema.GroupResource]Agreement{}}
	all, err := c.Raw.Get(ctx, versionsPrefix, clientv3.WithPrefix())
	if err != nil {
		cancel()
		return nil, fmt.Errorf("read the StorageVersions: %w", err)
	}
	for _, kv := range all.Kvs {
		if err := b.put(string(kv.Key), kv.Value); err != nil {
			cancel()
			return nil, err
		}
	}
	watch := c.Raw.Watch(ctx, versionsPrefix, clientv3.WithPrefix(), clientv3.WithRev(all.Header.Revision+1))
	go b.follow(ctx, watch)
	return b, nil
}

// Close ends following.
func (b *Board) Close() {
	b.stop()
	<-b.done
}

func (b *Board) follow(ctx context.Context, watch clientv3.WatchChan) {
	defer close(b.done)
	for response := range watch {
		b.apply(response)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken == nil {
		b.broken = errors.Join(errors.New("the watch of the StorageVersions ended"), ctx.Err())
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *Board) apply(response clientv3.WatchResponse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = errors.Join(b.broken, response.Err())
	for _, event := range response.Events {
		if event.Type == clientv3.EventTypeDelete {
			if gr, err := resourceAt(string(event.Kv.Key)); err == nil {
				delete(b.entries, gr)
			}
			continue
		}
		b.broken = errors.Join(b.broken, b.put(string(event.Kv.Key), event.Kv.Value))
	}
	b.at = time.Now()
	close(b.changed)
	b.changed = make(chan struct{})
}

func resourceAt(key string) (schema.GroupResource, error) {
	return storageversion.GroupResource(strings.TrimPrefix(key, versionsPrefix))
}

func (b *Board) put(key string, value []byte) error {
	gr, err := resourceAt(key)
	if err != nil {
		return err
	}
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(value, nil, nil)
	if err != nil {
		return fmt.Errorf("decode %s: %w", key, err)
	}
	sv, ok := obj.(*v1alpha1.StorageVersion)
	if !ok {
		return fmt.Errorf("%s holds a %T", key, obj)
	}
	common, _ := storageversion.Agreement(sv)
	b.entries[gr] = Agreement{Reports: storageversion.Reports(sv), Common: common}
	return nil
}

// Await waits until lacking returns "", and returns when the change that made it so was
// seen (when the board was made, if it was so before). lacking says what is missing; it
// must not keep or change the map that it is given.
func (b *Board) Await(ctx context.Context, limit time.Duration, lacking func(map[schema.GroupResource]Agreement) string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		b.mu.Lock()
		lack, at, changed, broken := lacking(b.entries), b.at, b.changed, b.broken
		b.mu.Unlock()
		switch {
		case lack == "":
			return at, nil
		case broken != nil:
			return time.Time{}, broken
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%w: %s", ctx.Err(), lack)
		}
	}
}

// Resources returns the resources that have a StorageVersion now, and the content of each.
func (b *Board) Resources() map[schema.GroupResource]Agreement {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make(map[schema.GroupResource]Agreement, len(b.entries))
	for gr, a := range b.entries {
		all[gr] = a
	}
	return all
}
