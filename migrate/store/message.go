package store

import (
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// message is an etcdserverpb.RangeStreamResponse as it was sent.
type message struct{ buffer mem.Buffer }

// wholeCodec is gRPC's codec, but for a message, which it leaves as it is.
type wholeCodec struct{ encoding.CodecV2 }

var whole = wholeCodec{encoding.GetCodecV2(grpcproto.Name)}

// Unmarshal implements encoding.CodecV2.
func (c wholeCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	m.buffer = data.MaterializeToBuffer(messages)
	return nil
}

// The numbers of the fields that are read of etcd's messages.
const (
	streamedRange = 1 // of RangeStreamResponse

	rangeHeader = 1 // of RangeResponse
	rangeKvs    = 2

	kvKey         = 1 // of KeyValue
	kvModRevision = 3
	kvValue       = 5
	kvLease       = 6
)

var errNoRange = errors.New("a piece of a stream that has no range, or not all of it")

// page reads a piece of a stream. Its values are parts of the message, whose buffer is used
// again when the page is released.
func (m *message) page() (Page, error) {
	response, ok := protobufField(m.buffer.ReadOnlyData(), streamedRange)
	if !ok {
		return Page{}, errNoRange
	}
	page := Page{More: true, release: m.buffer.Free}
	if err := page.read(response); err != nil {
		return Page{}, fmt.Errorf("a piece of a stream: %w", err)
	}
	return page, nil
}

// read takes in what a RangeResponse has. Only the last one of a stream has a header.
func (p *Page) read(response []byte) error {
	n := 0
	for rest := response; len(rest) > 0; {
		f, err := nextField(&rest)
		if err != nil {
			return err
		}
		if f.number == rangeKvs {
			n++
		}
	}
	p.Entries = make([]Entry, 0, n)
	for rest := response; len(rest) > 0; {
		f, err := nextField(&rest)
		if err != nil {
			return err
		}
		switch f.number {
		case rangeHeader:
			p.More = false
		case rangeKvs:
			e, err := entryOf(f.content)
			if err != nil {
				return err
			}
			p.Entries = append(p.Entries, e)
		}
	}
	return nil
}

// entryOf reads a KeyValue.
func entryOf(kv []byte) (e Entry, err error) {
	for len(kv) > 0 {
		f, err := nextField(&kv)
		if err != nil {
			return Entry{}, err
		}
		switch f.number {
		case kvKey:
			e.Key = string(f.content)
		case kvModRevision:
			e.ModRevision = int64(f.varint)
		case kvValue:
			e.Value = f.content
		case kvLease:
			e.Lease = int64(f.varint)
		}
	}
	return e, nil
}

// messages has the buffers of messages, which are about as long as each other. gRPC's own pool
// clears what it gives.
var messages mem.BufferPool = &bufferPool{}

type bufferPool struct{ pool sync.Pool }

// Get implements mem.BufferPool.
func (p *bufferPool) Get(length int) *[]byte {
	if b, ok := p.pool.Get().(*[]byte); ok && cap(*b) >= length {
		*b = (*b)[:length]
		return b
	}
	b := make([]byte, length)
	return &b
}

// Put implements mem.BufferPool.
func (p *bufferPool) Put(b *[]byte) { p.pool.Put(b) }
