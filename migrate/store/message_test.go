package store

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// poisoned spoils what is put back, so that whoever still needs it finds out.
type poisoned struct{ mem.BufferPool }

func (p poisoned) Put(b *[]byte) {
	copy(*b, bytes.Repeat([]byte{0xdb}, len(*b)))
	p.BufferPool.Put(b)
}

func TestMain(m *testing.M) {
	messages = poisoned{messages}
	os.Exit(m.Run())
}

func received(t *testing.T, content []byte) (Page, error) {
	t.Helper()
	var m message
	must(t, whole.Unmarshal(mem.BufferSlice{mem.SliceBuffer(content)}, &m))
	return m.page()
}

func TestMessage(t *testing.T) {
	kvs := []*mvccpb.KeyValue{
		{Key: []byte("/a/1"), Value: []byte("one"), CreateRevision: 3, ModRevision: 300, Version: 2},
		{Key: []byte("/a/2"), ModRevision: 1 << 40, Lease: 1 << 62},
		{Key: []byte("/a/3"), Value: bytes.Repeat([]byte("x"), 5000), ModRevision: 7},
	}
	for name, c := range map[string]struct {
		response *etcdserverpb.RangeResponse
		more     bool
	}{
		"inner": {&etcdserverpb.RangeResponse{Kvs: kvs}, true},
		"last":  {&etcdserverpb.RangeResponse{Kvs: kvs, Header: &etcdserverpb.ResponseHeader{Revision: 9}, Count: 3}, false},
		"empty": {&etcdserverpb.RangeResponse{Header: &etcdserverpb.ResponseHeader{}}, false},
	} {
		content, err := proto.Marshal(&etcdserverpb.RangeStreamResponse{RangeResponse: c.response})
		must(t, err)
		page, err := received(t, content)
		must(t, err)
		want := pageOf(c.response).Entries
		if page.More != c.more || !slices.EqualFunc(page.Entries, want, func(a, b Entry) bool {
			return a.Key == b.Key && bytes.Equal(a.Value, b.Value) && a.ModRevision == b.ModRevision && a.Lease == b.Lease
		}) {
			t.Errorf("%s: got %+v", name, page)
		}
		page.free()
		for n := 1; n < len(content); n++ {
			if _, err := received(t, content[:n]); err == nil {
				t.Fatalf("%s: %d of %d bytes are taken for all", name, n, len(content))
			}
		}
	}
}

// A message without a range is no piece.
func TestMessageWithoutRange(t *testing.T) {
	for _, content := range [][]byte{{}, {0x10, 0x01}} {
		if page, err := received(t, content); err == nil {
			t.Errorf("%x: got %+v", content, page)
		}
	}
}

// A piece that is not the last and has no keys is not taken for the end of its stream.
func TestPieceWithoutKeys(t *testing.T) {
	s := stream{etcd: &Etcd{}, receive: func() (Page, error) { return Page{More: true}, nil }, cancel: func() {}}
	if page, err := s.next(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %+v, %v", page, err)
	}
}

// nothing sends one piece that has nothing.
type nothing struct{ clientv3.KV }

func (nothing) GetStream(context.Context, string, ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	pieces := make(chan clientv3.RangeStreamResponse, 1)
	pieces <- clientv3.RangeStreamResponse{}
	return pieces, nil
}

// Nor is one from an etcd in the same process.
func TestPieceWithNothing(t *testing.T) {
	receive, err := unconnected{nothing{}}.open(t.Context(), "a", "b", 1)
	must(t, err)
	if page, err := receive(); !errors.Is(err, errNoRange) {
		t.Errorf("got %+v, %v", page, err)
	}
}
