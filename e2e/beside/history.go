package beside

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/concord-dev/concord/testbed/ledger"
)

// Registry is the prefix of all that kube-apiservers write.
const Registry = "/registry/"

// History has the changes in etcd, in order. Names are keys without a prefix, so the name of an object is
// "namespace/name" or "name".
type History struct {
	// begin is the revision after which the changes are. first has, by name, the revisions of the objects then.
	begin   int64
	first   map[string]int64
	changes []Change
}

// Change is a write of an object, or its deletion.
type Change struct {
	Name     string
	Revision int64
	Deleted  bool
}

// Record follows all writes to etcd from now until the returned function is called. Two writes at one revision are an
// error: every client of Kubernetes assumes that a revision belongs to one object.
func Record(t testing.TB, raw *clientv3.Client) (stop func() History) {
	t.Helper()
	stopped, err := ledger.Record(t.Context(), raw, Registry)
	if err != nil {
		t.Fatal(err)
	}
	now, err := raw.Get(t.Context(), Registry, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	h := History{begin: now.Header.Revision, first: map[string]int64{}}
	for _, kv := range now.Kvs {
		h.first[string(kv.Key)] = kv.ModRevision
	}
	return func() History {
		t.Helper()
		events, err := stopped(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		last := int64(0)
		for _, e := range events {
			if e.Revision <= last {
				t.Errorf("%s was written at revision %d, after one at %d", e.Key, e.Revision, last)
			}
			if last = e.Revision; last > h.begin {
				h.changes = append(h.changes, Change{e.Key, last, e.Value == nil})
			}
		}
		return h
	}
}

// Under returns the history of the keys below a prefix.
func (h History) Under(prefix string) History {
	under := History{begin: h.begin, first: map[string]int64{}}
	for key, revision := range h.first {
		if name, ok := strings.CutPrefix(key, prefix); ok {
			under.first[name] = revision
		}
	}
	for _, c := range h.changes {
		if name, ok := strings.CutPrefix(c.Name, prefix); ok {
			c.Name = name
			under.changes = append(under.changes, c)
		}
	}
	return under
}

// at returns the revisions of all objects as of a revision.
func (h History) at(revision int64) map[string]int64 {
	all := maps.Clone(h.first)
	for _, c := range h.changes {
		if c.Revision > revision {
			break
		}
		if c.Deleted {
			delete(all, c.Name)
		} else {
			all[c.Name] = c.Revision
		}
	}
	return all
}

// After returns the changes after a revision.
func (h History) After(revision int64) []Change {
	at, _ := slices.BinarySearchFunc(h.changes, revision+1, func(c Change, revision int64) int { return int(c.Revision - revision) })
	return h.changes[at:]
}

// Holds checks that etcd has each of these writes, which servers have acknowledged, and returns how many of them were
// made since the beginning.
func (h History) Holds(t testing.TB, acknowledged []Change) (n int) {
	t.Helper()
	for _, c := range acknowledged {
		if c.Revision <= h.begin {
			continue
		}
		n++
		if at := h.After(c.Revision - 1); len(at) == 0 || at[0] != c {
			t.Errorf("etcd does not have the write of %s that was acknowledged at revision %d", c.Name, c.Revision)
		}
	}
	return n
}

// Told is everything that a client received: a list and the events that followed it.
type Told struct {
	Mode   string
	At     int64
	Listed map[string]int64
	Events []Change
}

// Check compares with etcd what a client received: the list must be the state at its revision, and the events must be
// all writes after that, up to the last one.
func (h History) Check(t testing.TB, c Told) {
	t.Helper()
	if want := h.at(c.At); !maps.Equal(c.Listed, want) {
		wrong := 0
		for name, revision := range want {
			if c.Listed[name] != revision {
				wrong++
			}
		}
		t.Errorf("%s: of a list at revision %d %d of %d objects are not as they were then, and %d are listed", c.Mode, c.At, wrong, len(want), len(c.Listed))
	}
	want := h.After(c.At)
	want = want[:min(len(want), len(c.Events))]
	if !slices.Equal(c.Events, want) {
		t.Errorf("%s: after revision %d the watch told of %d writes, which are not those in etcd", c.Mode, c.At, len(c.Events))
	}
}

// Seen returns the name and the revision of an object that a client received.
func Seen(object *unstructured.Unstructured) (name string, revision int64, err error) {
	name = object.GetName()
	if object.GetNamespace() != "" {
		name = object.GetNamespace() + "/" + name
	}
	revision, err = strconv.ParseInt(object.GetResourceVersion(), 10, 64)
	return name, revision, err
}

// List lists, and watches from the revision of the list.
func List(ctx context.Context, c dynamic.ResourceInterface, resourceVersion string) (Told, watch.Interface, error) {
	list, err := c.List(ctx, metav1.ListOptions{ResourceVersion: resourceVersion})
	if err != nil {
		return Told{}, nil, err
	}
	seen := Told{Mode: fmt.Sprintf("a list with resourceVersion %q", resourceVersion), Listed: map[string]int64{}}
	if seen.At, err = strconv.ParseInt(list.GetResourceVersion(), 10, 64); err != nil {
		return Told{}, nil, err
	}
	for i := range list.Items {
		name, revision, err := Seen(&list.Items[i])
		if err != nil {
			return Told{}, nil, err
		}
		seen.Listed[name] = revision
	}
	w, err := c.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	return seen, w, err
}

// Last is the revision from which a watch has to be resumed.
func (c *Told) Last() int64 {
	if n := len(c.Events); n > 0 {
		return c.Events[n-1].Revision
	}
	return c.At
}

// Follow receives events until enough returns true, or the watch or ctx ends. A server ends the watch of a client that
// does not keep up, and the watches of a custom resource whose definition changes.
func (c *Told) Follow(ctx context.Context, w watch.Interface, enough func() bool) error {
	defer w.Stop()
	for !enough() {
		select {
		case event, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			object, is := event.Object.(*unstructured.Unstructured)
			switch {
			case event.Type == watch.Error:
				return apierrors.FromObject(event.Object)
			case !is:
				return fmt.Errorf("the watch was told %s %v", event.Type, event.Object)
			case event.Type == watch.Bookmark:
				continue
			}
			name, revision, err := Seen(object)
			if err != nil {
				return err
			}
			c.Events = append(c.Events, Change{name, revision, event.Type == watch.Deleted})
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}
