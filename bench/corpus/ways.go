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

// Ways are the ways of migrating one resource, with what each took.
type Ways struct {
	// Rewrite is Concord's, Noop the same with nothing to do, API its engine that goes through
	// the API, Raw the same bytes by raw transactions, Update a PUT per object, Apply
	// an empty apply per object.
	Rewrite, Noop, API, Raw, Update, Apply []Span
}

// forgotten is how long after a client's requests a migration does not give way to it any more.
const forgotten = 2 * time.Second

// perRound is how often a round measures the ways that take a fraction of a second.
const perRound = 3

// Round measures every way but the one through the API, the single writes once.
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

// together measures once the ways that write many objects at a time. The raw writes of the
// old bytes undo the rewrites.
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
	// Now and not after the single writes, since it would give way to the client.
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

// oneByOne measures the single writes once.
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

// RoundThroughAPI measures the engine that goes through the API once, and the single writes
// right after it, since machines have better minutes and worse ones.
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

// apiWrite migrates one object by one write, made from the object as it was listed.
type apiWrite func(ctx context.Context, c *stage.Client, path string, o listed) error

// listed is an object as a list shows it, and the part of that which an empty apply needs.
type listed struct{ whole, identity []byte }

// PutListed is how kube-storage-version-migrator migrates an object: it reads it again only
// after a conflict.
func PutListed(ctx context.Context, c *stage.Client, path string, o listed) error {
	_, err := c.Do(ctx, http.MethodPut, path, JSONType, o.whole)
	return err
}

// ApplyNothing is how kube-controller-manager's migrator does it, with the identity of the
// object as it was listed.
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

// list returns the first n objects, in order. The migrators read them by pages.
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

// Span is how long it took to write objects: until the last one is written, and until
// every server's watch cache has seen it.
type Span struct {
	objects          int
	began, end, seen time.Time
}

// Objects is how many were written.
func (s Span) Objects() int { return s.objects }

// Of returns a span in which only n objects were written.
func (s Span) Of(n int) Span {
	s.objects = n
	return s
}

// Began is when the first write could begin.
func (s Span) Began() time.Time { return s.began }

// Written is when the last one was written.
func (s Span) Written() time.Time { return s.end }

// Watched is when every server's watch cache had seen it.
func (s Span) Watched() time.Time { return s.seen }

// awaitSeen waits until every server's watch cache has the object as of the revision. A cache
// of another served version is built only if somebody reads that, which nobody does here.
func (s *Stored) awaitSeen(ctx context.Context, object string, revision int64) error {
	path := fmt.Sprintf("%s/%s?resourceVersion=%d", s.Corpus.path, object, revision)
	for _, client := range s.Servers.Clients {
		// The server waits itself, and answers 504 after some seconds.
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
