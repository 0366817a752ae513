package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
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
	"github.com/concord-dev/concord/rewrite"
	"github.com/concord-dev/concord/server"
)

const (
	rewritten = "rewrittens"
	// batchKeys is how many keys a raw transaction writes.
	batchKeys = 100
)

// corpus is a resource whose objects are rewritten.
type corpus struct {
	name, kind string
	gr         schema.GroupResource
	// path is where its objects are served, prefix where they are stored.
	path, prefix string
	// old and current are the encodings from which and to which they are rewritten, and
	// version is that of current.
	old, current agree.Encoding
	version      string
	template     func(name string) fields
	// encode makes of the template's stored value that of another object, in the old
	// encoding.
	encode func(template []byte, name, uid string) ([]byte, error)
}

var (
	customCorpus = corpus{
		name: "custom resources", kind: kindOf(rewritten),
		gr:       schema.GroupResource{Group: customGroup, Resource: rewritten},
		path:     customPath(rewritten, "v2"),
		prefix:   server.DefaultEtcdPrefix + "/" + customGroup + "/" + rewritten + "/",
		old:      customGroup + "/v1",
		current:  customGroup + "/v2",
		version:  "v2",
		template: func(name string) fields { return custom(rewritten, "v2", name, 1) },
		encode:   encodeCustom,
	}
	policyCorpus = corpus{
		name: "MutatingAdmissionPolicies", kind: "MutatingAdmissionPolicy",
		gr:       policies,
		path:     "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
		prefix:   server.DefaultEtcdPrefix + "/mutatingadmissionpolicies/",
		old:      "admissionregistration.k8s.io/v1beta1",
		current:  "admissionregistration.k8s.io/v1",
		version:  "v1",
		template: policy,
		encode:   encodePolicy,
	}
)

// object is the name of the i-th object; the order of names is that of numbers.
func (c corpus) object(i int) string { return fmt.Sprintf("object-%06d", i) }

func encodeCustom(template []byte, name, uid string) ([]byte, error) {
	var object fields
	if err := json.Unmarshal(template, &object); err != nil {
		return nil, err
	}
	metadata, ok := object["metadata"].(fields)
	if !ok {
		return nil, errors.New("the template has no metadata")
	}
	object["apiVersion"], metadata["name"], metadata["uid"] = customGroup+"/v1", name, uid
	return json.Marshal(object)
}

var protobufs = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)

// encodePolicy uses that the two versions of policies have the same shape.
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
	if err := json.Unmarshal(marshal(uid), &old.UID); err != nil {
		return nil, err
	}
	return machinery.Encode(scheme.Codecs.EncoderForVersion(protobufs, admissionv1beta1.SchemeGroupVersion), &old)
}

// stored are the objects of a corpus in one cluster.
type stored struct {
	corpus corpus
	side   *side
	kv     rewrite.KV
	// puts are the objects in the old encoding, in the order of their keys.
	puts []rewrite.Put
}

// fill stores n objects in the old encoding, modelled on one that was created through
// the API.
func (c corpus) fill(ctx context.Context, side *side, n int) (*stored, error) {
	err := eventually(ctx, "an object is created", func(ctx context.Context) error {
		_, err := side.clients[0].Do(ctx, http.MethodPost, c.path, jsonType, marshal(c.template("template")))
		return err
	})
	if err != nil {
		return nil, err
	}
	key := c.prefix + "template"
	s := &stored{corpus: c, side: side, kv: rewrite.NewEtcd(side.cluster.Raw)}
	page, err := s.kv.Range(ctx, key, key+"\x00", 1, 0)
	if err != nil {
		return nil, err
	}
	if len(page.Entries) != 1 {
		return nil, fmt.Errorf("there is nothing at %s", key)
	}
	if _, err := side.clients[0].Do(ctx, http.MethodDelete, c.path+"/template", "", nil); err != nil {
		return nil, err
	}
	for i := range n {
		value, err := c.encode(page.Entries[0].Value, c.object(i), string(uuid.NewUUID()))
		if err != nil {
			return nil, fmt.Errorf("encode an object in %s: %w", c.old, err)
		}
		s.puts = append(s.puts, rewrite.Put{Key: c.prefix + c.object(i), Value: value})
	}
	_, err = s.write(ctx, n)
	return s, err
}

func (s *stored) valueBytes() int { return len(s.puts[0].Value) }

// restore brings the first n objects back to the old encoding, by raw transactions of
// the form that a rewrite has: this is the raw limit.
func (s *stored) restore(ctx context.Context, n int) (span, error) {
	if err := s.check(ctx, n); err != nil {
		return span{}, err
	}
	return s.write(ctx, n)
}

// check reads the revisions of all objects and makes sure that the first n are in the
// current encoding.
func (s *stored) check(ctx context.Context, n int) error {
	next := 0
	for start := s.corpus.prefix; next < len(s.puts); {
		page, err := s.kv.Range(ctx, start, s.corpus.prefix+"\xff", 1000, 0)
		if err != nil {
			return err
		}
		for _, e := range page.Entries {
			if next == len(s.puts) || e.Key != s.puts[next].Key {
				return fmt.Errorf("%s is stored and was not written", e.Key)
			}
			if encoding, _, _ := rewrite.Envelope(e.Value); next < n && encoding != s.corpus.current {
				return fmt.Errorf("%s is in %q and not in %s", e.Key, encoding, s.corpus.current)
			}
			s.puts[next].ModRevision = e.ModRevision
			next++
			start = e.Key + "\x00"
		}
		if !page.More {
			break
		}
	}
	if next != len(s.puts) {
		return fmt.Errorf("%d objects are stored and %d were written", next, len(s.puts))
	}
	return nil
}

// write puts the first n values, each if its revision is unchanged, with the compare of
// the StorageVersion that a rewrite has, as many transactions at a time as it has.
func (s *stored) write(ctx context.Context, n int) (span, error) {
	fence, err := s.fence(ctx)
	if err != nil {
		return span{}, err
	}
	done := span{objects: n, began: time.Now()}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(min(8, max(2, 2*runtime.GOMAXPROCS(0))))
	for from := 0; from < n; from += batchKeys {
		batch := s.puts[from:min(from+batchKeys, n)]
		group.Go(func() error {
			committed, err := s.kv.Commit(groupCtx, fence, batch)
			if err != nil {
				return err
			}
			for i, outcome := range committed.Outcomes {
				if !outcome.Written {
					return fmt.Errorf("%s has changed", batch[i].Key)
				}
				batch[i].ModRevision = committed.Revision
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return span{}, err
	}
	done.end = time.Now()
	return s.seen(ctx, done)
}

func (s *stored) fence(ctx context.Context) (rewrite.Fence, error) {
	key := server.DefaultEtcdPrefix + "/storageversions/" + storageversion.Name(s.corpus.gr)
	page, err := s.kv.Range(ctx, key, key+"\x00", 1, 0)
	if err != nil {
		return rewrite.Fence{}, err
	}
	if len(page.Entries) != 1 {
		return rewrite.Fence{}, fmt.Errorf("there is nothing at %s", key)
	}
	return rewrite.Fence{Key: key, Revision: page.Entries[0].ModRevision}, nil
}

// seen completes a span with the time at which all servers had seen what was written.
func (s *stored) seen(ctx context.Context, done span) (span, error) {
	newest, err := s.side.cluster.Raw.Get(ctx, s.corpus.prefix, append(clientv3.WithLastRev(), clientv3.WithPrefix(), clientv3.WithKeysOnly())...)
	if err != nil {
		return span{}, err
	}
	if len(newest.Kvs) != 1 {
		return span{}, fmt.Errorf("there is nothing below %s", s.corpus.prefix)
	}
	name := strings.TrimPrefix(string(newest.Kvs[0].Key), s.corpus.prefix)
	if err := s.awaitSeen(ctx, name, newest.Kvs[0].ModRevision); err != nil {
		return span{}, err
	}
	done.seen = time.Now()
	return done, nil
}
