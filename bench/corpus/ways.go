package corpus

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/concord-dev/concord/bench/stage"
	"github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

// Ways are the ways of migrating one resource, with the time that each took in each round.
type Ways struct {
	// Rewrite is Concord's migration in etcd, Noop the same when all objects are in the current
	// encoding already, API Concord's migration through the API, Raw the same bytes written by raw
	// transactions of etcd, Update a PUT per object, Apply an empty server-side apply per object.
	Rewrite, Noop, API, Raw, Update, Apply []Span
}

// forgotten is the time after which a migration does not give way any more to a client that has made requests.
const forgotten = 2 * time.Second

// perRound is how often a round measures the ways that take a fraction of a second.
const perRound = 3

// Round measures every way but API: perRound times those that write many objects at a time, and
// once the single writes.
func (w *Ways) Round(ctx context.Context, stored *Stored, i, sampled int) error {
	if err := load.Pause(ctx, forgotten); err != nil {
		return err
	}
	for j := range perRound {
		if err := w.together(ctx, stored, i*perRound+j); err != nil {
			return err
		}
	}
	return w.oneByOne(ctx, stored, i, sampled)
}

// together measures Raw, Rewrite and Noop once. Raw writes the old bytes and so undoes an earlier Rewrite.
func (w *Ways) together(ctx context.Context, stored *Stored, i int) error {
	if err := stored.Servers.Rest(ctx); err != nil {
		return err
	}
	raw, err := stored.Restore(ctx, len(stored.puts))
	if err != nil {
		return err
	}
	if err := stored.Servers.Rest(ctx); err != nil {
		return err
	}
	rewrite, err := stored.Migrate(ctx, fmt.Sprint("round-", i))
	if err != nil {
		return err
	}
	// Noop comes now and not after the single writes: it would give way to their client.
	if err := stored.Servers.Rest(ctx); err != nil {
		return err
	}
	noop, err := stored.Migrate(ctx, fmt.Sprint("noop-", i))
	if err != nil {
		return err
	}
	w.Raw, w.Rewrite, w.Noop = append(w.Raw, raw), append(w.Rewrite, rewrite), append(w.Noop, noop)
	return nil
}

// oneByOne measures Update and Apply once.
func (w *Ways) oneByOne(ctx context.Context, stored *Stored, i, sampled int) error {
	single := []struct {
		spans *[]Span
		write apiWrite
	}{{&w.Update, PutListed}, {&w.Apply, ApplyNothing}}
	if i%2 == 1 {
		slices.Reverse(single)
	}
	for _, way := range single {
		if _, err := stored.Restore(ctx, sampled); err != nil {
			return err
		}
		if err := stored.Servers.Rest(ctx); err != nil {
			return err
		}
		done, err := stored.OneByOne(ctx, sampled, way.write)
		if err != nil {
			return err
		}
		*way.spans = append(*way.spans, done)
	}
	return nil
}

// RoundThroughAPI measures API once, and the single writes right after it, because the speed of
// the machine changes over time.
func (w *Ways) RoundThroughAPI(ctx context.Context, stored *Stored, i, sampled int) error {
	if _, err := stored.Restore(ctx, len(stored.puts)); err != nil {
		return err
	}
	if err := stored.Servers.Rest(ctx); err != nil {
		return err
	}
	api, err := stored.MigrateThroughAPI(ctx, fmt.Sprint("api-", i))
	if err != nil {
		return err
	}
	w.API = append(w.API, api)
	if err := stored.Check(ctx, len(stored.puts)); err != nil {
		return err
	}
	return w.oneByOne(ctx, stored, i+1, sampled)
}

// apiWrite migrates one object by one API write that is made from the object as it was listed.
type apiWrite func(ctx context.Context, c *stage.Client, path string, o listed) error

// listed is an object as a list returns it: whole, and only the fields that an empty apply needs.
type listed struct{ whole, identity []byte }

// PutListed migrates an object as kube-storage-version-migrator does: by a PUT of the object as
// it was listed. That migrator reads an object again only after a conflict.
func PutListed(ctx context.Context, c *stage.Client, path string, o listed) error {
	_, err := c.Do(ctx, http.MethodPut, path, JSONType, o.whole)
	return err
}

// ApplyNothing migrates an object as kube-controller-manager's migrator does: by a server-side
// apply of nothing but the identity of the object as it was listed.
func ApplyNothing(ctx context.Context, c *stage.Client, path string, o listed) error {
	_, err := c.Do(ctx, http.MethodPatch, path+"?fieldManager=storage-version-migrator-controller", "application/apply-patch+yaml", o.identity)
	return err
}

// OneByOne migrates the first n objects by API writes through one server.
func (s *Stored) OneByOne(ctx context.Context, n int, write apiWrite) (Span, error) {
	objects, err := s.list(ctx, n)
	if err != nil {
		return Span{}, err
	}
	client := s.Servers.Clients[0]
	began := time.Now()
	for i, o := range objects {
		path := s.Corpus.path + "/" + s.Corpus.object(i)
		if err := write(ctx, client, path, o); err != nil {
			return Span{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	end := time.Now()
	if err := s.Check(ctx, n); err != nil {
		return Span{}, fmt.Errorf("after %d API writes: %w", n, err)
	}
	return Span{objects: n, began: began, end: end, seen: end}, nil
}

// list reads the first n objects, in order. Real migrators list them in pages; the time for
// this is not measured.
func (s *Stored) list(ctx context.Context, n int) ([]listed, error) {
	objects := make([]listed, n)
	for i := range n {
		body, err := s.Servers.Clients[0].Do(ctx, http.MethodGet, s.Corpus.path+"/"+s.Corpus.object(i), "", nil)
		if err != nil {
			return nil, err
		}
		id, err := IdentityOf(body)
		if err != nil {
			return nil, err
		}
		objects[i] = listed{whole: body, identity: Marshal(Fields{
			"apiVersion": string(s.Corpus.current), "kind": s.Corpus.kind,
			"metadata": Fields{"name": id.Metadata.Name, "uid": id.Metadata.UID, "resourceVersion": id.Metadata.ResourceVersion},
		})}
	}
	return objects, nil
}

// Span is the time that it took to write objects: until the last one is written (end), and
// until the watch cache of every server has seen it (seen).
type Span struct {
	objects          int
	began, end, seen time.Time
}

// Objects is how many objects were written.
func (s Span) Objects() int { return s.objects }

// Of returns a span in which only n objects were written.
func (s Span) Of(n int) Span {
	s.objects = n
	return s
}

// Began is when the first write could begin.
func (s Span) Began() time.Time { return s.began }

// Written is when the last object was written.
func (s Span) Written() time.Time { return s.end }

// Watched is when the watch cache of every server had seen the last object.
func (s Span) Watched() time.Time { return s.seen }

// awaitSeen waits until the watch cache of every server has the object at the revision or a
// later one. Each served version has a watch cache of its own, which is built when a client
// reads that version; nobody reads the others here.
func (s *Stored) awaitSeen(ctx context.Context, object string, revision int64) error {
	path := fmt.Sprintf("%s/%s?resourceVersion=%d", s.Corpus.path, object, revision)
	for _, client := range s.Servers.Clients {
		// The server itself waits until its cache is recent enough, and answers 504 after some seconds.
		err := Eventually(ctx, "a watch cache is up to date", func(ctx context.Context) error {
			_, err := client.Do(ctx, http.MethodGet, path, "", nil)
			var status *cluster.StatusError
			if errors.As(err, &status) && status.Code != http.StatusGatewayTimeout {
				return fmt.Errorf("%s: %w", path, err)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
