package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/embedded"
	"github.com/concord-dev/concord/testbed/ledger"
)

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

// feed applies events, one revision each.
type feed struct {
	t *testing.T
	*ledger.Ledger
}

func (f feed) put(key, value string) *ledger.Change {
	f.t.Helper()
	e := ledger.Event{Revision: f.Revision + 1, Key: "/registry/" + key}
	if value != "" {
		e.Value = []byte(value)
	}
	c, err := f.Read(e)
	if err != nil {
		f.t.Fatal(err)
	}
	f.Apply(c)
	return c
}

func (f feed) widget(name, version string) *ledger.Change {
	return f.put("example.com/widgets/"+name, `{"apiVersion":"example.com/`+version+`","kind":"Widget"}`)
}

// TestEncodings: which encodings objects are in, and which they were in since a revision.
func TestEncodings(t *testing.T) {
	f := feed{t, ledger.New("/registry")}
	f.widget("a", "v1")
	f.widget("b", "v1")
	if c := f.widget("a", "v2"); c.Was.Encoding != "example.com/v1" || c.Is.Encoding != "example.com/v2" || c.Is.Resource != widgets {
		t.Errorf("a was %v and is %v", c.Was, c.Is)
	}
	if got := f.Encodings(widgets); !maps.Equal(got, map[agree.Encoding]int{"example.com/v1": 1, "example.com/v2": 1}) {
		t.Errorf("encodings are %v", got)
	}
	f.put("example.com/widgets/b", "")
	for revision, want := range map[int64]bool{3: true, 4: false} {
		if got := f.StoredSince(widgets, revision); got.Has("example.com/v1") != want || !got.Has("example.com/v2") {
			t.Errorf("since revision %d objects are in %v", revision, got)
		}
	}
	if _, err := f.Read(ledger.Event{Revision: 9, Key: "/registry/example.com/widgets/c", Value: []byte("?")}); !errors.Is(err, ledger.ErrNoObject) {
		t.Errorf("garbage: %v", err)
	}
	for _, key := range []string{"/elsewhere/a/b", "/registry/ranges/serviceips"} {
		if c, err := f.Read(ledger.Event{Revision: 10, Key: key, Value: []byte("?")}); c != nil || err != nil {
			t.Errorf("%s: %v, %v", key, c, err)
		}
	}
}

// TestServers: registrations, renewals and ends of identity Leases.
func TestServers(t *testing.T) {
	f := feed{t, ledger.New("/registry")}
	lease := func(name, annotations string) *ledger.Change {
		return f.put("leases/"+storageversion.IdentityNamespace+"/"+name, fmt.Sprintf(
			`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":%q,"labels":{%q:%q},"annotations":{%s}}}`,
			name, storageversion.IdentityLabel, storageversion.IdentityLabelValue, annotations))
	}
	if c := lease("a", fmt.Sprintf("%q:%q", storageversion.EmulationVersionAnnotation, "1.36")); c.Registered != "a" || f.Servers["a"].Release != "1.36" {
		t.Errorf("registered is %q, servers are %v", c.Registered, f.Servers)
	}
	if c := lease("a", ""); c.Registered != "" {
		t.Errorf("a renewal registers %q", c.Registered)
	}
	lease("b", fmt.Sprintf("%q:%q", storageversion.APIAnnotation, storageversion.APIOff))
	f.put("leases/"+storageversion.IdentityNamespace+"/other", `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"other"}}`)
	if silent := f.Silent(); !slices.Equal(silent, []agree.ServerID{"b"}) || len(f.Servers) != 2 {
		t.Errorf("silent are %v, servers %v", silent, f.Servers)
	}
	gone := f.put("leases/"+storageversion.IdentityNamespace+"/b", "")
	if f.Servers["b"].Gone != gone.Revision || len(f.Silent()) != 0 {
		t.Errorf("b is %+v, silent are %v", f.Servers["b"], f.Silent())
	}
	if c := lease("b", ""); c.Registered != "b" || f.Servers["b"].Gone != 0 {
		t.Errorf("registered is %q: %+v", c.Registered, f.Servers["b"])
	}
}

// TestWatch: events of etcd arrive in the account, When tells of them, and Record ends.
func TestWatch(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	etcd, err := embedded.StartEtcd(ctx, filepath.Join(t.TempDir(), "etcd"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = etcd.Close() }()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	put := func(key string) {
		if _, err := client.Put(ctx, key, "x"); err != nil {
			t.Fatal(err)
		}
	}
	var seen []string
	w := ledger.NewWatch(&seen, func(e ledger.Event) { seen = append(seen, e.Key) })
	w.Start(client, "/a", 1)
	put("/a/1")
	stop, err := ledger.Record(ctx, client, "/a/")
	if err != nil {
		t.Fatal(err)
	}
	two := w.When(func(seen *[]string) bool { return len(*seen) == 2 })
	put("/b")
	put("/a/2")
	select {
	case <-two:
	case <-ctx.Done():
		t.Error("nobody is told of /a/2")
	}
	if err := w.CatchUp(ctx); err != nil || !slices.Equal(seen, []string{"/a/1", "/a/2"}) {
		t.Errorf("seen are %v, %v", seen, err)
	}
	if events, err := stop(ctx); err != nil || len(events) != 1 || events[0].Key != "/a/2" || string(events[0].Value) != "x" {
		t.Errorf("recorded are %v, %v", events, err)
	}
	w.Stop()
	if err := w.CatchUp(ctx); err == nil {
		t.Error("a watch that has ended catches up")
	}
}
