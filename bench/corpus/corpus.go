package corpus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	admissionv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	machinery "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/bench/stage"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/testbed/load"
)

// Rewritten is the plural name of the custom resource whose objects are rewritten.
const Rewritten = "rewrittens"

// Corpus is a resource whose objects a benchmark migrates.
type Corpus struct {
	kind string
	gr   schema.GroupResource
	// path is the URL path of its objects in the API, prefix the prefix of their keys in etcd.
	path, prefix string
	// old and current are the encodings from which and to which objects are migrated; version is the API version
	// of current.
	old, current agree.Encoding
	version      string
	template     func(name string) Fields
	// encode makes the stored value of another object, in the old encoding, from the stored value of the template.
	encode func(template []byte, name, uid string) ([]byte, error)
}

// CustomOf returns the corpus of the custom resource with this plural name.
func CustomOf(plural string) Corpus {
	return Corpus{
		kind:     KindOf(plural),
		gr:       schema.GroupResource{Group: CustomGroup, Resource: plural},
		path:     CustomPath(plural, "v2"),
		prefix:   stored.DefaultPrefix + "/" + CustomGroup + "/" + plural + "/",
		old:      CustomGroup + "/v1",
		current:  CustomGroup + "/v2",
		version:  "v2",
		template: func(name string) Fields { return Custom(plural, "v2", name, 1) },
		encode:   encodeCustom,
	}
}

var (
	CustomResources = CustomOf(Rewritten)
	Policies        = Corpus{
		kind:     "MutatingAdmissionPolicy",
		gr:       schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"},
		path:     "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
		prefix:   stored.DefaultPrefix + "/mutatingadmissionpolicies/",
		old:      "admissionregistration.k8s.io/v1beta1",
		current:  "admissionregistration.k8s.io/v1",
		version:  "v1",
		template: Policy,
		encode:   encodePolicy,
	}
)

// Resource returns the group and the name of the resource.
func (c Corpus) Resource() schema.GroupResource { return c.gr }

// Kind returns the kind of its objects.
func (c Corpus) Kind() string { return c.kind }

// object is the name of the i-th object. Names sort like the numbers in them.
func (c Corpus) object(i int) string { return fmt.Sprintf("object-%06d", i) }

func encodeCustom(template []byte, name, uid string) ([]byte, error) {
	var object Fields
	if err := json.Unmarshal(template, &object); err != nil {
		return nil, err
	}
	metadata, ok := object["metadata"].(Fields)
	if !ok {
		return nil, errors.New("the template has no metadata")
	}
	object["apiVersion"], metadata["name"], metadata["uid"] = CustomGroup+"/v1", name, uid
	return json.Marshal(object)
}

var protobufs = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)

// encodePolicy encodes the template in v1beta1 by way of JSON: the fields of a policy are the same in v1 and v1beta1.
func encodePolicy(template []byte, name, uid string) ([]byte, error) {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(template, nil, nil)
	if err != nil {
		return nil, err
	}
	current, ok := object.(*admissionv1.MutatingAdmissionPolicy)
	if !ok {
		return nil, fmt.Errorf("the template is a %T", object)
	}
	raw, err := json.Marshal(current)
	if err != nil {
		return nil, err
	}
	var old admissionv1beta1.MutatingAdmissionPolicy
	if err := json.Unmarshal(raw, &old); err != nil {
		return nil, err
	}
	old.Name = name
	if err := json.Unmarshal(Marshal(uid), &old.UID); err != nil {
		return nil, err
	}
	return machinery.Encode(scheme.Codecs.EncoderForVersion(protobufs, admissionv1beta1.SchemeGroupVersion), &old)
}

// Servers are the running API servers of a benchmark, and their etcd.
type Servers struct {
	Cluster *stage.Cluster
	// Clients has one client for each server.
	Clients []*stage.Client
}

// Open starts a cluster's servers and waits until they can be used.
func Open(ctx context.Context, cluster *stage.Cluster, args ...string) (*Servers, error) {
	if err := cluster.Start(ctx, args...); err != nil {
		return nil, err
	}
	s := &Servers{Cluster: cluster}
	for _, server := range cluster.Servers {
		client, err := server.Client()
		if err != nil {
			return nil, err
		}
		s.Clients = append(s.Clients, client)
	}
	return s, AwaitBootstrap(ctx, s.Clients[0])
}

const (
	// calmSpan is how long a server's processor time is observed; calmShare is the share of it that a calm server
	// may use.
	calmSpan  = 200 * time.Millisecond
	calmShare = 0.15
)

// Rest makes every server collect its garbage, and then waits like AwaitCalm. Otherwise it would be chance during
// which measurement a server collects the large garbage of its watch caches.
func (s *Servers) Rest(ctx context.Context) error {
	for _, client := range s.Clients {
		if _, err := client.Do(ctx, http.MethodGet, "/debug/pprof/heap?gc=1", "", nil); err != nil {
			return fmt.Errorf("collect garbage: %w", err)
		}
	}
	return s.AwaitCalm(ctx)
}

// AwaitCalm waits until no server has anything left to do, so that the next measurement does
// not pay for the work before it.
func (s *Servers) AwaitCalm(ctx context.Context) error {
	return Eventually(ctx, "the servers are calm", func(ctx context.Context) error {
		if err := s.migrated(ctx); err != nil {
			return err
		}
		before, err := s.cpu()
		if err != nil {
			return err
		}
		if err := load.Pause(ctx, calmSpan); err != nil {
			return err
		}
		after, err := s.cpu()
		if err != nil {
			return err
		}
		for i, used := range after {
			if used -= before[i]; used.Seconds() > calmShare*calmSpan.Seconds() {
				return fmt.Errorf("%s computed for %s of %s", s.Cluster.Servers[i].Name, used, calmSpan)
			}
		}
		return nil
	})
}

// cpu returns the processor time that each server has used.
func (s *Servers) cpu() ([]time.Duration, error) {
	var all []time.Duration
	for _, server := range s.Cluster.Servers {
		used, err := server.Run().CPU()
		if err != nil {
			return nil, err
		}
		all = append(all, used)
	}
	return all, nil
}

// Stored are the objects of a corpus in one cluster.
type Stored struct {
	Corpus  Corpus
	Servers *Servers
	kv      migratestore.KV
	// unwatched says that no server has a watch cache of the objects.
	unwatched bool
	// puts are the objects in the old encoding, in the order of their keys.
	puts []migratestore.Put
}

// FillUnwatched is like Fill, but does not wait until the servers' watch caches have the objects, neither now nor
// after a migration. It is for servers that keep custom resources in memory only after a client has read them.
func (c Corpus) FillUnwatched(ctx context.Context, servers *Servers, n int) (*Stored, error) {
	return c.fill(ctx, &Stored{unwatched: true}, servers, n)
}

// Fill stores n objects in the old encoding, modelled on one that was created through
// the API.
func (c Corpus) Fill(ctx context.Context, servers *Servers, n int) (*Stored, error) {
	return c.fill(ctx, &Stored{}, servers, n)
}

func (c Corpus) fill(ctx context.Context, s *Stored, servers *Servers, n int) (*Stored, error) {
	err := Eventually(ctx, "an object is created", func(ctx context.Context) error {
		_, err := servers.Clients[0].Do(ctx, http.MethodPost, c.path, JSONType, Marshal(c.template("template")))
		return err
	})
	if err != nil {
		return nil, err
	}
	key := c.prefix + "template"
	s.Corpus, s.Servers, s.kv = c, servers, migratestore.NewEtcd(servers.Cluster.Raw)
	page, err := s.kv.Range(ctx, key, key+"\x00", 1, 0)
	if err != nil {
		return nil, err
	}
	if len(page.Entries) != 1 {
		return nil, fmt.Errorf("there is nothing at %s", key)
	}
	if _, err := servers.Clients[0].Do(ctx, http.MethodDelete, c.path+"/template", "", nil); err != nil {
		return nil, err
	}
	for i := range n {
		value, err := c.encode(page.Entries[0].Value, c.object(i), string(uuid.NewUUID()))
		if err != nil {
			return nil, fmt.Errorf("encode an object in %s: %w", c.old, err)
		}
		s.puts = append(s.puts, migratestore.Put{Key: c.prefix + c.object(i), Value: value})
	}
	_, err = s.write(ctx, n)
	return s, err
}

// Objects returns the number of objects.
func (s *Stored) Objects() int { return len(s.puts) }

// Path returns the URL path of the i-th object; after the last object comes the first again.
func (s *Stored) Path(i int) string { return s.Corpus.path + "/" + s.Corpus.object(i%len(s.puts)) }

// ValueBytes is the size of an object's value in the old encoding.
func (s *Stored) ValueBytes() int { return len(s.puts[0].Value) }

// Restore brings the first n objects back to the old encoding. It writes to etcd directly, by the same transactions as
// a migration and with the same number of them at a time, so its speed is the limit that etcd sets (the raw limit).
func (s *Stored) Restore(ctx context.Context, n int) (Span, error) {
	if err := s.Check(ctx, n); err != nil {
		return Span{}, err
	}
	if err := s.Servers.AwaitCalm(ctx); err != nil {
		return Span{}, err
	}
	return s.write(ctx, n)
}

// checkedKeys is how many objects are read at a time. Each read also has an end key: etcd counts the keys of a
// range up to its end, however few are asked for.
const checkedKeys = 1000

// Check reads the revisions of all objects and makes sure that the first n are in the
// current encoding.
func (s *Stored) Check(ctx context.Context, n int) error {
	start := s.Corpus.prefix
	for from := 0; from < len(s.puts); from += checkedKeys {
		puts, end := s.puts[from:], s.Corpus.prefix+"\xff"
		if len(puts) > checkedKeys {
			puts, end = puts[:checkedKeys], puts[checkedKeys].Key
		}
		if err := s.check(ctx, start, end, puts, n-from); err != nil {
			return err
		}
		start = end
	}
	return nil
}

// check is Check for one range of keys, whose objects must be those in puts.
func (s *Stored) check(ctx context.Context, start, end string, puts []migratestore.Put, n int) error {
	page, err := s.kv.Range(ctx, start, end, 0, 0)
	if err != nil {
		return err
	}
	for i, e := range page.Entries {
		if i == len(puts) || e.Key != puts[i].Key {
			return fmt.Errorf("%s is stored and was not written", e.Key)
		}
		if encoding, _, _ := migratestore.Envelope(e.Value); i < n && encoding != s.Corpus.current {
			return fmt.Errorf("%s is in %q and not in %s", e.Key, encoding, s.Corpus.current)
		}
		puts[i].ModRevision = e.ModRevision
	}
	if len(page.Entries) != len(puts) {
		return fmt.Errorf("%d objects from %s on are stored and %d were written", len(page.Entries), start, len(puts))
	}
	return nil
}

// write puts the first n values by transactions like those of a migration: each compares the revision of the
// value and that of the StorageVersion, and the same number runs at a time.
func (s *Stored) write(ctx context.Context, n int) (Span, error) {
	fence, err := s.fence(ctx)
	if err != nil {
		return Span{}, err
	}
	done := Span{objects: n, began: time.Now()}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(migratestore.DefaultUnderWay)
	for i, p := range s.puts[:n] {
		group.Go(func() error {
			written, revision, err := s.kv.Put(groupCtx, fence, p)
			if err == nil && !written {
				err = fmt.Errorf("%s has changed", p.Key)
			}
			s.puts[i].ModRevision = revision
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return Span{}, err
	}
	done.end = time.Now()
	return s.seen(ctx, done)
}

func (s *Stored) fence(ctx context.Context) (migratestore.Fence, error) {
	key := stored.DefaultPrefix + "/storageversions/" + storageversion.Name(s.Corpus.gr)
	page, err := s.kv.Range(ctx, key, key+"\x00", 1, 0)
	if err != nil {
		return migratestore.Fence{}, err
	}
	if len(page.Entries) == 0 {
		return migratestore.Fence{Key: key}, nil // a stock server has no StorageVersion; the transactions compare that there still is none
	}
	return migratestore.Fence{Key: key, Revision: page.Entries[0].ModRevision}, nil
}

// seen completes a span with the time at which the watch caches of all servers had seen all writes.
func (s *Stored) seen(ctx context.Context, done Span) (Span, error) {
	if s.unwatched {
		return done, nil
	}
	newest, err := s.Servers.Cluster.Raw.Get(ctx, s.Corpus.prefix, append(clientv3.WithLastRev(), clientv3.WithPrefix(), clientv3.WithKeysOnly())...)
	if err != nil {
		return Span{}, err
	}
	if len(newest.Kvs) != 1 {
		return Span{}, fmt.Errorf("there is nothing below %s", s.Corpus.prefix)
	}
	name := strings.TrimPrefix(string(newest.Kvs[0].Key), s.Corpus.prefix)
	if err := s.awaitSeen(ctx, name, newest.Kvs[0].ModRevision); err != nil {
		return Span{}, err
	}
	done.seen = time.Now()
	return done, nil
}
